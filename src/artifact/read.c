#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "artifact/artifact.h"
#include "artifact/layout.h"
#include "base/checked.h"
#include "base/jsontext.h"
#include "base/sys.h"

enum {
    PIECE = 1 << 16,
    MAX_HEADER = 4 << 20,
    MAX_RATIO = 1032 /* deflate's limit: a match of 258 bytes takes at least 2 bits */
};

struct lks__artifact_stream {
    int fd;
    char shown[512];         /* the path, safe to print */
    uint64_t file_bytes, at; /* at: bytes read so far */
    z_stream z;
    bool inflating;
    lks__st_file *head;
    unsigned char piece[PIECE];
};

typedef struct lks__artifact_stream stream;

static lks_status bad(const stream *s, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: %s", s->shown, what);
}

static lks_status bad_tensor(const stream *s, const char *name, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: tensor %s %s", s->shown, name,
                     what);
}

/* ---- zlib ------------------------------------------------------------------------------------ */

/* Read the next piece. It is empty at the end of the file, when zlib may still have output left. */
static lks_status next_piece(stream *s)
{
    uint64_t left = s->file_bytes - s->at;
    size_t bytes = left < PIECE ? (size_t)left : PIECE;
    if (bytes == 0)
        return LKS_OK;
    if (lks__sys_read_at(s->fd, s->piece, bytes, s->at) < 0) {
        if (errno == 0)
            return bad(s, "it was cut while it was read");
        return lks__fail(LKS_ERR_IO, "cannot read %s: %s", s->shown, strerror(errno));
    }
    s->at += bytes;
    s->z.next_in = s->piece;
    s->z.avail_in = (uInt)bytes;
    return LKS_OK;
}

/* Decompress until out[bytes] is full or the stream ends; *got_p is the number of bytes. */
static lks_status inflate_some(stream *s, void *out, size_t bytes, size_t *got_p, bool *end_p)
{
    size_t got = 0;
    *end_p = false;
    while (!*end_p && got < bytes) {
        size_t room = bytes - got < PIECE ? bytes - got : PIECE;
        if (s->z.avail_in == 0)
            LKS__TRY(next_piece(s));
        s->z.next_out = (unsigned char *)out + got;
        s->z.avail_out = (uInt)room;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        got += room - s->z.avail_out;
        if (rc == Z_MEM_ERROR)
            return lks__fail(LKS_ERR_NOMEM, "no memory to decompress %s", s->shown);
        if (rc == Z_BUF_ERROR && s->at == s->file_bytes)
            return bad(s, "it is truncated");
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return bad(s, "it is damaged, or not compressed by zlib");
        *end_p = rc == Z_STREAM_END;
    }
    *got_p = got;
    return LKS_OK;
}

static lks_status inflate_exactly(stream *s, void *out, size_t bytes)
{
    size_t got;
    bool end;
    LKS__TRY(inflate_some(s, out, bytes, &got, &end));
    return got == bytes ? LKS_OK : bad(s, "its data end too early");
}

/* Check that the stream ends here with the right checksum, and the file with it. */
static lks_status inflate_end(stream *s)
{
    char more;
    size_t got;
    bool end;
    LKS__TRY(inflate_some(s, &more, 1, &got, &end));
    if (got > 0)
        return bad(s, "data follow its last tensor");
    if (s->z.avail_in > 0 || s->at < s->file_bytes)
        return bad(s, "bytes follow the compressed data");
    return LKS_OK;
}

/* ---- the header ------------------------------------------------------------------------------ */

static lks_status read_head(stream *s)
{
    uint64_t length;
    LKS__TRY(inflate_exactly(s, &length, sizeof length));
    if (length > MAX_HEADER)
        return bad(s, "its header's length is over the limit of 4 MiB");
    char *text = malloc(length + 1);
    if (!text)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the header of %s", s->shown);
    lks_status st = inflate_exactly(s, text, length);
    if (st == LKS_OK)
        st = lks__st_parse(s->shown, text, length, &s->head);
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
    char why[120];
    const char *text = lks__st_metadata(s->head, key);
    *object_p = NULL;
    if (!text && !needed)
        return LKS_OK;
    json_error_t error = {.text = "it has none"};
    json_t *object =
        text ? lks__json_load(text, strlen(text), JSON_REJECT_DUPLICATES, &error) : NULL;
    if (!object && lks__json_no_memory(&error))
        return lks__fail(LKS_ERR_NOMEM, "no memory for the %s of %s", key, s->shown);
    if (json_is_object(object)) {
        *object_p = object;
        return LKS_OK;
    }
    json_decref(object);
    snprintf(why, sizeof why, "its %s are no JSON object", key);
    return bad(s, why);
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

static lks_status open_stream(const char *path, stream *s)
{
    struct stat info;
    lks__escape(s->shown, sizeof s->shown, path, strlen(path));
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    s->fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (s->fd < 0)
        return lks__sys_fail("cannot open", path);
    if (fstat(s->fd, &info) < 0)
        return lks__sys_fail("cannot read", path);
    if (!S_ISREG(info.st_mode))
        return lks__fail(LKS_ERR_IO, "cannot read %s: it is not a regular file", s->shown);
    s->file_bytes = (uint64_t)info.st_size;
    s->inflating = inflateInit(&s->z) == Z_OK;
    return s->inflating ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "no memory to decompress %s", s->shown);
}

