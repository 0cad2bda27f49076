#include "weights/artifact/saved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "base/text/jsontext.h"
#include "files/pickle/torch/torchfile.h"
#include "weights/artifact/layout.h"

enum { LEAST_ROOM = 16 << 20, ROOM_RATIO = 16 };

struct lks__artifact_saved {
    char shown[512];
    unsigned char *data; /* the decompressed file */
    size_t bytes;
    lks__torchfile *file;
    const lks__pickle_value *quantized, *scales, *dtypes, *passed, *passed_dtypes;
};

static lks_status bad(const lks__artifact_saved *s, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: %s", s->shown, what);
}

static lks_status bad_tensor(const lks__artifact_saved *s, const char *name, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: tensor %s %s", s->shown, name,
                     what);
}

/* ---- open -------------------------------------------------------------------------------- */

/* Memory grows with the data that the file really contains. */
static lks_status decompress(lks__unzip *zip, uint64_t start, lks__artifact_saved *s)
{
    const size_t most = LEAST_ROOM + ROOM_RATIO * (size_t)zip->file_bytes;
    size_t room = 0, got;
    bool end = false;
    while (!end) {
        if (room == most)
            return bad(s, "its decompressed size is over 16 times as large, and over 16 MiB");
        room = room * 2 + (1 << 20);
        room = room < most ? room : most;
        unsigned char *data = realloc(s->data, room);
        LKS__MEMORY(data, "to decompress %s", s->shown);
        s->data = data;
        if (s->bytes == 0) {
            memcpy(s->data, &start, sizeof start);
            s->bytes = sizeof start;
        }
        LKS__TRY(lks__unzip_some(zip, s->data + s->bytes, room - s->bytes, &got, &end));
        s->bytes += got;
    }
    return lks__unzip_end(zip);
}

/* A dict that must exist. */
static lks_status dict_at(const lks__artifact_saved *s, const char *key, bool needed,
                          const lks__pickle_value **dict_p)
{
    char why[100];
    *dict_p = lks__pickle_find(lks__torchfile_root(s->file), key);
    if (!*dict_p && !needed)
        return LKS_OK;
    if (lks__pickle_kind_of(*dict_p) == LKS__PICKLE_DICT)
        return LKS_OK;
    snprintf(why, sizeof why, "its \"%s\" is not a dict", key);
    return bad(s, why);
}

static lks_status open_dicts(lks__artifact_saved *s)
{
    LKS__TRY(lks__torchfile_open_bytes(s->shown, s->data, s->bytes, &s->file));
    const lks__pickle_value *root = lks__torchfile_root(s->file);
    if (!lks__pickle_is(lks__pickle_find(root, LKS__SAVED_FORMAT), LKS__QUANT_FORMAT))
        return bad(s, "its __quant_format__ is not " LKS__QUANT_FORMAT);
    LKS__TRY(dict_at(s, LKS__SAVED_QUANTIZED, true, &s->quantized));
    LKS__TRY(dict_at(s, LKS__SAVED_SCALES, true, &s->scales));
    LKS__TRY(dict_at(s, LKS__SAVED_DTYPES, true, &s->dtypes));
    LKS__TRY(dict_at(s, LKS__SAVED_PASSED, true, &s->passed));
    return dict_at(s, LKS__SAVED_PASSED_DTYPE, false, &s->passed_dtypes);
}

lks_status lks__artifact_saved_open(lks__unzip *zip, uint64_t start, lks__artifact_saved **saved_p)
{
    lks__artifact_saved *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "to open an artifact");
    memcpy(s->shown, zip->shown, sizeof s->shown);
    lks_status st = decompress(zip, start, s);
    LKS__THEN(st, open_dicts(s));
    if (st == LKS_OK)
        *saved_p = s;
    else
        lks__artifact_saved_close(s);
    return st;
}

void lks__artifact_saved_close(lks__artifact_saved *s)
{
    if (!s)
        return;
    lks__torchfile_close(s->file);
    free(s->data);
    free(s);
}

/* ---- lockstep's members ---------------------------------------------------------------------- */

lks_status lks__artifact_object(const char *shown, const char *key, const char *text, size_t bytes,
                                json_t **object_p)
{
    json_error_t error = {.text = "it has none"};
    json_t *object =
        text ? lks__json_load(text, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error) : NULL;
    if (text && !object && lks__json_no_memory(&error))
        return lks__no_memory("for the %s of %s", key, shown);
    if (json_is_object(object)) {
        *object_p = object;
        return LKS_OK;
    }
    json_decref(object);
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound artifact: its %s are not a JSON object",
                     shown, key);
}

static lks_status object_at(const lks__artifact_saved *s, const lks__pickle_value *value,
                            const char *key, json_t **object_p)
{
    size_t bytes = 0;
    const char *text =
        lks__pickle_kind_of(value) == LKS__PICKLE_TEXT ? lks__pickle_text(value, &bytes) : NULL;
    return lks__artifact_object(s->shown, key, text, bytes, object_p);
}

lks_status lks__artifact_saved_about(const lks__artifact_saved *s, lks__artifact *a)
{
    const lks__pickle_value *ours =
        lks__pickle_find(lks__torchfile_root(s->file), LKS__SAVED_LOCKSTEP);
    if (!ours)
        return LKS_OK;
    const lks__pickle_value *iter = lks__pickle_find(ours, LKS__ARTIFACT_ITER);
    const lks__pickle_value *tokenizer = lks__pickle_find(ours, LKS__ARTIFACT_TOKENIZER);
    if (lks__pickle_kind_of(iter) != LKS__PICKLE_INT || lks__pickle_int(iter) < 0)
        return bad(s, "its iter is not a count");
    a->iter = (uint64_t)lks__pickle_int(iter);
    LKS__TRY(object_at(s, lks__pickle_find(ours, LKS__ARTIFACT_SETTINGS), LKS__ARTIFACT_SETTINGS,
                       &a->settings));
    return tokenizer ? object_at(s, tokenizer, LKS__ARTIFACT_TOKENIZER, &a->tokenizer) : LKS_OK;
}

