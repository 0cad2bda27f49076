/* What follows products: epilogues, activations, sums of columns; and products of a few rows. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/number/bf16.h"
#include "compute/cpu/layers.h"
#include "host.h"

/* What bfloat16 leaves of x[n]. */
static float *rounded(const float *x, size_t n)
{
    float *y = host_floats(n);
    for (size_t i = 0; i < n; i++)
        y[i] = lks__bf16_to_float(lks__bf16_from_float(x[i]));
    return y;
}

/* --- epilogues ---------------------------------------------------------------------------------
 */

/* The function that `kind` names, or its slope. */
static double activation(lks__epilogue_kind kind, double x)
{
    const double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    const double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x), t = tanh(u);
    switch (kind) {
    case LKS__EPILOGUE_GELU:
        return x * 0.5 * (1 + erf(x / sqrt(2)));
    case LKS__EPILOGUE_GELU_BWD:
        return 0.5 * (1 + erf(x / sqrt(2))) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case LKS__EPILOGUE_GELU_TANH:
        return 0.5 * x * (1 + t);
    case LKS__EPILOGUE_GELU_TANH_BWD:
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
    case LKS__EPILOGUE_RELU2:
        return x > 0 ? x * x : 0;
    default:
        return x > 0 ? 2 * x : 0;
    }
}

/* All of one epilogue's matrices, with the elements between rows, which nobody may touch. */
struct finish {
    size_t rows, width, ld;
    const float *y, *in, *bias, *scale;
    lks__dropout drop;
};

static lks__epilogue epilogue_of(const struct finish *f, lks__epilogue_kind kind, bool bias,
                                 lks__act *out)
{
    lks__epilogue e = {.kind = kind, .bias = bias ? f->bias : NULL};
    switch (kind) {
    case LKS__EPILOGUE_NONE:
        break;
    case LKS__EPILOGUE_GELU:
    case LKS__EPILOGUE_GELU_TANH:
    case LKS__EPILOGUE_RELU2:
        e.out = out;
        break;
    case LKS__EPILOGUE_GELU_BWD:
    case LKS__EPILOGUE_GELU_TANH_BWD:
    case LKS__EPILOGUE_RELU2_BWD:
        e.in = lks__acts(f->in);
        break;
    case LKS__EPILOGUE_RESIDUAL:
        e.in = lks__acts(f->in);
        e.drop = bias ? &f->drop : NULL;
        break;
    case LKS__EPILOGUE_BRANCH:
        e.in = lks__acts(f->in);
        e.scale = f->scale;
        e.out = out;
        break;
    }
    return e;
}

/* In doubles. Where y or out isn't written, they keep what they hold. */
static void finish_in_doubles(const struct finish *f, const lks__epilogue *e, double *y,
                              double *out)
{
    for (size_t r = 0; r < f->rows; r++)
        for (size_t c = 0; c < f->width; c++) {
            const size_t i = r * f->ld + c;
            uint32_t words[4],
                counter[4] = {f->drop.step, f->drop.vm, f->drop.site, (uint32_t)(i / 4)};
            const double in = (double)f->in[i];
            y[i] += e->bias != NULL ? (double)e->bias[c] : 0.0;
            switch (e->kind) {
            case LKS__EPILOGUE_NONE:
                break;
            case LKS__EPILOGUE_GELU:
            case LKS__EPILOGUE_GELU_TANH:
            case LKS__EPILOGUE_RELU2:
                out[i] = activation(e->kind, y[i]);
                break;
            case LKS__EPILOGUE_GELU_BWD:
            case LKS__EPILOGUE_GELU_TANH_BWD:
            case LKS__EPILOGUE_RELU2_BWD:
                y[i] *= activation(e->kind, in);
                break;
            case LKS__EPILOGUE_RESIDUAL:
                lks__philox4x32(f->drop.key, counter, words);
                if (e->drop != NULL)
                    y[i] *= words[i % 4] >= f->drop.threshold ? (double)f->drop.scale : 0.0;
                y[i] += in;
                break;
            case LKS__EPILOGUE_BRANCH:
                out[i] = in + (double)e->scale[c] * y[i];
                break;
            }
        }
}

