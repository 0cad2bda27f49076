/* data/prep/prep.h - text to token files: `lockstep prep`.
 *
 * All kinds of tokens read the same inputs (data/prep/input/texts.h) and write the same forms of
 * files (data/prep/output/split_writer.h), with meta.json, which names the tokenizer. All files are
 * complete on disk before the first gets its name; after a failure the folder is as it was before.
 */
#ifndef LKS_DATA_PREP_PREP_H
#define LKS_DATA_PREP_PREP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__prep_result {
    uint32_t vocab_size;
    uint64_t n_train, n_val;
} lks__prep_result;

typedef struct lks__prep_options {
    const char *input;   /* as lks__texts_open() takes it */
    const char *out_dir; /* created if missing */
    const char *field;   /* of JSON lines: the member that has the text; NULL: "text" */
    bool stdin_lines;    /* standard input has JSON lines */
    /* char and sentencepiece: the model or the folder with the vocabulary; "" or NULL: none */
    const char *tokenizer;
    uint32_t vocab_size; /* sentencepiece: of the model to train; with a tokenizer 0 or its size */
    bool special;        /* gpt2: the spelling of a special token in the text is that token */
    double val_fraction; /* 0: no validation split; under 0: what the kind does by default */
    /* Documents for validation, in place of val_fraction, and those that sentencepiece trains a
     * model on; 0: not limited. */
    uint64_t val_docs, train_docs;
    uint64_t shard_tokens; /* of a full shard; 0: train.bin and val.bin, or the kind's own form */
    int n_threads;         /* 0: 1 */
    /* Each NULL, or called: with how many of how many bytes are done, now and then; with a sentence
     * about something in the input that the user may not want; before and after the training of a
     * model, which takes long and can't be stopped, while nothing has been written. */
    void (*progress)(uint64_t done, uint64_t all);
    void (*note)(const char *sentence);
    void (*training)(bool on);
} lks__prep_options;

typedef struct lks__prep_kind lks__prep_kind;

/* "char", "gpt2", ...; NULL if there is no such kind. The table is prep.c's. */
const lks__prep_kind *lks__prep_kind_of(const char *name);
const char *lks__prep_kind_name(int i); /* of the i-th one; NULL behind the last */
/* The kind for a text that a user gives without one: char, or raw if it isn't UTF-8. Reads all of
 * it. ERR_FORMAT if it is empty, a compressed file, or no text (it has a byte of value 0). */
lks_status lks__prep_guess(const char *input, const char **kind_p);

/* Does `tokenizer`, `vocab_size`, `special`, `val_docs` or `train_docs` mean anything to this kind?
 */
enum {
    LKS__PREP_TOKENIZER = 1,
    LKS__PREP_VOCAB_SIZE = 2,
    LKS__PREP_SPECIAL = 4,
    LKS__PREP_VAL_DOCS = 8,
    LKS__PREP_TRAIN_DOCS = 16,
};
bool lks__prep_takes(const lks__prep_kind *kind, int what);

/* char: valid UTF-8, CRLF and CR read as LF, ids in code-point order. The first int(n * (1 -
 * val_fraction)) characters are for training; with val_fraction 0.1 that is int(n * 0.9), as in
 * nanoGPT's prepare.py. Several documents (files, JSON lines) are one text, in which a line feed
 * follows each that doesn't end in one. More than 65,536 different characters, an empty text, an
 * empty split: ERR_FORMAT. The text is read twice, in pieces.
 *
 * gpt2, shakespeare: see data/prep/prep_bpe.h; openwebtext: there, too.
 *
 * sentencepiece: tokens of a model that is given or trained on the training documents, up to 256
 * MiB of them. Each document becomes BOS and its ids; the first int(n * val_fraction) documents, at
 * least one, are for validation, as in parameter-golf's exporter, whose shards these are.
 *
 * bytes: the same with that exporter's tokens of single bytes (data/text/byte_tokens.h).
 *
 * raw: those tokens without BOS, of one text that is kept byte for byte, split as char does.
 *
 * ERR_FORMAT, ERR_CONFIG (val_fraction not in [0, 1), a vocabulary too large for the files),
 * ERR_IO, ERR_NOMEM, and ERR_SUPPORT without SentencePiece. A stop by lks__sys_stop_when() counts
 * as a failure. */
lks_status lks__prep(const lks__prep_kind *kind, const lks__prep_options *options,
                     lks__prep_result *result);

enum {
    LKS__PREP_SHARD_TOKENS = 100000000, /* parameter-golf's exporter's */
    LKS__PREP_VOCAB = 1024,
};

#endif