bool lks__artifact_saved_shape(const lks__artifact_saved *s, const char *name, uint64_t shape[2])
{
    const lks__pickle_value *v = lks__pickle_find(s->quantized, name);
    if (!v)
        v = lks__pickle_find(s->passed, name);
    if (lks__pickle_kind_of(v) != LKS__PICKLE_TENSOR)
        return false;
    const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
    for (int d = 0; d < 2; d++)
        shape[d] = d < t->n_dims ? t->shape[d] : 1;
    return true;
}

/* ---- the tensors ------------------------------------------------------------------------- */

static bool same(const lks__pickle_value *v, const lks__st_tensor *expected)
{
    if (lks__pickle_kind_of(v) != LKS__PICKLE_TENSOR)
        return false;
    const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
    return lks__st_has_form(expected, t->storage->dtype, t->n_dims, t->shape);
}

/* A tensor's part as it is in the file: the writer chose which small tensors stayed fp32
 * (INT8_KEEP_FLOAT_FP32_NAME_PATTERNS). */
static void part_of(const lks__artifact_saved *s, const lks__table_tensor *tensor,
                    lks__artifact_part *part)
{
    const lks__pickle_value *kept = lks__pickle_find(s->passed, tensor->name);
    const bool is_tensor = lks__pickle_kind_of(kept) == LKS__PICKLE_TENSOR;
    lks__artifact_part_as(
        tensor, is_tensor && strcmp(lks__pickle_tensor_of(kept)->storage->dtype, "F32") == 0, part);
}

/* True for the type that the tensor had: the script rounds to it. */
static bool is_dtype(const lks__pickle_value *v)
{
    return lks__pickle_is(v, "float32") || lks__pickle_is(v, "bfloat16");
}

static lks_status check_part(const lks__artifact_saved *s, const lks__artifact_part *part)
{
    const char *name = part->tensor->name;
    const lks__pickle_value *dict = part->has_scales ? s->quantized : s->passed;
    const lks__pickle_value *values = lks__pickle_find(dict, name);
    if (!values)
        return bad_tensor(s, name, "is missing");
    if (!same(values, &part->values) ||
        (part->has_scales && !same(lks__pickle_find(s->scales, name), &part->scales)))
        return bad_tensor(s, name, "has another type or shape than its settings require");
    const lks__pickle_value *dtype =
        lks__pickle_find(part->has_scales ? s->dtypes : s->passed_dtypes, name);
    bool kept = !part->has_scales && part->scheme == LKS__QUANT_FLOAT;
    return (kept && !dtype) || is_dtype(dtype)
               ? LKS_OK
               : bad_tensor(s, name, "was neither float32 nor bfloat16");
}

lks_status lks__artifact_saved_check(const lks__artifact_saved *s, const lks__table *table)
{
    size_t n_quantized = 0;
    lks__artifact_part part;
    for (size_t i = 0; i < table->n_tensors; i++) {
        part_of(s, &table->tensors[i], &part);
        LKS__TRY(check_part(s, &part));
        n_quantized += part.has_scales;
    }
    if (lks__pickle_count(s->quantized) != n_quantized ||
        lks__pickle_count(s->scales) != n_quantized ||
        lks__pickle_count(s->passed) != table->n_tensors - n_quantized)
        return bad(s, "it has more tensors than its settings require");
    return LKS_OK;
}

static lks_status read_part(lks__artifact_saved *s, const lks__artifact_part *part, char *buffer,
                            float *params)
{
    const char *name = part->tensor->name;
    char *scales = buffer + lks__artifact_part_scales_at(part);
    float *out = params + part->tensor->offset;
    const lks__pickle_value *values =
        lks__pickle_find(part->has_scales ? s->quantized : s->passed, name);
    LKS__TRY(lks__torchfile_read(s->file, lks__pickle_tensor_of(values), buffer));
    if (part->has_scales)
        LKS__TRY(lks__torchfile_read(
            s->file, lks__pickle_tensor_of(lks__pickle_find(s->scales, name)), scales));
    lks_status st = lks__dequantize(part->scheme, buffer, scales, part->rows, part->cols, out);
    if (st == LKS_ERR_FORMAT)
        return lks__fail_in(st, "%s: tensor %s", s->shown, name);
    if (lks__pickle_is(lks__pickle_find(part->has_scales ? s->dtypes : s->passed_dtypes, name),
                       "bfloat16"))
        for (size_t i = 0; i < part->tensor->count; i++)
            out[i] = lks__bf16_to_float(lks__bf16_from_float(out[i]));
    return st;
}

lks_status lks__artifact_saved_read(lks__artifact_saved *s, const lks__table *table, float *params)
{
    lks_status st = LKS_OK;
    lks__artifact_part part;
    char *buffer = malloc(lks__part_room(table));
    LKS__MEMORY(buffer, "to read %s", s->shown);
    for (size_t i = 0; i < table->n_tensors && st == LKS_OK; i++) {
        part_of(s, &table->tensors[i], &part);
        st = read_part(s, &part, buffer, params);
    }
    free(buffer);
    return st;
}