static float *larger(size_t n, unsigned seed)
{
    float *x = host_randoms(n, seed);
    for (size_t i = 0; i < n; i++)
        x[i] *= 5.0f;
    return x;
}

static void check_epilogue(size_t rows, size_t width, size_t ld)
{
    const size_t n = rows * ld;
    const struct finish f = {rows,
                             width,
                             ld,
                             larger(n, 1),
                             larger(n, 2),
                             host_randoms(width, 3),
                             host_randoms(width, 4),
                             host_dropout(0.3)};
    for (int kind = LKS__EPILOGUE_NONE; kind <= LKS__EPILOGUE_BRANCH; kind++)
        for (int bias = 0; bias < 2; bias++) {
            const float *begin = host_randoms(n, 5);
            float *kept_y = NULL, *kept_out = NULL;
            double *want_y = host_doubles(n), *want_out = host_doubles(n);
            for (size_t i = 0; i < n; i++) {
                want_y[i] = (double)f.y[i];
                want_out[i] = (double)begin[i];
            }
            EACH_ORDER(seed)
            {
                float *y = host_copy(f.y, n), *out = host_copy(begin, n);
                const lks__epilogue e =
                    epilogue_of(&f, (lks__epilogue_kind)kind, bias, lks__acts(out));
                if (seed == 0)
                    finish_in_doubles(&f, &e, want_y, want_out);
                lks__cuda_epilogue(NULL, lks__acts(y), ld, rows, width, &e);
                assert_close(y, want_y, n, 1e-6);
                assert_close(out, want_out, n, 1e-6);
                if (seed == 0) {
                    kept_y = y;
                    kept_out = out;
                }
                assert_bits(y, kept_y, n);
                assert_bits(out, kept_out, n);
            }
        }
}

/* These bits; but those of GELU may be off by 10^-6 and one bit, because it has another formula
 * in bfloat16. */
static void assert_halves(const float *got, const float *want, size_t n, lks__epilogue_kind kind)
{
    if (kind != LKS__EPILOGUE_GELU && kind != LKS__EPILOGUE_GELU_BWD)
        assert_bits(got, want, n);
    else
        for (size_t i = 0; i < n; i++)
            if (memcmp(&got[i], &want[i], sizeof *got) != 0)
                assert_near((double)got[i], (double)want[i], 1e-6 + 0x1p-7 * fabs((double)want[i]));
}

/* In bfloat16 y and out are the floats' results, rounded once; out is made of what y keeps. */
static void check_epilogue_halves(size_t rows, size_t width, size_t ld)
{
    const size_t n = rows * ld;
    const float *begin = rounded(host_randoms(n, 5), n);
    const struct finish f = {rows,
                             width,
                             ld,
                             rounded(larger(n, 1), n),
                             rounded(larger(n, 2), n),
                             host_randoms(width, 3),
                             host_randoms(width, 4),
                             host_dropout(0.3)};
    for (int kind = LKS__EPILOGUE_NONE; kind <= LKS__EPILOGUE_BRANCH; kind++) {
        float *y = host_copy(f.y, n), *out = host_copy(begin, n);
        lks__epilogue e = epilogue_of(&f, (lks__epilogue_kind)kind, true, lks__acts(out));
        lks__cuda_epilogue(NULL, lks__acts(y), ld, rows, width, &e);
        const float *want = rounded(y, n);
        if (e.out != NULL) {
            e.bias = NULL;
            lks__cuda_epilogue(NULL, lks__acts(host_copy(want, n)), ld, rows, width, &e);
        }
        host_halves(true);
        EACH_ORDER(seed)
        {
            lks__act *acts = host_acts(f.y, n), *second = host_acts(begin, n);
            e = epilogue_of(&f, (lks__epilogue_kind)kind, true, second);
            e.in = e.in != NULL ? host_acts(f.in, n) : NULL;
            lks__cuda_epilogue(NULL, acts, ld, rows, width, &e);
            assert_halves(host_act_floats(acts, n), want, n, e.kind);
            assert_halves(host_act_floats(second, n), rounded(out, n), n, e.kind);
        }
        host_halves(false);
    }
}

