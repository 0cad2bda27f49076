/* lockstep export --format=gguf: one file for llama.cpp and programs that are built on it. The
 * format is described in ggml's docs/gguf.md (version 3), the architecture gpt2 in llama.cpp's
 * src/models/gpt2.cpp: it always has biases, and computes GELU by its tanh form. A matrix is
 * [out, in], as in lockstep, with the dimensions in reverse order. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/system/sys.h"
#include "base/text/memstream.h"
#include "base/text/utf8.h"
#include "weights/export/form.h"

enum { VERSION = 3, F32 = 0, ALIGN = 32, COUNTS_AT = 8 };

/* Types of values, in the file */
enum { TYPE_UINT32 = 4, TYPE_INT32 = 5, TYPE_FLOAT32 = 6, TYPE_STRING = 8, TYPE_ARRAY = 9 };

/* The head while it is written to memory; its failures are found when `out` is closed. */
typedef struct writer {
    FILE *out;
    uint64_t n_values;
} writer;

typedef struct tensor {
    char name[48];
    int n_dims;
    uint64_t dims[2]; /* the innermost one first */
    const float *data;
    uint64_t bytes;
} tensor;

/* --- values ---------------------------------------------------------------------------------- */

/* Write a string: its length and its bytes. */
static void put_text(writer *g, const char *text, size_t bytes)
{
    const uint64_t n = bytes;
    fwrite(&n, sizeof n, 1, g->out);
    fwrite(text, 1, bytes, g->out);
}

static void put_uint(writer *g, uint32_t value)
{
    fwrite(&value, sizeof value, 1, g->out);
}

/* Begin a value with its name and type. */
static void put_key(writer *g, const char *name, uint32_t type)
{
    put_text(g, name, strlen(name));
    put_uint(g, type);
    g->n_values++;
}

static void put_number(writer *g, const char *name, uint32_t value)
{
    put_key(g, name, TYPE_UINT32);
    put_uint(g, value);
}

static void put_string(writer *g, const char *name, const char *value)
{
    put_key(g, name, TYPE_STRING);
    put_text(g, value, strlen(value));
}

/* Begin an array; its n items follow. */
static void put_array(writer *g, const char *name, uint32_t type, uint64_t n)
{
    put_key(g, name, TYPE_ARRAY);
    put_uint(g, type);
    fwrite(&n, sizeof n, 1, g->out);
}

static void put_model(const lks__export_model *e, writer *g)
{
    const lks__model_config *c = &e->config;
    const float epsilon = 1e-5f;
    put_string(g, "general.architecture", "gpt2");
    put_number(g, "general.file_type", F32);
    put_number(g, "gpt2.context_length", (uint32_t)c->block_size);
    put_number(g, "gpt2.embedding_length", (uint32_t)c->n_embd);
    put_number(g, "gpt2.feed_forward_length", 4 * (uint32_t)c->n_embd);
    put_number(g, "gpt2.block_count", (uint32_t)c->n_layer);
    put_number(g, "gpt2.attention.head_count", (uint32_t)c->n_head);
    put_key(g, "gpt2.attention.layer_norm_epsilon", TYPE_FLOAT32);
    fwrite(&epsilon, sizeof epsilon, 1, g->out);
}

/* llama.cpp's type gpt2 has byte-level BPE. Its type rwkv matches the longest token, so it also
 * encodes characters; a token is a text in which \\ stands for a backslash. */
enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 }; /* types of tokens */

/* --- byte-level BPE -------------------------------------------------------------------------- */

/* Fill the texts by id, as tokenizer.json spells them. They belong to `json`. */
static void list_tokens(const json_t *json, const char **texts, int32_t *types)
{
    const char *text;
    json_t *id, *token;
    size_t i;
    json_object_foreach(json_object_get(json_object_get(json, "model"), "vocab"), text, id)
    {
        texts[json_integer_value(id)] = text;
        types[json_integer_value(id)] = NORMAL;
    }
    json_array_foreach(json_object_get(json, "added_tokens"), i, token)
    {
        const json_int_t at = json_integer_value(json_object_get(token, "id"));
        texts[at] = json_string_value(json_object_get(token, "content"));
        types[at] = CONTROL;
    }
}

static void put_merges(writer *g, const json_t *merges)
{
    put_array(g, "tokenizer.ggml.merges", TYPE_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *pair = json_array_get(merges, i);
        const json_t *left = json_array_get(pair, 0), *right = json_array_get(pair, 1);
        const uint64_t bytes = json_string_length(left) + 1 + json_string_length(right);
        fwrite(&bytes, sizeof bytes, 1, g->out);
        fprintf(g->out, "%s %s", json_string_value(left), json_string_value(right));
    }
}

