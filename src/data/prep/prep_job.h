/* data/prep/prep_job.h - a running preparation: the common functions, and the table of a kind of
 * tokens. */
#pragma once

#include "data/prep/input/texts.h"
#include "data/prep/output/split_writer.h"
#include "data/prep/prep.h"
#include "data/text/meta.h"

typedef struct lks__prep_job {
    const lks__prep_kind *kind;
    lks__prep_options o; /* with the kind's values instead of defaults */
    lks__texts texts;
    lks__staged staged;
    lks__split_writer writer;
    lks__prep_result result;
} lks__prep_job;

struct lks__prep_kind {
    const char *name;
    double val_fraction;   /* default */
    uint64_t shard_tokens; /* default */
    int takes;             /* LKS__PREP_... */
    int keeps; /* LKS__KEEPS_..., parts of the text that stay unchanged: remarks report them */
    bool needs_tokenizer;
    bool raw;        /* char: single bytes in place of characters */
    bool shuffles;   /* bpe: see data/prep/prep_bpe.c */
    const char *get; /* if the input is missing: how to get the text of this name; or NULL */
    /* Read texts, write splits and describe them, with the functions below. */
    lks_status (*run)(lks__prep_job *job);
};

/* Each is a kind's `run`, in the file of the same name. */
lks_status lks__prep_bpe(lks__prep_job *job);
lks_status lks__prep_bytes(lks__prep_job *job);
lks_status lks__prep_char(lks__prep_job *job);
lks_status lks__prep_sentencepiece(lks__prep_job *job);

/* Call first, once the text is checked: creates the folder. */
lks_status lks__prep_begin(lks__prep_job *job, uint32_t vocab_size);
/* Write the splits in any order, each once: lks__split_begin() of job->writer, any number of
 * lks__split_put(), and this function. */
lks_status lks__prep_end_split(lks__prep_job *job);
/* Call last: writes meta.json. */
lks_status lks__prep_describe(lks__prep_job *job, const lks__meta *meta);

/* Count a document for the result, once. */
void lks__prep_count(lks__prep_job *job, uint64_t bytes);
void lks__prep_progress(const lks__prep_job *job, uint64_t done, uint64_t all);
/* A name of the whole input for messages; valid until the thread's next call. */
const char *lks__prep_input(const lks__prep_job *job);
/* Failures: ERR_FORMAT without text, ERR_IO if a second pass finds other text. */
lks_status lks__prep_empty(const lks__prep_job *job);
lks_status lks__prep_changed(const lks__prep_job *job);
/* Number of characters (or bytes) for training, out of n. ERR_FORMAT if a split would be empty. */
lks_status lks__prep_split(const lks__prep_job *job, uint64_t n, uint64_t *n_train_p);
/* Number of validation documents out of n: int(n * val_fraction), at least one. ERR_FORMAT for a
 * single document, which would have to be in both splits. `hint` ends the message. */
lks_status lks__prep_val_documents(const lks__prep_job *job, uint64_t n, const char *hint,
                                   uint64_t *n_val_p);
