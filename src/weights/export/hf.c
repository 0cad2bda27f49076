/* lockstep export --format=hf: a folder for Hugging Face's loaders: config.json, model.safetensors,
 * and the tokenizer: GPT-2's vocabulary unchanged, and characters as a vocabulary of words of one
 * character. Their Conv1D stores a matrix as [in, out], and their GPT-2 always has biases. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "files/staged.h"
#include "weights/export/form.h"

#define TOKENIZER "tokenizer.json"
#define END       "<|endoftext|>"

/* Write `json` as the folder's file NAME: keys sorted, two spaces. Takes the reference; NULL is
 * ERR_NOMEM. */
static lks_status write_json(lks__staged *files, const char *name, json_t *json)
{
    char *text = json == NULL ? NULL : lks__json_dump(json, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(json);
    LKS__MEMORY(text, "for %s", name);
    const size_t n = strlen(text);
    text[n] = '\n'; /* replaces the 0 byte */
    lks_status st = lks__staged_add(files, name, text, n + 1);
    free(text);
    return st;
}

static lks_status write_config(const lks__export_model *e, lks__staged *files, int32_t end_of_text)
{
    const lks__model_config *c = &e->config;
    json_t *end[2]; /* transformers' own default is 50256, whatever the vocabulary is */
    for (int i = 0; i < 2; i++)
        end[i] = end_of_text < 0 ? json_null() : json_integer(end_of_text);
    json_t *json = json_pack(
        "{s:s, s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:n, s:b, s:b, s:b, s:b, s:f, s:f, s:f, s:f, "
        "s:f, s:s, s:o, s:o}",
        "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "activation_function",
        c->gelu_tanh ? "gelu_new" : "gelu", "n_layer", c->n_layer, "n_head", c->n_head, "n_embd",
        c->n_embd, "n_positions", c->block_size, "vocab_size", c->vocab_size, "n_inner",
        "tie_word_embeddings", 1, "scale_attn_weights", 1, "scale_attn_by_inverse_layer_idx", 0,
        "add_cross_attention", 0, "layer_norm_epsilon", 1e-5, "initializer_range", 0.02,
        "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0, "dtype", "float32",
        "bos_token_id", end[0], "eos_token_id", end[1]);
    return write_json(files, "config.json", json);
}

static lks_status write_tokenizer_config(const lks__export_model *e, lks__staged *files,
                                         const char *kind, bool has_end)
{
    const char *end = has_end ? END : NULL; /* "s*" leaves it out then */
    json_t *json =
        json_pack("{s:s, s:i, s:b, s:s*, s:s*, s:s*}", "tokenizer_class", kind, "model_max_length",
                  e->config.block_size, "clean_up_tokenization_spaces", 0, "bos_token", end,
                  "eos_token", end, "unk_token", end);
    return write_json(files, "tokenizer_config.json", json);
}

/* --- characters ------------------------------------------------------------------------------ */

static json_t *characters(const lks__meta *meta)
{
    json_t *vocabulary = json_object();
    for (uint32_t id = 0; id < meta->vocab_size && vocabulary != NULL; id++) {
        char text[8];
        text[lks__utf8_encode(meta->chars[id], text)] = '\0';
        if (json_object_set_new(vocabulary, text, json_integer((json_int_t)id)) != 0) {
            json_decref(vocabulary);
            vocabulary = NULL;
        }
    }
    return vocabulary;
}

static json_t *replacement(const char *from)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content",
                     "\n");
}

/* Splits a text into its characters and reads CRLF and CR as LF, like `prep char`. A character
 * without an id is an error. */
static lks_status write_characters(const lks__export_model *e, lks__staged *files)
{
    json_t *json = json_pack(
        "{s:s, s:n, s:n, s:[], s:{s:s, s:[o, o]}, s:{s:s, s:{s:s}, s:s, s:b}, s:n, s:{s:s}, "
        "s:{s:s, s:o, s:s}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "type", "Sequence",
        "normalizers", replacement("\r\n"), replacement("\r"), "pre_tokenizer", "type", "Split",
        "pattern", "Regex", "[\\s\\S]", "behavior", "Isolated", "invert", 0, "post_processor",
        "decoder", "type", "Fuse", "model", "type", "WordLevel", "vocab", characters(&e->meta),
        "unk_token", "<unk>");
    LKS__TRY(write_json(files, TOKENIZER, json));
    return write_tokenizer_config(e, files, "PreTrainedTokenizerFast", false);
}

/* Write the tokenizer's files, or print why there are none. *end_of_text_p: the id of
 * <|endoftext|>; -1: there is none. */