TEST(test_epilogue)
{
    check_epilogue_halves(3, 1, 1);
    check_epilogue_halves(5, 7, 9);
    check_epilogue_halves(4, 260, 264);
    check_epilogue_halves(2, 1028, 1028);
    check_epilogue(3, 1, 1);
    check_epilogue(5, 7, 9);
    check_epilogue(9, 64, 64);
    check_epilogue(4, 260, 264);
    check_epilogue(2, 1028, 1028);
    lks__cuda_epilogue(NULL, NULL, 4, 3, 4,
                       &(lks__epilogue){LKS__EPILOGUE_NONE}); /* nothing to do */
}

/* A y that doesn't change isn't written: here that would be a fault. */
TEST(test_epilogue_unchanged)
{
    enum { N = 64 };
    void *y = mmap(NULL, N * sizeof(float), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(y != MAP_FAILED);
    const lks__epilogue relu2 = {.kind = LKS__EPILOGUE_RELU2, .out = host_empty_acts(N)};
    lks__cuda_epilogue(NULL, lks__acts(y), N, 1, N, &relu2);
    munmap(y, N * sizeof(float));
}

/* The sums of the CPU in its order, where there is only one: its bits. */
TEST(test_epilogue_bits)
{
    enum { ROWS = 6, WIDTH = 68 };
    const size_t n = ROWS * WIDTH;
    const lks__epilogue_kind kinds[] = {LKS__EPILOGUE_RELU2, LKS__EPILOGUE_RELU2_BWD,
                                        LKS__EPILOGUE_RESIDUAL, LKS__EPILOGUE_BRANCH};
    const float one = 1.0f;
    const struct finish f = {ROWS,
                             WIDTH,
                             WIDTH,
                             larger(n, 1),
                             larger(n, 2),
                             host_randoms(WIDTH, 3),
                             host_randoms(WIDTH, 4),
                             host_dropout(0.3)};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        float *y = host_copy(f.y, n), *out = host_floats(n);
        float *want = host_floats(n), *want_out = host_floats(n);
        lks__epilogue e = epilogue_of(&f, kinds[k], true, lks__acts(out));
        lks__cuda_epilogue(NULL, lks__acts(y), WIDTH, ROWS, WIDTH, &e);
        e.out = e.out != NULL ? lks__acts(want_out) : NULL;
        /* A product of inner dimension 1 by the number 1 is its operand. */
        float *x = host_copy(f.y, n);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < WIDTH; c++) {
                const size_t i = r * WIDTH + c;
                lks__epilogue at = e;
                lks__dropout none = {{{0}}, 0, 0, 0, 0, 1.0f};
                if (kinds[k] == LKS__EPILOGUE_RESIDUAL)
                    continue;
                at.bias += c;
                at.in = at.in != NULL ? lks__act_at(at.in, i, sizeof(float)) : NULL;
                at.out = at.out != NULL ? lks__act_at(at.out, i, sizeof(float)) : NULL;
                at.scale = at.scale != NULL ? at.scale + c : NULL;
                at.drop = at.drop != NULL ? &none : NULL;
                lks__layers_cpu.linear_fwd(host_exec(), lks__acts(&want[i]), 1, lks__acts(&x[i]),
                                           &one, 1, 1, 1, &at);
            }
        if (kinds[k] == LKS__EPILOGUE_RESIDUAL) {
            for (size_t i = 0; i < n; i++)
                want[i] = x[i] + f.bias[i % WIDTH];
            lks__layers_cpu.dropout_rows(host_exec(), lks__acts(want), lks__acts(want), ROWS, WIDTH,
                                         &f.drop);
            lks__layers_cpu.accumulate(host_exec(), want, f.in, n);
        }
        assert_bits(y, want, n);
        if (e.out != NULL)
            assert_bits(out, want_out, n);
    }
}

