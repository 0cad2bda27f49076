#include "data/prep/prep_docs.h"

#include <stdlib.h>

#include "data/read/sampler.h"

/* Report the progress of the two passes over the text; `pass` is 0 or 1. */
static void show_progress(const lks__prep_docs *d, int pass)
{
    const uint64_t bytes = d->job->texts.bytes;
    lks__prep_progress(d->job, (uint64_t)pass * bytes + lks__docs_done(d->docs), 2 * bytes);
}

static lks_status count(lks__prep_docs *d)
{
    for (bool found = true;; d->n++) {
        LKS__TRY(lks__docs_skip(d->docs, &found));
        if (!found)
            break;
        show_progress(d, 0);
    }
    if (d->n == 0)
        return lks__prep_empty(d->job);
    return lks__prep_val_documents(d->job, d->n,
                                   "separate documents by blank lines, or give JSON lines (in a "
                                   "file NAME.jsonl), or --val_fraction=0",
                                   &d->n_val);
}

lks_status lks__prep_docs_open(lks__prep_job *job, bool any_bytes, lks__prep_docs *d)
{
    *d = (lks__prep_docs){.job = job};
    LKS__TRY(lks__docs_open(&job->texts, 0, job->texts.n, job->o.field, &d->docs));
    if (any_bytes)
        lks__docs_any_bytes(d->docs);
    return count(d);
}

void lks__prep_docs_close(lks__prep_docs *d)
{
    lks__docs_close(d->docs);
}

struct encoding {
    int32_t bos;
    lks__prep_encode *encode;
    void *ctx;
};

static lks_status put_doc(lks__prep_docs *d, const struct encoding *e, const char *text,
                          size_t bytes)
{
    int32_t *ids;
    size_t n;
    lks__prep_count(d->job, bytes);
    LKS__TRY(lks__split_put(&d->job->writer, &e->bos, 1));
    LKS__TRY(e->encode(e->ctx, text, bytes, &ids, &n));
    lks_status st = lks__split_put(&d->job->writer, ids, n);
    free(ids);
    return st;
}

/* Write the next n documents as a split. */
static lks_status write_split(lks__prep_docs *d, const struct encoding *e, int split, uint64_t n)
{
    const char *text;
    size_t bytes;
    LKS__TRY(lks__split_begin(&d->job->writer, split));
    for (; n > 0; n--) {
        LKS__TRY(lks__docs_next(d->docs, &text, &bytes));
        if (text == NULL)
            return lks__prep_changed(d->job);
        LKS__TRY(put_doc(d, e, text, bytes));
        show_progress(d, 1);
    }
    return lks__prep_end_split(d->job);
}

lks_status lks__prep_docs_write(lks__prep_docs *d, uint32_t vocab_size, int32_t bos,
                                lks__prep_encode *encode, void *ctx)
{
    const struct encoding e = {bos, encode, ctx};
    LKS__TRY(lks__prep_begin(d->job, vocab_size));
    lks__docs_rewind(d->docs);
    if (d->job->o.val_fraction > 0.0)
        LKS__TRY(write_split(d, &e, LKS__SPLIT_VAL, d->n_val));
    return write_split(d, &e, LKS__SPLIT_TRAIN, d->n - d->n_val);
}