static lks_status write_tokenizer(const lks__export_model *e, lks__staged *files,
                                  int32_t *end_of_text_p)
{
    lks__export_vocabulary v;
    LKS__TRY(lks__export_tokenizer(e, &v));
    *end_of_text_p = v.end_of_text;
    if (v.characters)
        return write_characters(e, files);
    lks_status st = LKS_OK;
    if (v.text != NULL) {
        st = lks__staged_add(files, TOKENIZER, v.text, v.bytes);
        LKS__THEN(st, write_tokenizer_config(e, files, "GPT2Tokenizer", v.end_of_text >= 0));
    }
    free(v.text);
    return st;
}

/* An earlier export's forms and parts of a tokenizer, which loaders would combine with the new one.
 */
static bool is_tokenizer(const char *name, const void *ctx)
{
    static const char *const names[] = {TOKENIZER,
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        NULL};
    return lks__is_one_of(name, names);
}

/* --- weights --------------------------------------------------------------------------------- */

/* Transpose [out, in] to [in, out], in place. */
static void transpose(float *x, size_t out, size_t in, float *scratch)
{
    for (size_t i = 0; i < out; i++)
        for (size_t j = 0; j < in; j++)
            scratch[j * out + i] = x[i * in + j];
    memcpy(x, scratch, out * in * sizeof *x);
}

static void list_tensors(const lks__table *all, float *params, float *scratch, lks__st_tensor *list)
{
    for (size_t i = 0; i < all->n_tensors; i++) {
        const lks__table_tensor *t = &all->tensors[i];
        const bool turned = t->kind == LKS__PARAM_MATRIX;
        list[i] = (lks__st_tensor){.name = t->name,
                                   .dtype = "F32",
                                   .n_dims = t->n_dims,
                                   .shape = {t->shape[turned], t->shape[!turned]},
                                   .data = params + t->offset,
                                   .bytes = t->count * sizeof(float)};
        if (t->n_dims == 1)
            list[i].shape[0] = t->shape[0];
        if (turned)
            transpose(params + t->offset, t->shape[0], t->shape[1], scratch);
    }
}

static lks_status write_weights(const lks__export_model *e, const char *path)
{
    const size_t C = (size_t)e->config.n_embd;
    lks__table all = {0};
    float *params = NULL, *scratch = malloc(4 * C * C * sizeof *scratch);
    lks_status st = lks__export_biased(e, &all, &params);
    lks__st_tensor *list = calloc(all.n_tensors + 1, sizeof *list);
    if (st == LKS_OK && (list == NULL || scratch == NULL))
        st = lks__no_memory("to write %zu tensors", all.n_tensors);
    if (st == LKS_OK)
        list_tensors(&all, params, scratch, list);
    LKS__THEN(st, lks__export_tensors(path, list, all.n_tensors));
    if (st == LKS_OK && !e->config.bias)
        lks__export_note(e, "the model has no biases: those in the folder are zeros");
    free(params);
    free(list);
    free(scratch);
    lks__table_free(&all);
    return st;
}

/* True if `path` is the output folder or a file in it: writing would destroy a tokenizer there
 * before it is read. */
static bool is_in_out(const lks__export_model *e, const char *path)
{
    char folder[LKS__CKPT_PATH];
    lks__ckpt_parent(path, folder);
    return lks__sys_same(e->s->out, lks__sys_is_folder(path) ? path : folder);
}

/* Refuses a folder with other contents. */
static lks_status make_folder(const lks__export_model *e)
{
    static const char *const others[] = {"state.json", "metrics.jsonl", "meta.json"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char path[LKS__SETTING_STR + 64];
        snprintf(path, sizeof path, "%s/%s", e->s->out, others[i]);
        if (access(path, F_OK) == 0)
            return lks__fail(LKS_ERR_CONFIG,
                             "there is %s: that folder belongs to lockstep; give another --out",
                             lks__shown(path, 512));
    }
    const bool weights = is_in_out(e, e->w->path);
    if (weights || (e->vocabulary[0] != '\0' && is_in_out(e, e->vocabulary)))
        return lks__fail(LKS_ERR_CONFIG, "the %s in the folder of --out; give another one",
                         weights ? "weights are" : "vocabulary is");
    return lks__sys_make_dirs(e->s->out);
}

lks_status lks__export_hf(const lks__export_model *e)
{
    int32_t end_of_text;
    const char *weights;
    lks__staged files = {.dir = e->s->out};
    LKS__TRY(lks__export_gpt2_only(e));
    LKS__TRY(make_folder(e));
    /* The weights are the first: weights without a config are a model, too, of a guessed shape. */
    lks_status st = lks__staged_name(&files, "model.safetensors", &weights);
    LKS__THEN(st, write_tokenizer(e, &files, &end_of_text));
    LKS__THEN(st, write_weights(e, weights));
    LKS__THEN(st, write_config(e, &files, end_of_text));
    LKS__THEN(st, lks__staged_others(&files, is_tokenizer, NULL));
    LKS__THEN(st, lks__staged_commit(&files));
    lks__staged_close(&files);
    return st;
}