/* The bits of the epilogue; a NaN stays one. */
TEST(test_activation)
{
    const lks__epilogue_kind kinds[] = {LKS__EPILOGUE_GELU, LKS__EPILOGUE_GELU_TANH,
                                        LKS__EPILOGUE_RELU2};
    const size_t widths[] = {1, 30, 260};
    for (int k = 0; k < 3; k++)
        for (int w = 0; w < 3; w++)
            EACH_ORDER(seed)
            {
                const size_t n = 7 * widths[w];
                float *x = larger(n, 1), *y = host_floats(n), *out = host_floats(n);
                float *cpu = host_floats(n);
                const lks__epilogue e = {.kind = kinds[k], .out = lks__acts(out)};
                lks__cuda_activation_fwd(NULL, kinds[k], lks__acts(y), lks__acts(x), 7, widths[w]);
                lks__layers_cpu.activation_fwd(host_exec(), kinds[k], lks__acts(cpu), lks__acts(x),
                                               7, widths[w]);
                assert_close_floats(y, cpu, n, 1e-6);
                lks__cuda_epilogue(NULL, lks__acts(x), widths[w], 7, widths[w], &e);
                assert_bits(y, out, n);
                x[n - 1] = NAN;
                lks__cuda_activation_fwd(NULL, kinds[k], lks__acts(y), lks__acts(x), 7, widths[w]);
                assert_true(isnan(y[n - 1]));
            }
}

/* In bfloat16: what floats give, rounded once, and the epilogue's bits. */
TEST(test_activation_halves)
{
    const lks__epilogue_kind kinds[] = {LKS__EPILOGUE_GELU, LKS__EPILOGUE_GELU_TANH,
                                        LKS__EPILOGUE_RELU2};
    const size_t widths[] = {1, 30, 260};
    for (int k = 0; k < 3; k++)
        for (int w = 0; w < 3; w++) {
            const size_t n = 7 * widths[w];
            float *x = rounded(larger(n, 1), n), *want = host_floats(n);
            lks__cuda_activation_fwd(NULL, kinds[k], lks__acts(want), lks__acts(x), 7, widths[w]);
            host_halves(true);
            EACH_ORDER(seed)
            {
                lks__act *acts = host_acts(x, n), *y = host_empty_acts(n);
                lks__act *out = host_empty_acts(n);
                const lks__epilogue e = {.kind = kinds[k], .out = out};
                lks__cuda_activation_fwd(NULL, kinds[k], y, acts, 7, widths[w]);
                lks__cuda_epilogue(NULL, acts, widths[w], 7, widths[w], &e);
                assert_halves(host_act_floats(y, n), rounded(want, n), n, kinds[k]);
                assert_bits(host_act_floats(out, n), host_act_floats(y, n), n);
            }
            host_halves(false);
        }
}

/* --- sums of columns ---------------------------------------------------------------------------
 */

static void check_sums(size_t rows, size_t C, size_t ld)
{
    const float *x = host_randoms(rows * ld, 1), *begin = host_randoms(C, 2);
    double *want = host_doubles(C);
    float *kept = NULL;
    for (size_t c = 0; c < C; c++) {
        want[c] = (double)begin[c];
        for (size_t r = 0; r < rows; r++)
            want[c] += (double)x[r * ld + c];
    }
    EACH_ORDER(seed)
    {
        float *sums = host_copy(begin, C);
        lks__cuda_column_sums(NULL, sums, x, ld, rows, C);
        assert_close(sums, want, C, 1e-5);
        kept = seed == 0 ? sums : kept;
        assert_bits(sums, kept, C);
        for (int halves = 0; halves < 2; halves++) {
            float *of_floats = host_copy(begin, C), *of_acts = host_copy(begin, C);
            host_halves(halves == 1);
            lks__cuda_column_sums(NULL, of_floats, host_as_stored(x, rows * ld), ld, rows, C);
            lks__cuda_act_sums(NULL, of_acts, host_acts(x, rows * ld), ld, rows, C);
            assert_bits(of_acts, of_floats, C);
        }
        host_halves(false);
    }
}