static void put_bpe(writer *g, const json_t *json, size_t n, const char **texts, int32_t *types)
{
    put_string(g, "tokenizer.ggml.model", "gpt2");
    put_string(g, "tokenizer.ggml.pre", "gpt-2");
    list_tokens(json, texts, types);
    put_array(g, "tokenizer.ggml.tokens", TYPE_STRING, n);
    for (size_t i = 0; i < n; i++) {
        char unused[32];
        if (texts[i] == NULL) {
            snprintf(unused, sizeof unused, "[UNUSED%zu]", i);
            types[i] = UNUSED;
        }
        const char *text = texts[i] != NULL ? texts[i] : unused;
        put_text(g, text, strlen(text));
    }
    put_array(g, "tokenizer.ggml.token_type", TYPE_INT32, n);
    fwrite(types, sizeof types[0], n, g->out);
    put_merges(g, json_object_get(json_object_get(json, "model"), "merges"));
}

static lks_status write_bpe(const lks__export_vocabulary *v, writer *g)
{
    const size_t n = v->size;
    const uint32_t end = (uint32_t)v->end_of_text;
    json_t *json = json_loadb(v->text, v->bytes, 0, NULL);
    const char **texts = calloc(n, sizeof *texts);
    int32_t *types = calloc(n, sizeof *types);
    const bool memory = json != NULL && texts != NULL && types != NULL;
    if (memory) {
        put_bpe(g, json, n, texts, types);
        put_number(g, "tokenizer.ggml.bos_token_id", end);
        put_number(g, "tokenizer.ggml.eos_token_id", end);
    }
    free(types);
    free(texts);
    json_decref(json);
    return memory ? LKS_OK : lks__no_memory("for the tokenizer of a GGUF file");
}

/* --- characters ------------------------------------------------------------------------------ */

static void write_characters(const lks__meta *meta, writer *g)
{
    put_string(g, "tokenizer.ggml.model", "rwkv");
    put_array(g, "tokenizer.ggml.tokens", TYPE_STRING, meta->vocab_size);
    for (uint32_t i = 0; i < meta->vocab_size; i++) {
        char text[8];
        if (meta->chars[i] == '\\')
            put_text(g, "\\\\", 2);
        else
            put_text(g, text, lks__utf8_encode(meta->chars[i], text));
    }
}

/* Write the tokenizer's values, or print why there is none. *rows_p: number of tokens with a text,
 * at most the model's. */
static lks_status put_tokenizer(const lks__export_model *e, writer *g, size_t *rows_p)
{
    lks__export_vocabulary v;
    lks_status st = LKS_OK;
    LKS__TRY(lks__export_tokenizer(e, &v));
    const bool has_bpe = v.text != NULL && v.end_of_text >= 0;
    if (v.text != NULL && !has_bpe)
        lks__export_note(e, "no tokenizer is written: the vocabulary has no <|endoftext|>, and "
                            "llama.cpp would end each text at token 11 instead");
    *rows_p = has_bpe ? v.size : v.characters ? e->meta.vocab_size : (size_t)e->config.vocab_size;
    if (v.characters) {
        write_characters(&e->meta, g);
        lks__export_note(e, "a prompt may contain only characters of the training text: llama.cpp "
                            "aborts, or never returns, on others");
    } else if (has_bpe)
        st = write_bpe(&v, g);
    else {
        put_string(g, "tokenizer.ggml.model", "none");
        put_number(g, "gpt2.vocab_size", (uint32_t)*rows_p);
    }
    free(v.text);
    return st;
}

/* --- tensors --------------------------------------------------------------------------------- */

/* llama.cpp's name of a tensor: "transformer.h.3.ln_1.weight" is "blk.3.attn_norm.weight". */
static void name_tensor(const lks__table_tensor *t, char name[48])
{
    static const char *const names[][2] = {
        {"wte", "token_embd"}, {"wpe", "position_embd"},    {"ln_f", "output_norm"},
        {"ln_1", "attn_norm"}, {"attn.c_attn", "attn_qkv"}, {"attn.c_proj", "attn_output"},
        {"ln_2", "ffn_norm"},  {"mlp.c_fc", "ffn_up"},      {"mlp.c_proj", "ffn_down"},
    };
    const char *own = t->name + strlen("transformer."), *kind = strrchr(t->name, '.');
    if (t->layer >= 0)
        own = strchr(own + strlen("h."), '.') + 1;
    const size_t n = (size_t)(kind - own);
    size_t i = 0;
    while (strlen(names[i][0]) != n || strncmp(names[i][0], own, n) != 0)
        i++;
    if (t->layer >= 0)
        snprintf(name, 48, "blk.%d.%s%s", t->layer, names[i][1], kind);
    else
        snprintf(name, 48, "%s%s", names[i][1], kind);
}

