/* The quantizer against parameter-golf's, and half precision against its definition. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/f16.h"
#include "model/model.h"
#include "weights/artifact/artifact.h"
#include "weights/artifact/quantize.h"

/* ---- half precision -------------------------------------------------------------------------- */

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The format's definition: sign, five bits of exponent, ten of fraction. */
static double half_value(unsigned h)
{
    int exponent = h >> 10 & 31, m = h & 1023;
    double x = exponent == 31  ? (m ? NAN : INFINITY)
               : exponent == 0 ? ldexp(m, -24)
                               : ldexp(1024 + m, exponent - 25);
    return h & 0x8000 ? -x : x;
}

/* Nearest multiple of the last place, by nearbyint()'s rounding half to even. */
static double rounded(double x)
{
    if (x == 0 || !isfinite(x))
        return x;
    int e = ilogb(x) < -14 ? -14 : ilogb(x);
    double r = ldexp(nearbyint(ldexp(x, 10 - e)), e - 10);
    return fabs(r) > 65504 ? copysign(INFINITY, x) : r;
}

TEST(test_every_half)
{
    for (unsigned h = 0; h < 65536; h++) {
        float x = lks__f16_to_float((uint16_t)h);
        double want = half_value(h);
        if (isnan(want)) {
            assert_true(isnan(x) && bits_of(x) & 0x400000); /* a quiet one */
            assert_int_equal(signbit(x) != 0, h >> 15);
            assert_int_equal(lks__f16_from_float(x), h | 0x200);
            continue;
        }
        assert_true((double)x == want && (signbit(x) != 0) == (h >> 15));
        assert_int_equal(lks__f16_from_float(x), h);
    }
}

static void check_float(uint32_t bits)
{
    float x = float_of(bits);
    unsigned h = lks__f16_from_float(x);
    if (isnan(x))
        assert_true((h & 0x7c00) == 0x7c00 && (h & 0x3ff) != 0);
    else if (half_value(h) != rounded((double)x) || h >> 15 != bits >> 31)
        fail_msg("0x%08x (%a) became 0x%04x", bits, (double)x, h);
}

TEST(test_floats_to_half)
{
    static const uint32_t edges[] = {
        0,          1,          0x7fffff,   0x800000,               /* subnormal floats */
        0x33000000, 0x33000001, 0x33800000, 0x33c00000, 0x33400000, /* around the least half */
        0x387fc000, 0x387fe000, 0x387fffff, 0x38800000, /* around the least normal half */
        0x477fe000, 0x477fefff, 0x477ff000, 0x477fffff, 0x47800000, /* around the largest */
        0x7f7fffff, 0x7f800000, 0x7f800001, 0x7f802000, 0x7fc00000, 0x7fffffff};
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        check_float(edges[i]);
        check_float(edges[i] | 0x80000000u);
    }
    /* Floats around each half, around its border to the next half, and random ones. */
    for (unsigned h = 0; h < 0x7c00; h++) {
        uint32_t at = bits_of((float)half_value(h));
        uint32_t border = bits_of((float)((half_value(h) + half_value(h + 1)) / 2));
        if (h + 1 == 0x7c00)
            border = bits_of(65520.0f);
        for (int d = -1; d <= 1; d++) {
            if (at + (uint32_t)d < 0x80000000u)
                check_float(at + (uint32_t)d);
            check_float(border + (uint32_t)d);
        }
    }
    for (int i = 0; i < 1000000; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        check_float(x);
        check_float((x & 0x87ffffff) | 0x30000000); /* where halves are subnormal, and nearby */
    }
}

/* ---- parameter-golf's figures ---------------------------------------------------------------- */

static float number_at(const json_t *list, size_t i)
{
    return (float)json_number_value(json_array_get(list, i));
}