TEST(test_column_sums)
{
    check_sums(1, 1, 1);
    check_sums(16, 33, 33);
    check_sums(512, 5, 6);
    check_sums(513, 70, 72);
#ifndef LKS_TEST_THREAD
    check_sums(1700, 3, 3);
    check_sums(512 * 512 + 1, 1, 1); /* sums of sums of slabs */
#endif
}

/* --- products of a few rows --------------------------------------------------------------------
 */

static void check_rows(size_t rows, size_t out, size_t in)
{
    const size_t ld = out + 3;
    const float *x = host_randoms(rows * in, 1), *w = host_randoms(out * in, 2);
    const float *bias = host_randoms(out, 3), *residual = host_randoms(rows * ld, 4);
    double *want = host_doubles(rows * ld);
    float *kept = NULL;
    lks__dropout none = host_dropout(0.0);
    const lks__epilogue e = {
        .kind = LKS__EPILOGUE_RESIDUAL, .bias = bias, .in = lks__acts(residual), .drop = &none};
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < out; o++) {
            want[r * ld + o] = (double)bias[o] + (double)residual[r * ld + o];
            for (size_t i = 0; i < in; i++)
                want[r * ld + o] += (double)x[r * in + i] * (double)w[o * in + i];
        }
    EACH_ORDER(seed)
    {
        float *y = host_floats(rows * ld), *plain = host_floats(rows * ld);
        float *cpu = host_floats(rows * ld);
        for (size_t i = 0; i < rows * ld; i++)
            y[i] = plain[i] = cpu[i] = 0.0f;
        lks__cuda_linear_rows_fwd(NULL, lks__acts(y), ld, lks__acts(x), w, rows, out, in, &e);
        assert_close(y, want, rows * ld, 1e-5);
        kept = seed == 0 ? y : kept;
        assert_bits(y, kept, rows * ld);
        lks__cuda_linear_rows_fwd(NULL, lks__acts(plain), ld, lks__acts(x), w, rows, out, in, NULL);
        lks__layers_cpu.linear_rows_fwd(host_exec(), lks__acts(cpu), ld, lks__acts(x), w, rows, out,
                                        in, NULL);
        assert_close_floats(plain, cpu, rows * ld, 1e-5);
        for (size_t r = 0; r < rows; r++) { /* one row alone */
            float *one = host_floats(out);
            lks__cuda_linear_rows_fwd(NULL, lks__acts(one), out, lks__acts(x + r * in), w, 1, out,
                                      in, NULL);
            assert_bits(plain + r * ld, one, out);
        }
    }
}