/* The embedding keeps only the rows of tokens with a text. */
static void list_tensors(const lks__table *all, const float *params, size_t rows, tensor *list)
{
    for (size_t i = 0; i < all->n_tensors; i++) {
        const lks__table_tensor *t = &all->tensors[i];
        const size_t outer = strcmp(t->name, "transformer.wte.weight") == 0 ? rows : t->shape[0];
        list[i] = (tensor){.n_dims = t->n_dims, .dims = {t->shape[1], outer}};
        if (t->n_dims == 1)
            list[i].dims[0] = outer;
        list[i].data = params + t->offset;
        list[i].bytes = outer * (t->n_dims == 1 ? 1 : t->shape[1]) * sizeof *params;
        name_tensor(t, list[i].name);
    }
}

static void put_list(writer *g, const tensor *list, size_t n)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        put_text(g, list[i].name, strlen(list[i].name));
        put_uint(g, (uint32_t)list[i].n_dims);
        fwrite(list[i].dims, sizeof list[i].dims[0], (size_t)list[i].n_dims, g->out);
        put_uint(g, F32);
        fwrite(&offset, sizeof offset, 1, g->out);
        offset += lks__round_up(list[i].bytes, ALIGN);
    }
}

static int write_aligned(int fd, const void *data, size_t bytes)
{
    static const char zeros[ALIGN];
    if (lks__sys_write_all(fd, data, bytes) != 0)
        return -1;
    return lks__sys_write_all(fd, zeros, lks__round_up(bytes, ALIGN) - bytes);
}

static lks_status write_file(const char *path, const char *head, size_t bytes, const tensor *list,
                             size_t n)
{
    lks__sys_new file;
    LKS__TRY(lks__sys_new_open(path, &file));
    bool ok = write_aligned(file.fd, head, bytes) == 0;
    for (size_t i = 0; i < n && ok; i++)
        ok = write_aligned(file.fd, list[i].data, list[i].bytes) == 0;
    return lks__sys_new_close(&file, ok ? LKS_OK : lks__sys_fail("cannot write", path));
}

/* Write the head to memory: counts, values, list of tensors. The caller frees *head_p. */
static lks_status make_head(const lks__export_model *e, const lks__table *all, const float *params,
                            tensor *list, char **head_p, size_t *bytes_p)
{
    uint64_t counts[2] = {all->n_tensors, 0};
    size_t rows;
    writer g = {.out = open_memstream(head_p, bytes_p)};
    if (g.out == NULL)
        return lks__no_memory("for the head of a GGUF file");
    fwrite("GGUF", 1, 4, g.out);
    put_uint(&g, VERSION);
    fwrite(counts, sizeof counts[0], 2, g.out);
    put_model(e, &g);
    lks_status st = put_tokenizer(e, &g, &rows);
    if (st == LKS_OK) {
        list_tensors(all, params, rows, list);
        put_list(&g, list, all->n_tensors);
    }
    if (lks__memstream_end(g.out, head_p) == NULL && st == LKS_OK)
        st = lks__no_memory("for the head of a GGUF file");
    counts[1] = g.n_values;
    if (st == LKS_OK)
        memcpy(*head_p + COUNTS_AT, counts, sizeof counts);
    return st;
}

static lks_status write_model(const lks__export_model *e, const lks__table *all,
                              const float *params)
{
    char *head = NULL;
    size_t bytes;
    tensor *list = calloc(all->n_tensors, sizeof *list);
    lks_status st = LKS_OK;
    if (list == NULL)
        st = lks__no_memory("to list %zu tensors", all->n_tensors);
    LKS__THEN(st, make_head(e, all, params, list, &head, &bytes));
    LKS__THEN(st, write_file(e->s->out, head, bytes, list, all->n_tensors));
    free(head);
    free(list);
    return st;
}

/* llama.cpp rounds a context up to 256 tokens, but has no embedding for positions beyond the
 * model's. */
static void print_limits(const lks__export_model *e)
{
    if (!e->config.gelu_tanh)
        lks__export_note(e, "llama.cpp computes GELU by its tanh form, and this model exactly: its "
                            "texts may differ slightly");
    if (e->config.block_size % 256 != 0)
        lks__export_note(e,
                         "in llama.cpp, a prompt and its text may have at most %d tokens together "
                         "(the model's block_size): it aborts after more",
                         e->config.block_size);
}

lks_status lks__export_gguf(const lks__export_model *e)
{
    lks__table all = {0};
    float *params = NULL;
    LKS__TRY(lks__export_gpt2_only(e));
    lks_status st = lks__export_biased(e, &all, &params);
    LKS__THEN(st, write_model(e, &all, params));
    if (st == LKS_OK)
        print_limits(e);
    free(params);
    lks__table_free(&all);
    return st;
}
