/* data/prep/prep_bytes.c - `lockstep prep bytes`: parameter-golf's single-byte tokens. */
#include <stdlib.h>

#include "data/prep/prep_docs.h"
#include "data/text/byte_tokens.h"

static lks_status encode(void *ctx, const char *text, size_t bytes, int32_t **ids_p, size_t *n_p)
{
    int32_t *ids = malloc((bytes + 1) * sizeof *ids);
    LKS__MEMORY(ids, "for the ids of %zu bytes of text", bytes);
    lks__byte_tokens(text, bytes, ids);
    *ids_p = ids;
    *n_p = bytes;
    return LKS_OK;
}

static lks_status write_all(lks__prep_docs *d)
{
    const lks__meta meta = {.vocab_size = LKS__BYTE_TOKENS, .is_bytes = true};
    LKS__TRY(lks__prep_docs_write(d, LKS__BYTE_TOKENS, LKS__BYTE_BOS, encode, NULL));
    return lks__prep_describe(d->job, &meta);
}

lks_status lks__prep_bytes(lks__prep_job *job)
{
    lks__prep_docs d;
    lks_status st = lks__prep_docs_open(job, true, &d);
    LKS__THEN(st, write_all(&d));
    lks__prep_docs_close(&d);
    return st;
}
