#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/pickle/torch/torchsave.h"
#include "weights/artifact/artifact.h"
#include "weights/artifact/layout.h"
#include "weights/artifact/saved.h"

/* Storages are in the pickle's order, as torch.save writes them: zlib compresses neighbours of one
 * type better. */
typedef struct writer {
    const lks__table *table;
    const float *params;
    lks__artifact_part *parts;
    size_t n; /* storages */
    uint64_t *bytes;
    struct {
        const lks__artifact_part *part;
        bool is_scales;
    } * storages;
    char *buffer; /* contains the values of the part that `now` is */
    const lks__artifact_part *now;
    char *scales; /* of all parts; those of part i begin at scales_at[i] */
    size_t *scales_at;
} writer;

static lks_status no_memory(void)
{
    return lks__no_memory("to make an artifact");
}

/* ---- the tensors' elements --------------------------------------------------------------- */

static unsigned add_storage(writer *w, const lks__artifact_part *part, bool is_scales)
{
    w->bytes[w->n] = is_scales ? part->scales.bytes : part->values.bytes;
    w->storages[w->n].part = part;
    w->storages[w->n].is_scales = is_scales;
    return (unsigned)w->n++;
}

/* Quantize a part when its values are first asked for, and keep its scales for later. */
static lks_status read_storage(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    writer *w = ctx;
    const lks__artifact_part *part = w->storages[storage].part;
    char *scales = w->scales + w->scales_at[part - w->parts];
    if (w->now != part && !w->storages[storage].is_scales) {
        lks_status st = lks__quantize(part->scheme, w->params + part->tensor->offset, part->rows,
                                      part->cols, w->buffer, scales);
        if (st != LKS_OK)
            return lks__fail_in(st, "tensor %s can't be exported", part->tensor->name);
        w->now = part;
    }
    memcpy(out, (w->storages[storage].is_scales ? scales : w->buffer) + first, bytes);
    return LKS_OK;
}

/* ---- the pickle -------------------------------------------------------------------------- */

enum { QUANTIZED, SCALES, DTYPES, PASSED, QMETA, PASSED_DTYPES };

static void emit_item(writer *w, lks__emit *e, const lks__artifact_part *part, int what)
{
    const lks__st_tensor *t = what == SCALES ? &part->scales : &part->values;
    lks__emit_text(e, part->tensor->name);
    if (what == QMETA) {
        lks__emit_dict(e);
        lks__emit_text(e, "scheme");
        lks__emit_text(e, "per_row");
        lks__emit_text(e, "axis");
        lks__emit_int(e, 0);
        lks__emit_dict_end(e);
    } else if (what == DTYPES || what == PASSED_DTYPES) {
        lks__emit_text(e, "float32");
    } else {
        lks__emit_tensor(e, t->dtype, t->n_dims, t->shape, add_storage(w, part, what == SCALES));
    }
}

static bool has_item(const lks__artifact_part *part, int what)
{
    switch (what) {
    case QMETA:
        return part->scheme == LKS__QUANT_ROWS;
    case PASSED_DTYPES:
        return part->scheme == LKS__QUANT_HALF;
    case PASSED:
        return !part->has_scales;
    default:
        return part->has_scales;
    }
}

/* One dict of names, omitted if it is empty and not needed. */
static void emit_names(writer *w, lks__emit *e, const char *key, int what, bool needed)
{
    size_t n = 0;
    for (size_t i = 0; i < w->table->n_tensors; i++)
        n += has_item(&w->parts[i], what);
    if (n == 0 && !needed)
        return;
    lks__emit_text(e, key);
    lks__emit_dict(e);
    for (size_t i = 0; i < w->table->n_tensors; i++)
        if (has_item(&w->parts[i], what))
            emit_item(w, e, &w->parts[i], what);
    lks__emit_dict_end(e);
}

static void emit_json(lks__emit *e, const char *key, const json_t *json)
{
    char *text = lks__json_dump(json, JSON_COMPACT | JSON_SORT_KEYS);
    lks__emit_text(e, key);
    lks__emit_text(e, text ? text : "");
    e->failed |= !text;
    free(text);
}

