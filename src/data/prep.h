/* data/prep.h - text to token files: `lockstep prep char`, `lockstep prep sentencepiece`. */
#ifndef LKS_DATA_PREP_H
#define LKS_DATA_PREP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__prep_result {
    uint32_t vocab_size;
    uint64_t n_train, n_val;
} lks__prep_result;

/* Character tokens: valid UTF-8 (ERR_FORMAT with the offset), CRLF and CR read as LF, ids in
 * code-point order. The first int(n * (1 - val_fraction)) characters are for training; with
 * val_fraction 0.1 that is int(n * 0.9), as in nanoGPT's prepare.py. Writes train.bin, val.bin
 * (uint16) and meta.json into `out_dir` (created if missing). All three are complete on disk before
 * the first gets its name; after a failure the folder is as it was before. More than 65,536
 * different characters, an empty text, an empty split: ERR_FORMAT. `val_fraction` outside (0, 1):
 * ERR_CONFIG. A stop by lks__sys_stop_when() counts as a failure. */
lks_status lks__prep_char(const char *input, const char *out_dir, double val_fraction,
                          lks__prep_result *result);

typedef struct lks__prep_spm_options {
    const char *input, *out_dir; /* text or JSON lines: data/docs.h */
    const char *field;           /* of JSON lines: the member that has the text; NULL: "text" */
    const char *tokenizer;       /* a SentencePiece model to use; NULL or "": train one */
    uint32_t vocab_size; /* of the model to train, at most 65,536; with a tokenizer 0 or its size */
    double val_fraction; /* the first int(n * val_fraction) documents, at least one, are for
                            validation, as in parameter-golf's exporter */
    uint64_t shard_tokens; /* tokens of a full shard; then the next begins */
    void (*training)(
        bool on); /* NULL, or called before and after the training of a model, which takes long and
                     can't be stopped; nothing has been written at that time */
} lks__prep_spm_options;

enum {
    LKS__PREP_SHARD_TOKENS = 100000000, /* the exporter's value */
    LKS__PREP_VOCAB = 1024,
};

/* Tokens of a SentencePiece model; each document becomes BOS and its ids. Writes the shards that
 * parameter-golf's exporter makes of the same documents, fineweb_train_000000.bin …,
 * fineweb_val_000000.bin …, with sp.model and meta.json. A model is trained on the training
 * documents, up to 256 MiB of them. All files are complete before the first gets its name; then
 * shards of an earlier preparation are removed. ERR_FORMAT, ERR_CONFIG, ERR_IO, and ERR_SUPPORT
 * without SentencePiece. */
lks_status lks__prep_sentencepiece(const lks__prep_spm_options *options, lks__prep_result *result);

#endif
