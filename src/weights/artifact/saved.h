/* weights/artifact/saved.h - an artifact as train_gpt.py writes it: torch.save of the dict that
 * quantize_state_dict_int8() returns, under zlib.
 *
 *     {"__quant_format__": "int8_clean_per_row_v1",
 *      "quantized": {NAME: int8}, "scales": {NAME: F16 [rows] or F32 []}, "dtypes": {NAME:
 * "float32"}, "passthrough": {NAME: F16 or F32}, "qmeta": {NAME: {"scheme": "per_row", "axis": 0}},
 *      "passthrough_orig_dtypes": {NAME: "float32"},
 *      "lockstep": {"iter": 7, "settings": JSON, "tokenizer": JSON}}
 *
 * Like the script, we omit its last two dicts if they are empty. "lockstep" is ours: the script
 * ignores it. */
#pragma once

#include "files/pickle/pickle.h"
#include "files/zip/unzip.h"
#include "weights/artifact/artifact.h"

/* Keys of the dict. */
#define LKS__SAVED_FORMAT       "__quant_format__"
#define LKS__SAVED_QUANTIZED    "quantized"
#define LKS__SAVED_SCALES       "scales"
#define LKS__SAVED_DTYPES       "dtypes"
#define LKS__SAVED_PASSED       "passthrough"
#define LKS__SAVED_QMETA        "qmeta"
#define LKS__SAVED_PASSED_DTYPE "passthrough_orig_dtypes"
#define LKS__SAVED_LOCKSTEP     "lockstep"

typedef struct lks__artifact_saved lks__artifact_saved;

/* `zip` is open, and `start` its first 8 bytes. Decompresses all of it, to at most 16 times the
 * file's size and 16 MiB, and checks everything but the tensors' elements. */
lks_status lks__artifact_saved_open(lks__unzip *zip, uint64_t start, lks__artifact_saved **saved_p);
void lks__artifact_saved_close(lks__artifact_saved *saved); /* NULL does nothing */
/* The text of the artifact's member `key` as a JSON object; text NULL: it has none. */
lks_status lks__artifact_object(const char *shown, const char *key, const char *text, size_t bytes,
                                json_t **object_p);
/* Set iter, settings and tokenizer, if the file has them. */
lks_status lks__artifact_saved_about(const lks__artifact_saved *saved, lks__artifact *a);
/* As lks__artifact_shape(). */
bool lks__artifact_saved_shape(const lks__artifact_saved *saved, const char *name,
                               uint64_t shape[2]);
/* As lks__artifact_check() and lks__artifact_read(). */
lks_status lks__artifact_saved_check(const lks__artifact_saved *saved, const lks__table *table);
lks_status lks__artifact_saved_read(lks__artifact_saved *saved, const lks__table *table,
                                    float *params);