static void emit_all(writer *w, const lks__artifact_about *about, lks__emit *e)
{
    lks__emit_start(e);
    lks__emit_dict(e);
    lks__emit_text(e, LKS__SAVED_FORMAT);
    lks__emit_text(e, LKS__QUANT_FORMAT);
    emit_names(w, e, LKS__SAVED_QUANTIZED, QUANTIZED, true);
    emit_names(w, e, LKS__SAVED_SCALES, SCALES, true);
    emit_names(w, e, LKS__SAVED_DTYPES, DTYPES, true);
    emit_names(w, e, LKS__SAVED_PASSED, PASSED, true);
    emit_names(w, e, LKS__SAVED_QMETA, QMETA, false);
    emit_names(w, e, LKS__SAVED_PASSED_DTYPE, PASSED_DTYPES, false);
    lks__emit_text(e, LKS__SAVED_LOCKSTEP);
    lks__emit_dict(e);
    lks__emit_text(e, LKS__ARTIFACT_ITER);
    lks__emit_int(e, (int64_t)about->iter);
    emit_json(e, LKS__ARTIFACT_SETTINGS, about->settings);
    if (about->tokenizer)
        emit_json(e, LKS__ARTIFACT_TOKENIZER, about->tokenizer);
    lks__emit_dict_end(e);
    lks__emit_dict_end(e);
    lks__emit_stop(e);
}

/* ---- the file ---------------------------------------------------------------------------- */

/* zlib.compress(data, level=9) */
static lks_status compress_to(const char *path, const unsigned char *data, size_t bytes,
                              lks__artifact_stats *stats)
{
    uLongf room = compressBound(bytes);
    unsigned char *out = malloc(room);
    if (!out)
        return no_memory();
    int rc = compress2(out, &room, data, bytes, 9);
    lks_status st = rc == Z_OK ? lks__sys_write_file(path, out, room)
                               : lks__fail(LKS_ERR_NOMEM,
                                           "zlib could not compress the artifact "
                                           "(its code %d)",
                                           rc);
    stats->container_bytes = bytes;
    stats->file_bytes = room;
    free(out);
    return st;
}

static lks_status make(const char *path, writer *w, const lks__artifact_about *about,
                       lks__artifact_stats *stats)
{
    lks__emit e = {0};
    unsigned char *data = NULL;
    size_t bytes = 0, room = 1;
    for (size_t i = 0; i < w->table->n_tensors; i++) {
        lks__artifact_part_of(&w->table->tensors[i], &w->parts[i]);
        w->scales_at[i] = room = lks__round_up(room, 8);
        room += w->parts[i].scales.bytes;
    }
    w->scales = malloc(room);
    if (!w->scales)
        return no_memory();
    emit_all(w, about, &e);
    const lks__torchsave_what what = {&e, w->bytes, w->n, read_storage, w};
    lks_status st = lks__torchsave_bytes(&what, &data, &bytes);
    LKS__THEN(st, compress_to(path, data, bytes, stats));
    free(data);
    free(e.at);
    return st;
}

lks_status lks__artifact_write(const char *path, const lks__table *table, const float *params,
                               const lks__artifact_about *about, lks__artifact_stats *stats_p)
{
    lks__artifact_stats stats;
    size_t n = table->n_tensors;
    writer w = {.table = table,
                .params = params,
                .parts = calloc(n + 1, sizeof *w.parts),
                .bytes = calloc(2 * n + 1, sizeof *w.bytes),
                .storages = calloc(2 * n + 1, sizeof *w.storages),
                .buffer = malloc(lks__part_room(table)),
                .scales_at = calloc(n + 1, sizeof *w.scales_at)};
    lks__artifact_count(table, &stats);
    const bool have = w.parts && w.bytes && w.storages && w.buffer && w.scales_at;
    lks_status st = have ? make(path, &w, about, &stats) : no_memory();
    if (st == LKS_OK && stats_p)
        *stats_p = stats;
    free(w.scales);
    free(w.scales_at);
    free(w.buffer);
    free(w.storages);
    free(w.bytes);
    free(w.parts);
    return st;
}
