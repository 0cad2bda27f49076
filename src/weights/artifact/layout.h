/* weights/artifact/layout.h - the container for a tensor table, shared by writer and reader. */
#pragma once

#include "base/number/checked.h"
#include "files/safetensors/safetensors.h"
#include "model/table/table.h"
#include "weights/artifact/quantize.h"

/* Keys of the container's metadata. */
#define LKS__ARTIFACT_FORMAT    "quant_format"
#define LKS__ARTIFACT_DTYPE     "dtype"
#define LKS__ARTIFACT_ITER      "iter"
#define LKS__ARTIFACT_SETTINGS  "settings"
#define LKS__ARTIFACT_TOKENIZER "tokenizer"

/* One tensor of the table. `values` and, if has_scales, `scales` are its entries in the container,
 * without data. Their names are valid as long as this struct. */
typedef struct lks__artifact_part {
    const lks__table_tensor *tensor;
    lks__quant_scheme scheme;
    size_t rows, cols; /* as for lks__quantize() */
    bool has_scales;
    lks__st_tensor values, scales;
    char scales_name[sizeof(((lks__table_tensor *)0)->name) + 8];
} lks__artifact_part;

void lks__artifact_part_of(const lks__table_tensor *tensor, lks__artifact_part *part);
/* The same for another keep_float. */
void lks__artifact_part_as(const lks__table_tensor *tensor, bool keep_float,
                           lks__artifact_part *part);

/* In memory the scales follow the values, at the next multiple of 8 bytes. */
static inline size_t lks__artifact_part_scales_at(const lks__artifact_part *part)
{
    return lks__round_up(part->values.bytes, 8);
}

/* Bytes of the largest part of a table in this layout, whichever tensors are kept as fp32. */
size_t lks__part_room(const lks__table *table);
