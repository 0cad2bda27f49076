#include "weights/artifact/quantize.h"

#include <math.h>
#include <string.h>

#include "base/number/f16.h"

/* The script's constants (INT8_KEEP_FLOAT_MAX_NUMEL, INT8_CLIP_PERCENTILE / 100). */
enum { KEEP_COUNT = 65536, LEVELS = 127 };
static const double clip_quantile = 99.99984 / 100.0;

lks__quant_scheme lks__quant_scheme_of(bool keep_float, int n_dims, uint64_t count)
{
    if (count > KEEP_COUNT)
        return n_dims == 2 ? LKS__QUANT_ROWS : LKS__QUANT_WHOLE;
    return keep_float ? LKS__QUANT_FLOAT : LKS__QUANT_HALF;
}

uint64_t lks__quant_value_bytes(lks__quant_scheme scheme, uint64_t count)
{
    switch (scheme) {
    case LKS__QUANT_FLOAT:
        return count * sizeof(float);
    case LKS__QUANT_HALF:
        return count * sizeof(uint16_t);
    case LKS__QUANT_ROWS:
    case LKS__QUANT_WHOLE:
        return count;
    }
    return 0;
}

uint64_t lks__quant_scale_bytes(lks__quant_scheme scheme, uint64_t rows)
{
    return scheme == LKS__QUANT_ROWS    ? rows * sizeof(uint16_t)
           : scheme == LKS__QUANT_WHOLE ? sizeof(float)
                                        : 0;
}

/* ---- the quantile ------------------------------------------------------------------------------
 *
 * torch.quantile(|x|, q), linear, as PyTorch 2.15 computes it on a CPU: q becomes fp32, the rank q
 * * (n - 1) is a double, and its fraction w is fp32 again. For w >= 1/2, lerp starts from the upper
 * neighbour. Both branches are one fused multiply-add. */

enum {
    MAX_ROW = 1 << 24, /* PyTorch refuses more */
    MAX_TOP = 32 /* elements from the quantile's lower neighbour to the maximum: 28 for 2^24 */
};

/* The n_top largest |x|, ascending. */
static void find_top(const float *x, size_t n, size_t n_top, float *top)
{
    for (size_t i = 0; i < n_top; i++)
        top[i] = -1.0f;
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a > top[0]))
            continue;
        size_t at = 0;
        for (; at + 1 < n_top && a > top[at + 1]; at++)
            top[at] = top[at + 1];
        top[at] = a;
    }
}

static float clip_of(const float *x, size_t n)
{
    double rank = (double)(float)clip_quantile * (double)(n - 1);
    size_t below = (size_t)rank, above = (size_t)ceil(rank);
    float top[MAX_TOP], w = (float)(rank - (double)below);
    find_top(x, n, n - below, top);
    float a = top[0], b = top[above - below];
    return w < 0.5f ? fmaf(w, b - a, a) : fmaf(w - 1.0f, b - a, b);
}

/* ---- int8 ---------------------------------------------------------------------------------- */

static void to_int8(const float *x, size_t n, float clip, float scale, int8_t *q)
{
    for (size_t i = 0; i < n; i++) {
        float clipped = x[i] < -clip ? -clip : x[i] > clip ? clip : x[i];
        long level = lrintf(clipped / scale); /* rounds half to even; may slightly exceed 127 */
        q[i] = (int8_t)(level > LEVELS ? LEVELS : level < -LEVELS ? -LEVELS : level);
    }
}

static bool all_finite(const float *x, size_t n)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++)
        finite &= fabsf(x[i]) <= 3.402823466e38f;
    return finite;
}

static lks_status too_large(void)
{
    return lks__fail(LKS_ERR_NAN, "a value or scale is too large for half precision");
}

/* The fp32 scale makes q, and is stored as fp16. If a row's clip is under 1, it gets the smallest
 * scale, 1/127. */
static lks_status quantize_rows(const float *x, size_t rows, size_t cols, int8_t *q,
                                uint16_t *scales)
{
    const float least = (float)(1.0 / LEVELS);
    for (size_t r = 0; r < rows; r++, x += cols, q += cols) {
        float clip = clip_of(x, cols), scale = clip / (float)LEVELS;
        if (scale < least)
            scale = least;
        scales[r] = lks__f16_from_float(scale);
        if (scales[r] == LKS__F16_INF)
            return too_large();
        to_int8(x, cols, clip, scale, q);
    }
    return LKS_OK;
}

static lks_status quantize_half(const float *x, size_t n, uint16_t *values)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = lks__f16_from_float(x[i]);
        if ((values[i] & 0x7fffu) == LKS__F16_INF)
            return too_large();
    }
    return LKS_OK;
}

lks_status lks__quantize(lks__quant_scheme scheme, const float *x, size_t rows, size_t cols,
                         void *values, void *scales)
{
    size_t n = rows * cols, row = scheme == LKS__QUANT_ROWS ? cols : n;
    float clip, scale;
    if (!all_finite(x, n))
        return lks__fail(LKS_ERR_NAN, "a value is not finite");
    if (n == 0)
        return LKS_OK;
    switch (scheme) {
    case LKS__QUANT_FLOAT:
        memcpy(values, x, n * sizeof *x);
        return LKS_OK;
    case LKS__QUANT_HALF:
        return quantize_half(x, n, values);
    case LKS__QUANT_ROWS:
    case LKS__QUANT_WHOLE:
        break;
    }
    if (row > MAX_ROW)
        return lks__fail(LKS_ERR_SUPPORT,
                         "a row of %zu elements can't be quantized: %d are the most", row, MAX_ROW);
    if (scheme == LKS__QUANT_ROWS)
        return quantize_rows(x, rows, cols, values, scales);
    clip = clip_of(x, n);
    scale = clip > 0.0f ? (float)((double)clip / LEVELS) : 1.0f;
    memcpy(scales, &scale, sizeof scale);
    to_int8(x, n, clip, scale, values);
    return LKS_OK;
}

/* ---- back ------------------------------------------------------------------------------------ */

static lks_status bad_value(const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s", what);
}

static lks_status dequantize_row(const int8_t *q, size_t n, float scale, float *x)
{
    bool in_range = true;
    if (!(scale > 0.0f) || !isfinite(scale))
        return bad_value("a scale is not a positive number");
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)q[i] * scale;
        in_range &= q[i] >= -LEVELS;
    }
    return in_range ? LKS_OK : bad_value("an int8 value is -128");
}

lks_status lks__dequantize(lks__quant_scheme scheme, const void *values, const void *scales,
                           size_t rows, size_t cols, float *x)
{
    size_t n = rows * cols;
    const uint16_t *half = scheme == LKS__QUANT_HALF ? values : scales;
    float scale;
    switch (scheme) {
    case LKS__QUANT_FLOAT:
        memcpy(x, values, n * sizeof *x);
        break;
    case LKS__QUANT_HALF:
        for (size_t i = 0; i < n; i++)
            x[i] = lks__f16_to_float(half[i]);
        break;
    case LKS__QUANT_ROWS:
        for (size_t r = 0; r < rows; r++)
            LKS__TRY(dequantize_row((const int8_t *)values + r * cols, cols,
                                    lks__f16_to_float(half[r]), x + r * cols));
        break;
    case LKS__QUANT_WHOLE:
        memcpy(&scale, scales, sizeof scale);
        LKS__TRY(dequantize_row(values, n, scale, x));
        break;
    }
    return all_finite(x, n) ? LKS_OK : bad_value("a value is not finite");
}
