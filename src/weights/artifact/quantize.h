/* weights/artifact/quantize.h - int8 after training, by the rules of parameter-golf's train_gpt.py
 * (quantize_state_dict_int8, "int8_clean_per_row_v1"), with the same bits.
 *
 * A tensor of at most 65,536 elements is kept: in fp32 if the table asks for it (keep_float),
 * else in fp16. A larger matrix becomes int8 with one fp16 scale for each row. Any other larger
 * tensor becomes int8 with one fp32 scale. Values are cut at a quantile of |x| just under the
 * maximum. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__QUANT_FORMAT "int8_clean_per_row_v1"

typedef enum lks__quant_scheme {
    LKS__QUANT_FLOAT, /* fp32 */
    LKS__QUANT_HALF,  /* fp16 */
    LKS__QUANT_ROWS,  /* int8 [rows, cols] and fp16 scales [rows] */
    LKS__QUANT_WHOLE  /* int8 and one fp32 scale */
} lks__quant_scheme;

lks__quant_scheme lks__quant_scheme_of(bool keep_float, int n_dims, uint64_t count);

/* Bytes of `count` elements in that scheme, and of their scales (0 if it has none). */
uint64_t lks__quant_value_bytes(lks__quant_scheme scheme, uint64_t count);
uint64_t lks__quant_scale_bytes(lks__quant_scheme scheme, uint64_t rows);

/* Quantize x [rows][cols] into values and scales of the sizes above; if the scheme has no rows, x
 * is one row. ERR_NAN for a value that isn't finite, or that fp16 can't represent although the
 * scheme is fp16. ERR_SUPPORT for a row longer than PyTorch's quantile accepts (2^24). Messages
 * name no tensor. */
lks_status lks__quantize(lks__quant_scheme scheme, const float *x, size_t rows, size_t cols,
                         void *values, void *scales);

/* The reverse. ERR_FORMAT if lks__quantize() can't have produced these values or scales. */
lks_status lks__dequantize(lks__quant_scheme scheme, const void *values, const void *scales,
                           size_t rows, size_t cols, float *x);