static void check_figure(const json_t *t)
{
    const char *name = lks_test_string(t, "name");
    const json_t *shape = lks_test_member(t, "shape"), *values = lks_test_member(t, "values");
    const json_t *q = lks_test_member(t, "q"), *scale = lks_test_member(t, "scale");
    const json_t *back = lks_test_member(t, "dequantized");
    bool matrix = json_array_size(shape) == 2;
    size_t n = json_array_size(values);
    size_t rows = matrix ? (size_t)json_integer_value(json_array_get(shape, 0)) : 1;
    lks__quant_scheme scheme = matrix ? LKS__QUANT_ROWS : LKS__QUANT_WHOLE;
    float x[256], whole[1];
    uint16_t scales[16];
    int8_t got[256];
    assert_true(n > 0 && n <= 256 && rows <= 16 && n % rows == 0);
    for (size_t i = 0; i < n; i++)
        x[i] = number_at(values, i);
    assert_ok(
        lks__quantize(scheme, x, rows, n / rows, got, matrix ? (void *)scales : (void *)whole));
    for (size_t i = 0; i < n; i++)
        if (got[i] != json_integer_value(json_array_get(q, i)))
            fail_msg("%s: q[%zu] is %d", name, i, got[i]);
    assert_int_equal(json_array_size(scale), rows);
    for (size_t r = 0; r < rows; r++)
        assert_true((matrix ? lks__f16_to_float(scales[r]) : whole[0]) == number_at(scale, r));
    memset(x, 0, sizeof x);
    assert_ok(
        lks__dequantize(scheme, got, matrix ? (void *)scales : (void *)whole, rows, n / rows, x));
    for (size_t i = 0; i < n; i++)
        assert_true(x[i] == number_at(back, i));
}

TEST(test_figures)
{
    const json_t *tensors = lks_test_member(lks_test_figure("golf_int8_quant.json"), "tensors"), *t;
    size_t i;
    assert_int_equal(json_array_size(tensors), 4);
    json_array_foreach(tensors, i, t) check_figure(t);
}

/* Uniform in [-8, 8), exact in fp32. */
static float *spread(size_t n)
{
    float *x = lks_test_malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        x[i] = (float)((int32_t)(h >> 8) - (1 << 23)) * 0x1p-20f;
    }
    return x;
}

static void check_sums(const int8_t *q, size_t n, const int64_t want[3])
{
    int64_t sum = 0, absolute = 0, weighted = 0;
    for (size_t i = 0; i < n; i++) {
        sum += q[i];
        absolute += abs(q[i]);
        weighted += q[i] * (int64_t)(i % 251);
    }
    assert_int_equal(sum, want[0]);
    assert_int_equal(absolute, want[1]);
    assert_int_equal(weighted, want[2]);
}

/* Lengths for which the quantile lies further from the maximum, recorded from the script's function
 * with PyTorch 2.15 on AVX2. */
