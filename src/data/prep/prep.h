/* data/prep/prep.h - text to token files: `lockstep prep`.
 *
 * All kinds of tokens read the same inputs (data/prep/input/texts.h) and write the same forms of
 * files (data/prep/output/split_writer.h), with meta.json, which names the tokenizer. All files are
 * complete on disk before the first gets its name; after a failure the folder is as it was before.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/text/meta.h"

typedef struct lks__prep_result {
    uint32_t vocab_size;
    uint64_t n_train, n_val;
    uint64_t n_docs, n_empty; /* at most 1 for a text that isn't divided into documents */
} lks__prep_result;

typedef struct lks__prep_options {
    const char *input;   /* see lks__texts_open() */
    const char *out_dir; /* created if missing */
    const char *field;   /* JSON lines: the member that contains the text; NULL: "text" */
    bool field_given;    /* then standard input contains JSON lines; ERR_CONFIG if no input does */
    /* gpt2 and sentencepiece: the vocabulary's folder or the model; "" or NULL: none */
    const char *tokenizer;
    const lks__meta *chars; /* char: number the characters as here; NULL: as they occur */
    uint32_t vocab_size;    /* sentencepiece: size to train; with a tokenizer 0 or its size */
    bool special;           /* gpt2: a special token's spelling in the text becomes that token */
    double val_fraction;    /* 0: no validation split; negative: the kind's default */
    /* Documents for validation, instead of val_fraction, and documents to train a sentencepiece
     * model on; 0: no limit. */
    uint64_t val_docs, train_docs;
    uint64_t shard_tokens; /* per full shard; 0: train.bin and val.bin, or the kind's own form */
    int n_threads;         /* 0: 1 */
    /* Each may be NULL. progress: called now and then with the bytes done and the total. note:
     * called with a sentence about something in the input that the user may not want. The third is
     * called before and after the training of a model, which takes long and can't be stopped;
     * nothing has been written yet. */
    void (*progress)(uint64_t done, uint64_t all);
    void (*note)(const char *sentence);
    void (*training)(bool on);
} lks__prep_options;

typedef struct lks__prep_kind lks__prep_kind;

/* "char", "gpt2", ...; NULL if the kind is unknown. The table is in prep_run.c. */
const lks__prep_kind *lks__prep_kind_of(const char *name);
const char *lks__prep_kind_name(int i); /* name of the i-th kind; NULL after the last */
/* Guess the kind for a text: char, or raw if it isn't UTF-8, with the first such byte in
 * lks_last_error(). Reads the whole text. ERR_FORMAT if it is empty, a compressed file, or not text
 * (it contains a byte of value 0). */
lks_status lks__prep_guess(const char *input, const char **kind_p);

/* The options among `tokenizer`, `vocab_size`, `special`, `val_docs` and `train_docs` that the kind
 * uses. */
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
 * follows each document that doesn't end in one. ERR_FORMAT for more than 65,536 different
 * characters, one that isn't among given `chars`, an empty text or an empty split. The text is read
 * twice, in pieces.
 *
 * gpt2, shakespeare, openwebtext: see data/prep/prep_bpe.c.
 *
 * sentencepiece: tokens of a given model, or of one trained on the training documents, up to 256
 * MiB of them. Each document becomes BOS and its ids. The first int(n * val_fraction) documents, at
 * least one, are for validation, as in parameter-golf's exporter, which also defines the shards'
 * format.
 *
 * bytes: like sentencepiece, with that exporter's single-byte tokens (data/text/byte_tokens.h).
 *
 * raw: single-byte tokens without BOS, of one text that is kept byte for byte, split as by char.
 *
 * ERR_FORMAT, ERR_CONFIG (val_fraction not in [0, 1), a vocabulary too large for the files),
 * ERR_IO, ERR_NOMEM, and ERR_SUPPORT without SentencePiece. A stop by lks__sys_stop_when() counts
 * as a failure. */
lks_status lks__prep(const lks__prep_kind *kind, const lks__prep_options *options,
                     lks__prep_result *result);

enum {
    LKS__PREP_SHARD_TOKENS = 100000000, /* as in parameter-golf's exporter */
    LKS__PREP_VOCAB = 1024,
};
