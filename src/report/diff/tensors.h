/* report/diff/tensors.h - the first element in which two files of tensors differ. */
#pragma once

#include <jansson.h>

#include "files/safetensors/safetensors.h"

/* Compare all tensors of two open files, in a's order. *diff_p is NULL if they are equal. Otherwise
 * it is an object that the caller frees:
 *
 *     {"part": part, "tensors": tensors of a, "different": tensors that differ, "tensor": the first
 *      of these, and one of
 *      "only_in": "a" or "b",
 *      "forms": ["F32 [4, 8]", "F32 [8, 4]"],
 *      "element": the first that differs, "index": the same by dimensions, "values": [x, y],
 *      "bits": ["3f800000", "3f800001"], "different_elements": n, "elements": n}
 *
 * A value is null if it isn't finite. `verified`: the files match their own hashes, so tensors with
 * equal hashes aren't read. */
lks_status lks__tensors_diff(const char *part, lks__st_file *a, lks__st_file *b, bool verified,
                             json_t **diff_p);

/* For two tensors in memory: add "forms", or "element" to "elements" as above, to `o`. */
void lks__tensor_diff(const lks__st_tensor *a, const lks__st_tensor *b, json_t *o);
/* The first n values of a tensor in memory, or all of them. The caller frees the array. */
json_t *lks__tensor_values(const lks__st_tensor *t, uint64_t n);

/* True if both files have the same tensors with the same hashes; those of the tensor `but` may
 * differ (NULL: none). Reads only the headers. */
bool lks__tensors_same_hashes(const lks__st_file *a, const lks__st_file *b, const char *but);
