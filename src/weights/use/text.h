/* weights/use/text.h - text to a model's tokens and back, with the tokenizer of its data: a
 * character table, a SentencePiece model, GPT-2's vocabulary, or single bytes. */
#pragma once

#include "base/text/utf8_stream.h"
#include "data/text/bpe/bpe.h"
#include "data/text/sentencepiece/spm.h"
#include "weights/use/replica.h"

typedef struct lks__text {
    const lks__meta *meta; /* the replica's, or `own` */
    lks__meta *own;        /* read from a folder with characters or bytes; or NULL */
    lks__spm *spm;         /* or NULL */
    lks__bpe *bpe;         /* or NULL */
    bool special;          /* read a special token's spelling as that token; the caller may set it.
                              ERR_CONFIG for tokens other than GPT-2's */
} lks__text;

/* Open the tokenizer of the model in `r`, which stays open. `path`: a SentencePiece model, a folder
 * or file with GPT-2's vocabulary, a folder of data with meta.json or meta.pkl, or the data
 * script's description of single bytes; "": the one that the run keeps, if any. ERR_CONFIG if the
 * model was trained with another one. Close it in any case. */
lks_status lks__text_open(const char *path, const lks__replica *r, lks__text *t);
void lks__text_close(lks__text *t);       /* a zeroed one does nothing */
bool lks__text_known(const lks__text *t); /* false: there is no tokenizer */

/* Convert text to ids, with a known tokenizer (malloc'd, the caller frees); there may be 0. */
lks_status lks__text_encode(const lks__text *t, const char *text, size_t bytes, int32_t **ids_p,
                            size_t *n_p);
/* Add the text of one id to `out`. Fails only if the stream does. */
lks_status lks__text_add(const lks__text *t, int32_t id, lks__utf8_stream *out);
/* has[id] for V ids (malloc'd, the caller frees): true if the tokenizer has the id. */
lks_status lks__text_ids(const lks__text *t, size_t V, bool **has_p);
/* True if the tokenizer has this id. A model's vocabulary may be padded beyond its tokenizer's. */
bool lks__text_has(const lks__text *t, int32_t id);
