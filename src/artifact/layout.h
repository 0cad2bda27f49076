/* artifact/layout.h - the container that a table makes, as writer and reader both know it. */
#ifndef LKS_ARTIFACT_LAYOUT_H
#define LKS_ARTIFACT_LAYOUT_H

#include "artifact/quantize.h"
#include "base/checked.h"
#include "ckpt/safetensors.h"
#include "model/table.h"

/* Keys of the container's metadata. */
#define LKS__ARTIFACT_FORMAT    "quant_format"
#define LKS__ARTIFACT_DTYPE     "dtype"
#define LKS__ARTIFACT_ITER      "iter"
#define LKS__ARTIFACT_SETTINGS  "settings"
#define LKS__ARTIFACT_TOKENIZER "tokenizer"

/* One tensor of the table. `values` and, where has_scales, `scales` are the container's, without
 * data; their names live as long as this. */
typedef struct lks__part {
    const lks__tensor *tensor;
    lks__quant_scheme scheme;
    size_t rows, cols; /* as lks__quantize() takes them */
    bool has_scales;
    lks__st_tensor values, scales;
    char scales_name[sizeof(((lks__tensor *)0)->name) + 8];
} lks__part;

void lks__part_of(const lks__tensor *tensor, lks__part *part);

/* In memory the scales lie behind the values, from a multiple of 8 bytes on. */
static inline size_t lks__part_scales_at(const lks__part *part)
{
    return lks__round_up(part->values.bytes, 8);
}

/* Bytes that the largest part of a table takes so. */
size_t lks__part_room(const lks__table *table);

#endif