/* Activations in bfloat16: what floats of these values give, rounded once. */
static void check_rows_halves(size_t rows, size_t out, size_t in)
{
    const size_t ld = out + 3, n = rows * ld;
    const float *x = rounded(host_randoms(rows * in, 1), rows * in), *w = host_randoms(out * in, 2);
    const float *residual = rounded(host_randoms(n, 4), n), *begin = rounded(host_randoms(n, 5), n);
    const lks__dropout none = host_dropout(0.0);
    lks__epilogue e = {.kind = LKS__EPILOGUE_RESIDUAL,
                       .bias = host_randoms(out, 3),
                       .in = lks__acts(residual),
                       .drop = &none};
    float *want = host_copy(begin, n);
    lks__cuda_linear_rows_fwd(NULL, lks__acts(want), ld, lks__acts(x), rounded(w, out * in), rows,
                              out, in, &e);
    want = rounded(want, n);
    host_halves(true);
    EACH_ORDER(seed)
    {
        lks__act *y = host_acts(begin, n), *acts = host_acts(x, rows * in);
        e.in = host_acts(residual, n);
        lks__cuda_linear_rows_fwd(NULL, y, ld, acts, w, rows, out, in, &e);
        assert_bits(host_act_floats(y, n), want, n);
        lks__act *odd = host_empty_acts(rows * in + 1); /* one that begins elsewhere */
        lks__cuda_act_copy(NULL, host_act_at(odd, 1), acts, rows * in);
        y = host_acts(begin, n);
        lks__cuda_linear_rows_fwd(NULL, y, ld, host_act_at(odd, 1), w, rows, out, in, &e);
        assert_bits(host_act_floats(y, n), want, n);
        for (size_t r = 0; r < rows; r++) { /* one row alone */
            lks__act *one = host_acts(begin + r * ld, out);
            e.in = host_acts(residual + r * ld, out);
            lks__cuda_linear_rows_fwd(NULL, one, out, host_act_at(acts, r * in), w, 1, out, in, &e);
            assert_bits(host_act_floats(one, out), want + r * ld, out);
        }
    }
    host_halves(false);
}

TEST(test_linear_rows)
{
    check_rows_halves(1, 1, 1);
    check_rows_halves(3, 9, 7);
    check_rows_halves(8, 16, 132);
    check_rows_halves(17, 5, 260);
    check_rows(1, 1, 1);
    check_rows(3, 9, 7);
    check_rows(8, 16, 132);
    check_rows(17, 5, 260);
}

/* --- bfloat16 ----------------------------------------------------------------------------------
 */

/* Of matrices with gaps between rows and between matrices, which nobody may touch. */
static void check_rounding(size_t count, size_t rows, size_t width, size_t gap)
{
    const size_t ld = width + gap, stride = rows * ld + gap, n = count * stride;
    float *x = host_randoms(n, 1);
    for (size_t i = 0; i < n; i += 3) /* a tie between two, one above it, and large ones */
        x[i] = i % 9 == 0   ? ldexpf(1.0f + (float)(2 * (i % 8) + 1) / 256.0f, (int)i % 60 - 30)
               : i % 9 == 3 ? nextafterf(1.0f + 1.0f / 256.0f, 2.0f)
                            : x[i] * 0x1p+127f;
    static const float rare[] = {INFINITY, -INFINITY, 0.0f, -0.0f, FLT_MAX, 0x1p-140f, -0x1p-149f};
    for (size_t i = 0; i < sizeof rare / sizeof *rare && 2 * i < n; i++)
        x[2 * i] = rare[i];
    EACH_ORDER(seed)
    {
        uint16_t *y = host_work(n * sizeof *y);
        const lks__cuda_rounding r = {y, x, rows, width, ld, ld, count, stride, stride, NULL};
        lks__cuda_round(NULL, &r);
        for (size_t i = 0; i < n; i++) {
            const bool inside = i % stride < rows * ld && i % stride % ld < width;
            assert_int_equal(y[i], inside ? lks__bf16_from_float(x[i]) : 0xffff);
        }
    }
}

TEST(test_rounding)
{
    check_rounding(1, 1, 1, 0);
    check_rounding(1, 3, 5, 0);
    check_rounding(3, 4, 12, 4);
    check_rounding(2, 7, 9, 3);
    check_rounding(2, 3, 4100, 0); /* more than a block takes, by fours and a rest */
    check_rounding(1, 1, 8193, 0);
    uint16_t *y = host_work(sizeof *y);
    float *x = host_floats(1); /* NaN */
    lks__cuda_round(NULL, &(lks__cuda_rounding){y, x, 1, 1, 1, 1, 1, 0, 0, NULL});
    assert_true(isnan(lks__bf16_to_float(*y)));
}