TEST(test_long_vectors)
{
    static const struct {
        size_t n;
        uint32_t scale;
        int64_t sums[3];
    } cases[] = {
        {65537, 0x3d8101fb, {-20633, 4171171, -2154985}},
        {300000, 0x3d8101fb, {626, 19039772, -396733}},
        {2000000, 0x3d8101eb, {32183, 126985549, -3582173}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float *x = spread(cases[i].n), scale;
        int8_t *q = lks_test_malloc(cases[i].n);
        assert_ok(lks__quantize(LKS__QUANT_WHOLE, x, 1, cases[i].n, q, &scale));
        assert_int_equal(bits_of(scale), cases[i].scale);
        check_sums(q, cases[i].n, cases[i].sums);
        lks_test_free(q, x);
    }
}

/* One value far above the others: then the interpolation between it and the next must round as in
 * PyTorch, from the upper one, in one multiply-add. */
TEST(test_outliers)
{
    int64_t sum = 0;
    for (int k = 0; k < 2000; k++) {
        size_t n = 128 + 37 * (size_t)(k % 97);
        float *x = spread(n), scale;
        int8_t q[128 + 37 * 97];
        for (size_t i = 0; i < n; i++)
            x[i] *= 0.0137f;
        x[k % 128] = 0.0137f * (float)(k + 8);
        assert_ok(lks__quantize(LKS__QUANT_WHOLE, x, 1, n, q, &scale));
        sum += (int64_t)bits_of(scale) * (k + 1);
        free(x);
    }
    assert_int_equal(sum, 2081539361956207);
}

/* In so long a row the quantile excludes an outlier, which is cut on both sides of 0, even if the
 * least scale could represent it. */
TEST(test_clipped)
{
    const size_t n = 1 << 21;
    float *x = malloc(n * sizeof *x);
    int8_t *q = malloc(n);
    uint16_t scale;
    assert_true(x != NULL && q != NULL);
    for (size_t i = 0; i < n; i++)
        x[i] = i % 2 == 0 ? 0.25f : -0.25f;
    x[70] = 0.875f;
    x[71] = -0.875f;
    assert_ok(lks__quantize(LKS__QUANT_ROWS, x, 1, n, q, &scale));
    assert_int_equal(q[0], 32);
    assert_int_equal(q[70], 32);
    assert_int_equal(q[71], -32);
    lks_test_free(q, x);
}

/* Row r is r/16 of those values: small rows get the least scale. Compares sums of the scales'
 * bits. */
TEST(test_many_rows)
{
    static const struct {
        size_t rows, cols;
        int64_t sums[3], scales, weighted;
    } cases[] = {
        {64, 1025, {-18112, 4081926, -1684003}, 754807, 25229123},
        {1024, 192, {2793, 12538075, -1119387}, 16254356, 8701934067},
        {7, 30001, {26730, 10458358, 1985791}, 61762, 193494},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t rows = cases[i].rows, cols = cases[i].cols;
        float *x = spread(rows * cols);
        int8_t *q = malloc(rows * cols);
        uint16_t *scales = calloc(rows, sizeof *scales);
        int64_t sum = 0, weighted = 0;
        assert_true(q != NULL && scales != NULL);
        for (size_t j = 0; j < rows * cols; j++)
            x[j] *= (float)(j / cols) * 0.0625f;
        assert_ok(lks__quantize(LKS__QUANT_ROWS, x, rows, cols, q, scales));
        check_sums(q, rows * cols, cases[i].sums);
        for (size_t r = 0; r < rows; r++) {
            sum += scales[r];
            weighted += scales[r] * (int64_t)r;
        }
        assert_int_equal(sum, cases[i].scales);
        assert_int_equal(weighted, cases[i].weighted);
        lks_test_free(scales, q, x);
    }
}

/* ---- which tensors, how many bytes ----------------------------------------------------------- */

static bool names_have(const json_t *names, const char *name)
{
    const json_t *n;
    size_t i;
    json_array_foreach(names, i, n) if (strcmp(json_string_value(n), name) == 0) return true;
    return false;
}

static void check_rules(const char *figure_name)
{
    const json_t *figure = lks_test_figure(figure_name), *c = lks_test_member(figure, "config");
    const json_t *quant = lks_test_member(figure, "quant");
    lks__model_config config = {.ops = &lks__model_golf,
                                .n_layer = (int)lks_test_number(c, "NUM_LAYERS"),
                                .n_head = (int)lks_test_number(c, "NUM_HEADS"),
                                .n_kv_head = (int)lks_test_number(c, "NUM_KV_HEADS"),
                                .n_embd = (int)lks_test_number(c, "MODEL_DIM"),
                                .mlp_mult = (int)lks_test_number(c, "MLP_MULT"),
                                .block_size = (int)lks_test_number(c, "TRAIN_SEQ_LEN"),
                                .vocab_size = (int)lks_test_number(c, "VOCAB_SIZE"),
                                .tie_embeddings = true,
                                .logit_softcap = 30,
                                .rope_base = 10000};
    lks__table table;
    lks__artifact_stats stats;
    assert_ok(lks__model_table(&config, &table));
    lks__artifact_count(&table, &stats);
    assert_int_equal(stats.baseline_tensor_bytes,
                     lks_test_number(quant, "stats.baseline_tensor_bytes"));
    assert_int_equal(stats.int8_payload_bytes, lks_test_number(quant, "stats.int8_payload_bytes"));

    const json_t *kept = lks_test_member(quant, "passthrough_dtypes");
    for (size_t i = 0; i < table.n_tensors; i++) {
        const lks__table_tensor *t = &table.tensors[i];
        const char *dtype = json_string_value(json_object_get(kept, t->name));
        lks__quant_scheme scheme = lks__quant_scheme_of(t->keep_float, t->n_dims, t->count);
        bool in_list = names_have(lks_test_member(quant, "quantized_names"), t->name);
        assert_true((dtype == NULL) == in_list);
        assert_int_equal(scheme, in_list                         ? LKS__QUANT_ROWS
                                 : strcmp(dtype, "float16") == 0 ? LKS__QUANT_HALF
                                                                 : LKS__QUANT_FLOAT);
    }
    lks__table_free(&table);
}

TEST(test_rules)
{
    check_rules("golf_small.json");
    check_rules("generated/golf.json");
    check_rules("generated/golf_quantized.json");
    /* The size is checked before the name; 65,536 elements are still few. */
    assert_int_equal(lks__quant_scheme_of(true, 2, 65536), LKS__QUANT_FLOAT);
    assert_int_equal(lks__quant_scheme_of(true, 2, 65537), LKS__QUANT_ROWS);
    assert_int_equal(lks__quant_scheme_of(false, 2, 65536), LKS__QUANT_HALF);
    assert_int_equal(lks__quant_scheme_of(false, 1, 65537), LKS__QUANT_WHOLE);
    assert_int_equal(lks__quant_scheme_of(true, 1, 4), LKS__QUANT_FLOAT);
}

/* ---- what can't be represented --------------------------------------------------------------- */

TEST(test_refused)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const lks__quant_scheme schemes[] = {LKS__QUANT_FLOAT, LKS__QUANT_HALF, LKS__QUANT_ROWS,
                                                LKS__QUANT_WHOLE};
    float x[5] = {1, 2, 3, 4, NAN}, values[4]; /* the NaN is not quantized */
    float scales[2];
    for (size_t s = 0; s < 4; s++)
        for (size_t b = 0; b < 3; b++) {
            x[3] = bad[b];
            assert_fails(LKS_ERR_NAN, lks__quantize(schemes[s], x, 2, 2, values, scales), "finite");
        }
    x[3] = -FLT_MAX;
    assert_ok(lks__quantize(LKS__QUANT_FLOAT, x, 1, 4, values, scales));
    x[3] = 65519.0f; /* the largest that rounds to a finite half */
    assert_ok(lks__quantize(LKS__QUANT_HALF, x, 1, 4, values, scales));
    x[3] = -65520.0f;
    assert_fails(LKS_ERR_NAN, lks__quantize(LKS__QUANT_HALF, x, 1, 4, values, scales), "half");
    x[3] = 1e9f;
    assert_fails(LKS_ERR_NAN, lks__quantize(LKS__QUANT_ROWS, x, 1, 4, values, scales), "half");
    assert_ok(lks__quantize(LKS__QUANT_WHOLE, x, 1, 4, values, scales));

    /* PyTorch's quantile takes no longer row, so there is nothing to compare with. */
    size_t n = (1 << 24) + 1;
    float *row = lks_test_calloc(n, sizeof *row);
    int8_t *q = lks_test_malloc(n);
    assert_fails(LKS_ERR_SUPPORT, lks__quantize(LKS__QUANT_WHOLE, row, 1, n, q, scales), "row");
    assert_ok(lks__quantize(LKS__QUANT_WHOLE, row, 1, n - 1, q, scales));
    assert_true(scales[0] == 1.0f);
    lks_test_free(q, row);
}

