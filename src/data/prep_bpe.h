/* data/prep_bpe.h - text to token files of GPT-2's vocabulary: `lockstep prep gpt2`. */
#ifndef LKS_DATA_PREP_BPE_H
#define LKS_DATA_PREP_BPE_H

#include "data/prep.h"

typedef struct lks__prep_bpe_options {
    /* A file, or a folder whose files (in the order of their names; those that begin with a dot are
     * left out) are read. A file NAME.jsonl has a document a line; any other file is one document,
     * byte for byte. */
    const char *input;
    const char *out_dir;
    const char *tokenizer; /* the vocabulary, as lks__bpe_open() takes it */
    const char *field;     /* of JSON lines: the member that has the text */
    /* A single plain file: its first int(n * (1 - val_fraction)) characters are for training, as in
     * nanoGPT's prepare.py for shakespeare. Else the first int(n * val_fraction) documents, at
     * least one, are for validation. 0: none are, and there is no val.bin. */
    double val_fraction;
    int n_threads;
    /* NULL, or told now and then how many of how many bytes have been encoded. */
    void (*progress)(uint64_t done, uint64_t all);
} lks__prep_bpe_options;

/* Writes train.bin and val.bin (uint16), tokenizer.json and meta.json into out_dir (created if
 * missing). <|endoftext|> follows each document, if there are several or JSON lines; a single plain
 * file gets none. An empty input gives empty files. All files are complete on disk before the first
 * gets its name. Memory doesn't grow with the text, but with its longest run of characters without
 * white space, and with its longest line of JSON. ERR_FORMAT, ERR_CONFIG, ERR_IO, ERR_NOMEM. */
lks_status lks__prep_bpe(const lks__prep_bpe_options *options, lks__prep_result *result);

#endif
