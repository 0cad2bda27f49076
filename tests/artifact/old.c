#include "old.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "weights/artifact/layout.h"

static lks_status no_memory(void)
{
    return lks__fail(LKS_ERR_NOMEM, "no memory to make an artifact");
}

/* ---- the container's head -------------------------------------------------------------------- */

static json_t *as_text(const json_t *json)
{
    char *text = lks__json_dump(json, JSON_COMPACT | JSON_SORT_KEYS);
    json_t *string = text ? json_string(text) : NULL;
    free(text);
    return string;
}

/* New reference; NULL: out of memory. */
static json_t *metadata_of(const lks__artifact_about *about)
{
    char iter[24];
    snprintf(iter, sizeof iter, "%" PRIu64, about->iter);
    /* pack takes over the reference, even if it fails */
    json_t *meta = json_pack("{s:s, s:s, s:s, s:o}", LKS__ARTIFACT_FORMAT, LKS__QUANT_FORMAT,
                             LKS__ARTIFACT_DTYPE, "F32", LKS__ARTIFACT_ITER, iter,
                             LKS__ARTIFACT_SETTINGS, as_text(about->settings));
    if (meta && about->tokenizer &&
        json_object_set_new(meta, LKS__ARTIFACT_TOKENIZER, as_text(about->tokenizer)) < 0) {
        json_decref(meta);
        return NULL;
    }
    return meta;
}

static lks_status head_of(const char *path, const lks__table *table,
                          const lks__artifact_part *parts, const json_t *meta, char **head_p,
                          size_t *bytes_p)
{
    size_t n = 0;
    lks__st_tensor *tensors = calloc(2 * table->n_tensors + 1, sizeof *tensors);
    if (!tensors)
        return no_memory();
    for (size_t i = 0; i < table->n_tensors; i++) {
        tensors[n++] = parts[i].values;
        if (parts[i].has_scales)
            tensors[n++] = parts[i].scales;
    }
    lks_status st = lks__st_head(path, tensors, n, meta, false, head_p, bytes_p);
    free(tensors);
    return st;
}

/* ---- zlib ------------------------------------------------------------------------------------ */

typedef struct packer {
    z_stream z;
    unsigned char *out;
    size_t room, bytes; /* capacity of `out`, which holds any possible output */
} packer;

static lks_status pack(packer *p, const void *data, size_t bytes, bool last)
{
    const unsigned char *next = data;
    const size_t most = 1 << 30; /* limit, because zlib counts in 32 bits */
    int rc;
    do {
        size_t in = bytes < most ? bytes : most, room = p->room - p->bytes;
        p->z.next_in = (unsigned char *)(uintptr_t)next;
        p->z.avail_in = (uInt)in;
        p->z.next_out = p->out + p->bytes;
        p->z.avail_out = (uInt)(room < most ? room : most);
        rc = deflate(&p->z, last && in == bytes ? Z_FINISH : Z_NO_FLUSH);
        next += in - p->z.avail_in;
        bytes -= in - p->z.avail_in;
        p->bytes = (size_t)(p->z.next_out - p->out);
    } while (rc == Z_OK && (bytes > 0 || last));
    /* Z_BUF_ERROR: there was no input, for example for a tensor without scales */
    return rc == Z_OK || rc == Z_STREAM_END || (rc == Z_BUF_ERROR && bytes == 0 && !last)
               ? LKS_OK
               : lks__fail(LKS_ERR_NOMEM, "zlib could not compress the artifact (its code %d)", rc);
}

static lks_status pack_part(packer *p, const lks__artifact_part *part, const float *params,
                            void *buffer)
{
    char *values = buffer, *scales = values + lks__artifact_part_scales_at(part);
    lks_status st = lks__quantize(part->scheme, params + part->tensor->offset, part->rows,
                                  part->cols, values, scales);
    if (st != LKS_OK)
        return lks__fail_in(st, "tensor %s can't be exported", part->tensor->name);
    LKS__TRY(pack(p, values, part->values.bytes, false));
    return part->has_scales ? pack(p, scales, part->scales.bytes, false) : LKS_OK;
}

static lks_status pack_all(packer *p, const lks__table *table, const lks__artifact_part *parts,
                           const float *params, const char *head, size_t head_bytes)
{
    void *buffer = malloc(lks__part_room(table));
    if (!buffer)
        return no_memory();
    lks_status st = pack(p, head, head_bytes, false);
    for (size_t i = 0; i < table->n_tensors && st == LKS_OK; i++)
        st = pack_part(p, &parts[i], params, buffer);
    LKS__THEN(st, pack(p, "", 0, true));
    free(buffer);
    return st;
}

static lks_status compress_all(const lks__table *table, const lks__artifact_part *parts,
                               const float *params, const char *head, size_t head_bytes, packer *p,
                               lks__artifact_stats *stats)
{
    if (deflateInit(&p->z, 9) != Z_OK)
        return no_memory();
    stats->container_bytes = head_bytes + stats->int8_payload_bytes;
    p->room = deflateBound(&p->z, stats->container_bytes);
    p->out = malloc(p->room);
    lks_status st = p->out ? pack_all(p, table, parts, params, head, head_bytes) : no_memory();
    deflateEnd(&p->z);
    stats->file_bytes = p->bytes;
    return st;
}

lks_status old_artifact_write(const char *path, const lks__table *table, const float *params,
                              const lks__artifact_about *about)
{
    lks__artifact_stats stats;
    char *head = NULL;
    size_t head_bytes = 0;
    packer p = {.bytes = 0};
    lks__artifact_part *parts = calloc(table->n_tensors + 1, sizeof *parts);
    json_t *meta = metadata_of(about);
    lks_status st = parts && meta ? LKS_OK : no_memory();
    for (size_t i = 0; i < table->n_tensors && st == LKS_OK; i++)
        lks__artifact_part_of(&table->tensors[i], &parts[i]);
    LKS__THEN(st, head_of(path, table, parts, meta, &head, &head_bytes));
    lks__artifact_count(table, &stats);
    LKS__THEN(st, compress_all(table, parts, params, head, head_bytes, &p, &stats));
    LKS__THEN(st, lks__sys_write_file(path, p.out, p.bytes));
    json_decref(meta);
    free(p.out);
    free(head);
    free(parts);
    return st;
}
