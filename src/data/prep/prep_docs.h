/* data/prep/prep_docs.h - prepares documents as parameter-golf's exporter does: each becomes BOS
 * and its ids, and the first ones are for validation. */
#pragma once

#include "data/prep/input/docs.h"
#include "data/prep/prep_job.h"

typedef struct lks__prep_docs {
    lks__prep_job *job;
    lks__docs *docs;
    uint64_t n, n_val;
} lks__prep_docs;

/* Open the input and count its documents; ERR_FORMAT if there is none. Always close it, also after
 * a failure. */
lks_status lks__prep_docs_open(lks__prep_job *job, bool any_bytes, lks__prep_docs *d);
void lks__prep_docs_close(lks__prep_docs *d);

/* Encode a document: its ids, malloc'd, without BOS. */
typedef lks_status lks__prep_encode(void *ctx, const char *text, size_t bytes, int32_t **ids_p,
                                    size_t *n_p);

/* Write all splits, with lks__prep_begin() and the functions after it. */
lks_status lks__prep_docs_write(lks__prep_docs *d, uint32_t vocab_size, int32_t bos,
                                lks__prep_encode *encode, void *ctx);
