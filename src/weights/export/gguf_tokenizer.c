/* lockstep export --format=gguf: the tokenizer. llama.cpp's type gpt2 has byte-level BPE. Its type
 * rwkv matches the longest token, so it also encodes characters; a token is a text in which \\
 * stands for a backslash. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"
#include "weights/export/gguf.h"

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

static void put_merges(lks__gguf *g, const json_t *merges)
{
    lks__gguf_array(g, "tokenizer.ggml.merges", LKS__GGUF_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *pair = json_array_get(merges, i);
        const json_t *left = json_array_get(pair, 0), *right = json_array_get(pair, 1);
        const uint64_t bytes = json_string_length(left) + 1 + json_string_length(right);
        fwrite(&bytes, sizeof bytes, 1, g->out);
        fprintf(g->out, "%s %s", json_string_value(left), json_string_value(right));
    }
}

static void put_bpe(lks__gguf *g, const json_t *json, size_t n, const char **texts, int32_t *types)
{
    lks__gguf_string(g, "tokenizer.ggml.model", "gpt2");
    lks__gguf_string(g, "tokenizer.ggml.pre", "gpt-2");
    list_tokens(json, texts, types);
    lks__gguf_array(g, "tokenizer.ggml.tokens", LKS__GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        char unused[32];
        if (texts[i] == NULL) {
            snprintf(unused, sizeof unused, "[UNUSED%zu]", i);
            types[i] = UNUSED;
        }
        const char *text = texts[i] != NULL ? texts[i] : unused;
        lks__gguf_text(g, text, strlen(text));
    }
    lks__gguf_array(g, "tokenizer.ggml.token_type", LKS__GGUF_INT32, n);
    fwrite(types, sizeof types[0], n, g->out);
    put_merges(g, json_object_get(json_object_get(json, "model"), "merges"));
}

static lks_status write_bpe(const lks__export_vocabulary *v, lks__gguf *g)
{
    const size_t n = v->size;
    const uint32_t end = (uint32_t)v->end_of_text;
    json_t *json = json_loadb(v->text, v->bytes, 0, NULL);
    const char **texts = calloc(n, sizeof *texts);
    int32_t *types = calloc(n, sizeof *types);
    const bool memory = json != NULL && texts != NULL && types != NULL;
    if (memory) {
        put_bpe(g, json, n, texts, types);
        lks__gguf_uint(g, "tokenizer.ggml.bos_token_id", end);
        lks__gguf_uint(g, "tokenizer.ggml.eos_token_id", end);
    }
    free(types);
    free(texts);
    json_decref(json);
    return memory ? LKS_OK : lks__no_memory("for the tokenizer of a GGUF file");
}

/* --- characters ------------------------------------------------------------------------------ */

static void write_characters(const lks__meta *meta, lks__gguf *g)
{
    lks__gguf_string(g, "tokenizer.ggml.model", "rwkv");
    lks__gguf_array(g, "tokenizer.ggml.tokens", LKS__GGUF_STRING, meta->vocab_size);
    for (uint32_t i = 0; i < meta->vocab_size; i++) {
        char text[8];
        if (meta->chars[i] == '\\')
            lks__gguf_text(g, "\\\\", 2);
        else
            lks__gguf_text(g, text, lks__utf8_encode(meta->chars[i], text));
    }
}

lks_status lks__gguf_tokenizer(const lks__export_model *e, lks__gguf *g, size_t *rows_p)
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
        lks__gguf_string(g, "tokenizer.ggml.model", "none");
        lks__gguf_uint(g, "gpt2.vocab_size", (uint32_t)*rows_p);
    }
    free(v.text);
    return st;
}