TEST(test_refused_back)
{
    const uint16_t scales[] = {0x0000, 0x8000, 0xbc00, 0x7c00, 0x7e00};
    const float wholes[] = {0.0f, -1.0f, INFINITY, NAN};
    int8_t q[4] = {1, -127, 127, 0};
    float x[4];
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        uint16_t two[2] = {0x3c00, scales[i]};
        assert_fails(LKS_ERR_FORMAT, lks__dequantize(LKS__QUANT_ROWS, q, two, 2, 2, x), "scale");
    }
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++)
        assert_fails(LKS_ERR_FORMAT, lks__dequantize(LKS__QUANT_WHOLE, q, &wholes[i], 1, 4, x),
                     "scale");
    q[3] = -128;
    assert_fails(LKS_ERR_FORMAT, lks__dequantize(LKS__QUANT_WHOLE, q, &(float){1}, 1, 4, x), "128");
    assert_fails(LKS_ERR_FORMAT,
                 lks__dequantize(LKS__QUANT_HALF, (uint16_t[]){0, 0x7c00}, NULL, 1, 2, x),
                 "finite");
    assert_fails(LKS_ERR_FORMAT,
                 lks__dequantize(LKS__QUANT_FLOAT, (float[]){0, NAN}, NULL, 1, 2, x), "finite");
}
