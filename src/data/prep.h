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

/* Character tokens: valid UTF-8 (ERR_FORMAT with the offset), CRLF and CR read
 * as LF, ids in code-point order, train = the first int(n * (1 - val_fraction)), computed as
 * int(n * 0.9) for val_fraction 0.1, as nanoGPT's prepare.py has it. Writes train.bin, val.bin
 * (uint16) and meta.json into `out_dir` (made where missing): all three are complete on the disk
 * before the first takes its name, and after a failure the folder is as it was.
 * More than 65,536 different characters, an empty text, a split left empty: ERR_FORMAT.
 * `val_fraction` outside (0, 1): ERR_CONFIG. lks__sys_stop_when() stops it, as a failure. */
lks_status lks__prep_char(const char *input, const char *out_dir, double val_fraction,
                          lks__prep_result *result);

typedef struct lks__prep_spm_options {
    const char *input, *out_dir; /* text or JSON lines: data/docs.h */
    const char *tokenizer;       /* a SentencePiece model to use; NULL or "": train one */
    uint32_t vocab_size;         /* of the one to train, at most 65,536; with a tokenizer it is 0 or
                                  * must be right */
    double val_fraction;         /* the first int(n * val_fraction) documents validate, as in
                                  * parameter-golf's exporter; at least one */
    uint64_t shard_tokens;       /* a shard is filled up to that before the next begins */
    void (*training)(bool on);   /* NULL, or called around the training of a model, which takes long
                                  * and can't be stopped; nothing has been written then */
} lks__prep_spm_options;

enum {
    LKS__PREP_SHARD_TOKENS = 100000000, /* the exporter's */
    LKS__PREP_VOCAB = 1024,
};

/* Tokens of a SentencePiece model, each document as BOS and its ids, in the shards that
 * parameter-golf's exporter makes of the same documents: fineweb_train_000000.bin …,
 * fineweb_val_000000.bin …, and sp.model and meta.json with them. A model is trained on the
 * training documents, up to 256 MiB of them. All files are complete before the first takes its
 * name; shards of another preparation then go. ERR_FORMAT, ERR_CONFIG, ERR_IO, and ERR_SUPPORT
 * without SentencePiece. */
lks_status lks__prep_sentencepiece(const lks__prep_spm_options *options, lks__prep_result *result);

#endif
