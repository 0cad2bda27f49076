/* lockstep export --format=hf: the tokenizer of a Hugging Face folder: GPT-2's vocabulary
 * unchanged, and characters as a vocabulary of words of one character. */
#include <stdio.h>
#include <stdlib.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "weights/export/hf.h"

#define TOKENIZER "tokenizer.json"
#define END       "<|endoftext|>"

static lks_status write_config(const lks__export_model *e, const char *kind, bool has_end)
{
    const char *end = has_end ? END : NULL; /* "s*" leaves it out then */
    json_t *json =
        json_pack("{s:s, s:i, s:b, s:s*, s:s*, s:s*}", "tokenizer_class", kind, "model_max_length",
                  e->config.block_size, "clean_up_tokenization_spaces", 0, "bos_token", end,
                  "eos_token", end, "unk_token", end);
    return lks__export_hf_json(e, "tokenizer_config.json", json);
}

/* --- GPT-2's --------------------------------------------------------------------------------- */

static lks_status write_vocabulary(const lks__export_model *e, const lks__export_vocabulary *v)
{
    char path[LKS__SETTING_STR + 64];
    snprintf(path, sizeof path, "%s/" TOKENIZER, e->s->out);
    LKS__TRY(lks__sys_write_file(path, v->text, v->bytes));
    return write_config(e, "GPT2Tokenizer", v->end_of_text >= 0);
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
static lks_status write_characters(const lks__export_model *e, const lks__meta *meta)
{
    json_t *json = json_pack(
        "{s:s, s:n, s:n, s:[], s:{s:s, s:[o, o]}, s:{s:s, s:{s:s}, s:s, s:b}, s:n, s:{s:s}, "
        "s:{s:s, s:o, s:s}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "type", "Sequence",
        "normalizers", replacement("\r\n"), replacement("\r"), "pre_tokenizer", "type", "Split",
        "pattern", "Regex", "[\\s\\S]", "behavior", "Isolated", "invert", 0, "post_processor",
        "decoder", "type", "Fuse", "model", "type", "WordLevel", "vocab", characters(meta),
        "unk_token", "<unk>");
    LKS__TRY(lks__export_hf_json(e, TOKENIZER, json));
    return write_config(e, "PreTrainedTokenizerFast", false);
}

static lks_status write_tokenizer(const lks__export_model *e, int32_t *end_of_text_p)
{
    lks__export_vocabulary v;
    LKS__TRY(lks__export_tokenizer(e, &v));
    if (v.characters)
        return write_characters(e, &e->meta);
    *end_of_text_p = v.end_of_text;
    const lks_status st = v.text != NULL ? write_vocabulary(e, &v) : LKS_OK;
    free(v.text);
    return st;
}

lks_status lks__export_hf_tokenizer(const lks__export_model *e, int32_t *end_of_text_p)
{
    /* The other forms and parts of a tokenizer: loaders would combine them with the new one. */
    static const char *const files[] = {TOKENIZER,
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt"};
    *end_of_text_p = -1;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        LKS__TRY(lks__export_hf_remove(e, files[i]));
    return write_tokenizer(e, end_of_text_p);
}
