/* weights/artifact/read.c - reads artifacts: the code for both formats, and lockstep's earlier
 * format, a safetensors container under zlib. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "files/zip/unzip.h"
#include "weights/artifact/artifact.h"
#include "weights/artifact/layout.h"
#include "weights/artifact/saved.h"

enum { MAX_HEADER = 4 << 20 };

struct lks__artifact_stream {
    lks__unzip zip;
    lks__st_file *head;         /* of the earlier format */
    lks__artifact_saved *saved; /* of torch.save's format */
};

typedef struct lks__artifact_stream stream;

static lks_status bad(const stream *s, const char *what)
{
    return lks__unzip_bad(&s->zip, what);
}

static lks_status bad_tensor(const stream *s, const char *name, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: tensor %s %s", s->zip.shown, name,
                     what);
}

/* ---- the header ------------------------------------------------------------------------------ */

static lks_status read_head(stream *s, uint64_t length)
{
    if (length > MAX_HEADER)
        return bad(s, "its header's length is over the limit of 4 MiB");
    char *text = malloc(length + 1);
    LKS__MEMORY(text, "for the header of %s", s->zip.shown);
    lks_status st = lks__unzip_exactly(&s->zip, text, length);
    LKS__THEN(st, lks__st_parse(s->zip.shown, text, length, &s->head));
    free(text);
    return st;
}

static lks_status text_is(const stream *s, const char *key, const char *expected)
{
    char why[120];
    const char *text = lks__st_metadata(s->head, key);
    if (text && strcmp(text, expected) == 0)
        return LKS_OK;
    snprintf(why, sizeof why, "its %s is not %s", key, expected);
    return bad(s, why);
}

static lks_status object_at(const stream *s, const char *key, bool needed, json_t **object_p)
{
    const char *text = lks__st_metadata(s->head, key);
    *object_p = NULL;
    if (!text && !needed)
        return LKS_OK;
    return lks__artifact_object(s->zip.shown, key, text, text ? strlen(text) : 0, object_p);
}

static lks_status iter_of(const stream *s, uint64_t *iter_p)
{
    const char *text = lks__st_metadata(s->head, LKS__ARTIFACT_ITER);
    size_t n = text ? strspn(text, "0123456789") : 0;
    if (n == 0 || n > 19 || text[n] != '\0')
        return bad(s, "its iter is not a count");
    *iter_p = strtoull(text, NULL, 10);
    return LKS_OK;
}

/* The earlier format, after the length of its header. */
static lks_status open_container(stream *s, uint64_t length, lks__artifact *a)
{
    LKS__TRY(read_head(s, length));
    LKS__TRY(text_is(s, LKS__ARTIFACT_FORMAT, LKS__QUANT_FORMAT));
    LKS__TRY(text_is(s, LKS__ARTIFACT_DTYPE, "F32"));
    LKS__TRY(iter_of(s, &a->iter));
    LKS__TRY(object_at(s, LKS__ARTIFACT_SETTINGS, true, &a->settings));
    return object_at(s, LKS__ARTIFACT_TOKENIZER, false, &a->tokenizer);
}

static lks_status open_any(const char *path, lks__artifact *a)
{
    uint64_t start;
    stream *s = a->stream;
    LKS__TRY(lks__unzip_open(path, &s->zip));
    LKS__TRY(lks__unzip_exactly(&s->zip, &start, sizeof start));
    if (memcmp(&start, "PK\3\4", 4) != 0)
        return open_container(s, start, a);
    LKS__TRY(lks__artifact_saved_open(&s->zip, start, &s->saved));
    return lks__artifact_saved_about(s->saved, a);
}

lks_status lks__artifact_open(const char *path, lks__artifact *artifact)
{
    lks__artifact a = {.stream = calloc(1, sizeof(stream))};
    LKS__MEMORY(a.stream, "to open an artifact");
    a.stream->zip.fd = -1;
    lks_status st = open_any(path, &a);
    if (st == LKS_OK)
        *artifact = a;
    else
        lks__artifact_close(&a);
    return st;
}

void lks__artifact_close(lks__artifact *a)
{
    stream *s = a->stream;
    if (s) {
        lks__unzip_close(&s->zip);
        lks__st_close(s->head);
        lks__artifact_saved_close(s->saved);
        free(s);
    }
    json_decref(a->settings);
    json_decref(a->tokenizer);
    memset(a, 0, sizeof *a);
}

/* ---- the tensors ----------------------------------------------------------------------------- */

/* Check that entry *at of the container is `expected`, and advance to the next. */
static lks_status check_entry(const stream *s, const lks__st_tensor *expected, size_t *at,
                              uint64_t *total)
{
    const lks__st_tensor *found = lks__st_get(s->head, *at);
    if (!found || strcmp(found->name, expected->name) != 0)
        return bad_tensor(s, expected->name, "is missing, or in the wrong position");
    if (!lks__st_has_form(found, expected->dtype, expected->n_dims, expected->shape))
        return bad_tensor(s, expected->name, "has another type or shape than its settings require");
    ++*at;
    return lks__add(*total, expected->bytes, total) ? LKS_OK : bad(s, "its size overflows");
}

bool lks__artifact_shape(const lks__artifact *a, const char *name, uint64_t shape[2])
{
    return a->stream->saved && lks__artifact_saved_shape(a->stream->saved, name, shape);
}

lks_status lks__artifact_check(const lks__artifact *a, const lks__table *table)
{
    const stream *s = a->stream;
    uint64_t total = 0;
    size_t at = 0;
    lks__artifact_part part;
    if (s->saved)
        return lks__artifact_saved_check(s->saved, table);
    for (size_t i = 0; i < table->n_tensors; i++) {
        lks__artifact_part_of(&table->tensors[i], &part);
        LKS__TRY(check_entry(s, &part.values, &at, &total));
        if (part.has_scales)
            LKS__TRY(check_entry(s, &part.scales, &at, &total));
    }
    if (lks__st_count(s->head) != at)
        return bad(s, "it has more tensors than its settings require");
    if (total / LKS__UNZIP_RATIO > s->zip.file_bytes)
        return bad(s, "it is too short for the model of its settings");
    return LKS_OK;
}

static lks_status read_part(stream *s, const lks__artifact_part *part, char *buffer, float *params)
{
    char *scales = buffer + lks__artifact_part_scales_at(part);
    LKS__TRY(lks__unzip_exactly(&s->zip, buffer, part->values.bytes));
    if (part->has_scales)
        LKS__TRY(lks__unzip_exactly(&s->zip, scales, part->scales.bytes));
    lks_status st = lks__dequantize(part->scheme, buffer, scales, part->rows, part->cols,
                                    params + part->tensor->offset);
    if (st == LKS_ERR_FORMAT)
        return lks__fail_in(st, "%s: tensor %s", s->zip.shown, part->tensor->name);
    return st;
}

lks_status lks__artifact_read(lks__artifact *a, const lks__table *table, float *params)
{
    stream *s = a->stream;
    lks_status st = LKS_OK;
    lks__artifact_part part;
    LKS__TRY(lks__artifact_check(a, table));
    if (s->saved)
        return lks__artifact_saved_read(s->saved, table, params);
    char *buffer = malloc(lks__part_room(table));
    LKS__MEMORY(buffer, "to decompress %s", s->zip.shown);
    for (size_t i = 0; i < table->n_tensors && st == LKS_OK; i++) {
        lks__artifact_part_of(&table->tensors[i], &part);
        st = read_part(s, &part, buffer, params);
    }
    free(buffer);
    return st == LKS_OK ? lks__unzip_end(&s->zip) : st;
}