lks_status lks__artifact_open(const char *path, lks__artifact *artifact)
{
    lks__artifact a = {.stream = calloc(1, sizeof(stream))};
    if (!a.stream)
        return lks__fail(LKS_ERR_NOMEM, "no memory to open an artifact");
    lks_status st = open_stream(path, a.stream);
    if (st == LKS_OK)
        st = read_head(a.stream);
    if (st == LKS_OK)
        st = text_is(a.stream, LKS__ARTIFACT_FORMAT, LKS__QUANT_FORMAT);
    if (st == LKS_OK)
        st = text_is(a.stream, LKS__ARTIFACT_DTYPE, "F32");
    if (st == LKS_OK)
        st = iter_of(a.stream, &a.iter);
    if (st == LKS_OK)
        st = object_at(a.stream, LKS__ARTIFACT_SETTINGS, true, &a.settings);
    if (st == LKS_OK)
        st = object_at(a.stream, LKS__ARTIFACT_TOKENIZER, false, &a.tokenizer);
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
        if (s->inflating)
            inflateEnd(&s->z);
        if (s->fd >= 0)
            lks__sys_close(s->fd);
        lks__st_close(s->head);
        free(s);
    }
    json_decref(a->settings);
    json_decref(a->tokenizer);
    memset(a, 0, sizeof *a);
}

/* ---- the tensors ----------------------------------------------------------------------------- */

static bool same(const lks__st_tensor *found, const lks__st_tensor *expected)
{
    bool is = strcmp(found->dtype, expected->dtype) == 0 && found->n_dims == expected->n_dims;
    for (int d = 0; is && d < expected->n_dims; d++)
        is = found->shape[d] == expected->shape[d];
    return is && found->bytes == expected->bytes;
}

/* Check that entry *at of the container is `expected`, and go on to the next. */
static lks_status check_entry(const stream *s, const lks__st_tensor *expected, size_t *at,
                              uint64_t *total)
{
    const lks__st_tensor *found = lks__st_get(s->head, *at);
    if (!found || strcmp(found->name, expected->name) != 0)
        return bad_tensor(s, expected->name, "is missing, or not in its place");
    if (!same(found, expected))
        return bad_tensor(s, expected->name, "has another type or shape than its settings give");
    ++*at;
    return lks__add(*total, expected->bytes, total) ? LKS_OK : bad(s, "its size overflows");
}

lks_status lks__artifact_check(const lks__artifact *a, const lks__table *table)
{
    const stream *s = a->stream;
    uint64_t total = 0;
    size_t at = 0;
    lks__part part;
    for (size_t i = 0; i < table->n_tensors; i++) {
        lks__part_of(&table->tensors[i], &part);
        LKS__TRY(check_entry(s, &part.values, &at, &total));
        if (part.has_scales)
            LKS__TRY(check_entry(s, &part.scales, &at, &total));
    }
    if (lks__st_count(s->head) != at)
        return bad(s, "it has more tensors than its settings give");
    if (total / MAX_RATIO > s->file_bytes)
        return bad(s, "it is too short for the model of its settings");
    return LKS_OK;
}

static lks_status read_part(stream *s, const lks__part *part, char *buffer, float *params)
{
    char *scales = buffer + lks__part_scales_at(part);
    LKS__TRY(inflate_exactly(s, buffer, part->values.bytes));
    if (part->has_scales)
        LKS__TRY(inflate_exactly(s, scales, part->scales.bytes));
    lks_status st = lks__dequantize(part->scheme, buffer, scales, part->rows, part->cols,
                                    params + part->tensor->offset);
    if (st == LKS_ERR_FORMAT)
        return lks__fail_in(st, "%s: tensor %s", s->shown, part->tensor->name);
    return st;
}

lks_status lks__artifact_read(lks__artifact *a, const lks__table *table, float *params)
{
    stream *s = a->stream;
    lks_status st = LKS_OK;
    lks__part part;
    LKS__TRY(lks__artifact_check(a, table));
    char *buffer = malloc(lks__part_room(table));
    if (!buffer)
        return lks__fail(LKS_ERR_NOMEM, "no memory to decompress %s", s->shown);
    for (size_t i = 0; i < table->n_tensors && st == LKS_OK; i++) {
        lks__part_of(&table->tensors[i], &part);
        st = read_part(s, &part, buffer, params);
    }
    free(buffer);
    return st == LKS_OK ? inflate_end(s) : st;
}
