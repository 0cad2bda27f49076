/* Operations on rows: LayerNorm, embeddings, dropout, and the head's loss, with activations in
 * float32 and in bfloat16. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "compute/cuda/questions.h"
#include "host.h"

/* Lengths of rows: fours and not, one block's columns and more. */
static const size_t widths[] = {1, 3, 32, 130, 260, 1028};
#ifdef LKS_TEST_THREAD
enum { WIDTHS = sizeof widths / sizeof *widths - 2, SORTED = LKS__CUDA_SORT_ROWS / 2 + 50 };
#else
enum { WIDTHS = sizeof widths / sizeof *widths, SORTED = LKS__CUDA_SORT_ROWS + 452 };
#endif

/* Keeps what the first order gave, and compares that of later ones with it. */
static void assert_same_each(const char *what, const float **kept, unsigned seed, const float *got,
                             size_t n)
{
    if (seed == 0)
        *kept = got;
    host_bits(got, *kept, n, what, __FILE__, __LINE__);
}

/* --- LayerNorm -------------------------------------------------------------------------------- */

struct norm {
    size_t rows, C;
    const float *x, *dy, *gain, *bias;
    double *y, *dx, *dgain, *dbias; /* in doubles; without what gradients are added to */
};

static struct norm norm_of(size_t rows, size_t C)
{
    const size_t n = rows * C;
    struct norm o = {rows,
                     C,
                     host_as_stored(host_randoms(n, 1), n),
                     host_as_stored(host_randoms(n, 2), n),
                     host_randoms(C, 3),
                     host_randoms(C, 4),
                     host_doubles(n),
                     host_doubles(n),
                     host_doubles(C),
                     host_doubles(C)};
    for (size_t i = 0; i < n; i += C) {
        double mean = 0.0, variance = 0.0, mean_d = 0.0, mean_d_xhat = 0.0;
        for (size_t j = 0; j < C; j++)
            mean += (double)o.x[i + j] / (double)C;
        for (size_t j = 0; j < C; j++)
            variance += pow((double)o.x[i + j] - mean, 2) / (double)C;
        const double r = 1.0 / sqrt(variance + 1e-5);
        for (size_t j = 0; j < C; j++) {
            const double xhat = ((double)o.x[i + j] - mean) * r, dy = (double)o.dy[i + j];
            o.y[i + j] = xhat * (double)o.gain[j] + (double)o.bias[j];
            mean_d += dy * (double)o.gain[j] / (double)C;
            mean_d_xhat += dy * (double)o.gain[j] * xhat / (double)C;
            o.dgain[j] += dy * xhat;
            o.dbias[j] += dy;
        }
        for (size_t j = 0; j < C; j++) {
            const double xhat = ((double)o.x[i + j] - mean) * r;
            o.dx[i + j] =
                r * ((double)o.dy[i + j] * (double)o.gain[j] - mean_d - xhat * mean_d_xhat);
        }
    }
    return o;
}

/* What gradients are added to, which is in the doubles, too. */
static float *begin_gradient(double *want, size_t n, unsigned seed)
{
    float *x = host_randoms(n, seed);
    for (size_t i = 0; i < n; i++)
        want[i] += (double)x[i];
    return x;
}

static void check_norm(size_t rows, size_t C)
{
    const size_t n = rows * C;
    const struct norm o = norm_of(rows, C);
    const float *dx0 = host_as_stored(host_randoms(n, 5), n);
    const float *dgain0 = begin_gradient(o.dgain, C, 6), *dbias0 = begin_gradient(o.dbias, C, 7);
    const float *kept[4] = {0};
    const lks__act *x = host_acts(o.x, n), *dy = host_acts(o.dy, n);
    for (size_t i = 0; i < n; i++)
        o.dx[i] += (double)dx0[i];
    EACH_ORDER(seed)
    {
        float *mean = host_floats(rows), *rstd = host_floats(rows);
        lks__act *y = host_empty_acts(n), *dx = host_acts(dx0, n), *other = host_acts(dx0, n);
        float *dgain = host_copy(dgain0, C), *dbias = host_copy(dbias0, C);
        float *partial = host_floats(lks__cuda_layernorm_partial_floats(rows, C));
        lks__cuda_layernorm_rows_fwd(NULL, y, mean, rstd, x, o.gain, o.bias, rows, C);
        lks__cuda_layernorm_rows_bwd(NULL, dx, dgain, dbias, dy, x, o.gain, mean, rstd, rows, C,
                                     partial);
        const float *got_y = host_act_floats(y, n), *got_dx = host_act_floats(dx, n);
        assert_close(got_y, o.y, n, host_tolerance());
        assert_close(got_dx, o.dx, n, host_tolerance());
        assert_close(dgain, o.dgain, C, 1e-5);
        assert_close(dbias, o.dbias, C, 1e-5);
        assert_same_each("y", &kept[0], seed, got_y, n);
        assert_same_each("dx", &kept[1], seed, got_dx, n);
        assert_same_each("dgain", &kept[2], seed, dgain, C);
        assert_same_each("dbias", &kept[3], seed, dbias, C);

        /* Gradients that are neighbours are added by one launch, with the same bits. */
        float *both = host_floats(2 * C);
        memcpy(both, dgain0, C * sizeof *both);
        memcpy(both + C, dbias0, C * sizeof *both);
        lks__cuda_layernorm_rows_bwd(NULL, host_acts(dx0, n), both, both + C, dy, x, o.gain, mean,
                                     rstd, rows, C, partial);
        assert_bits(both, dgain, C);
        assert_bits(both + C, dbias, C);

        /* Frozen parameters: the same dx without their sums, whose work space isn't touched. */
        lks__cuda_layernorm_rows_bwd(NULL, other, NULL, NULL, dy, x, o.gain, mean, rstd, rows, C,
                                     NULL);
        assert_bits(host_act_floats(other, n), got_dx, n);
        if (seed != 0)
            continue;

        lks__act *y2 = host_empty_acts(n);
        lks__cuda_layernorm_rows_fwd(NULL, y2, mean, rstd, x, o.gain, NULL, rows, C);
        const bool halves = host_halves(false);
        lks__act *cpu = host_empty_acts(n);
        float *cpu_mean = host_floats(rows), *cpu_rstd = host_floats(rows);
        lks__layers_cpu.layernorm_rows_fwd(host_exec(), cpu, cpu_mean, cpu_rstd, host_acts(o.x, n),
                                           o.gain, NULL, rows, C);
        const float *want = host_act_floats(cpu, n);
        host_halves(halves);
        assert_close_floats(host_act_floats(y2, n), host_as_stored(want, n), n, host_tolerance());
        assert_close_floats(mean, cpu_mean, rows, 1e-6);
        assert_close_floats(rstd, cpu_rstd, rows, 1e-5);
    }
}

HOST_TEST(test_layernorm)
{
    for (size_t w = 1; w < WIDTHS; w++) /* a row of one element is always 0: below */
        check_norm(w % 2 != 0 ? 37 : 70, widths[w]);
#ifndef LKS_TEST_THREAD
    check_norm(33, 4100); /* sums of further columns in the work space */
    check_norm(3, 1031);
#endif
    const float x[3] = {5.0f, -7.0f, 0.0f}, one = 1.0f, half = 0.5f;
    float mean[3], rstd[3];
    lks__act *y = host_empty_acts(3);
    lks__cuda_layernorm_rows_fwd(NULL, y, mean, rstd, host_acts(x, 3), &one, &half, 3, 1);
    for (int i = 0; i < 3; i++)
        assert_true(host_act_floats(y, 3)[i] == 0.5f && mean[i] == x[i]);
}

/* The rows' variance is that around their mean, however large that is; from 256 on, bfloat16 has
 * every second number. */
HOST_TEST(test_layernorm_far)
{
    enum { C = 256 };
    float *x = host_randoms(C, 1), *gain = host_floats(C), mean, rstd;
    double square = 0.0;
    for (size_t i = 0; i < C; i++) {
        x[i] = lks__cuda_halves(NULL) ? 256.0f + 2.0f * (float)(i % 3) : 1000.0f + x[i] / 16.0f;
        gain[i] = 1.0f;
    }
    lks__act *y = host_empty_acts(C);
    lks__cuda_layernorm_rows_fwd(NULL, y, &mean, &rstd, host_acts(x, C), gain, NULL, 1, C);
    const float *got = host_act_floats(y, C);
    for (size_t i = 0; i < C; i++)
        square += (double)got[i] * (double)got[i] / C;
    assert_near(square, 1.0, 1e-2);
}

/* --- embeddings and dropout: the CPU's bits --------------------------------------------------- */

static void check_embedding(size_t T, size_t B, size_t C, int32_t V, double p)
{
    const size_t rows = B * T, n = rows * C, words = (size_t)V * C;
    const float *wte = host_randoms(words, 1), *wpe = host_randoms((T + 1) * C, 2);
    const float *dx_stored = host_as_stored(host_randoms(n, 3), n);
    const int32_t *tokens = host_tokens(rows, V, 4);
    const lks__dropout drop = host_dropout(p);
    const lks__layers *cpu = &lks__layers_cpu;
    const lks__act *dx = host_acts(dx_stored, n);
    const bool halves = host_halves(false);
    lks__act *cpu_x = host_empty_acts(n), *cpu_dx = host_acts(dx_stored, n);
    cpu->embedding_fwd(host_exec(), cpu_x, tokens, wte, wpe, rows, T, C, &drop);
    const float *want = host_act_floats(cpu_x, n);
    host_halves(halves);
    want = host_as_stored(want, n);
    EACH_ORDER(seed)
    {
        lks__act *x = host_empty_acts(n);
        float *dwte = host_copy(wte, words), *dwpe = host_copy(wpe, (T + 1) * C);
        float *dwte2 = host_copy(wte, words), *dwpe2 = host_copy(wpe, (T + 1) * C);
        lks__cuda_embedding_fwd(NULL, x, tokens, wte, wpe, rows, T, C, &drop);
        assert_bits(host_act_floats(x, n), want, n);
        lks__cuda_embedding_bwd(NULL, dwte, NULL, dx, tokens, rows, T, C);
        lks__cuda_embedding_bwd(NULL, NULL, dwpe, dx, tokens, rows, T, C);
        cpu->embedding_bwd(host_exec(), dwte2, dwpe2, cpu_dx, tokens, rows, T, C);
        assert_bits(dwte, dwte2, words);
        assert_bits(dwpe, dwpe2, (T + 1) * C);
        lks__cuda_embedding_bwd(NULL, dwte, dwpe, dx, tokens, rows, T, C);
        cpu->embedding_bwd(host_exec(), dwte2, dwpe2, cpu_dx, tokens, rows, T, C);
        assert_bits(dwte, dwte2, words);
        assert_bits(dwpe, dwpe2, (T + 1) * C);
    }
    double *sums = host_doubles(words); /* the gradient of a table, in doubles */
    float *dwte = host_floats(words);
    memset(dwte, 0, words * sizeof *dwte);
    for (size_t i = 0; i < n; i++)
        sums[(size_t)tokens[i / C] * C + i % C] += (double)dx_stored[i];
    lks__cuda_embedding_bwd(NULL, dwte, NULL, dx, tokens, rows, T, C);
    assert_close(dwte, sums, words, 1e-5);
}

HOST_TEST(test_embedding)
{
    check_embedding(1, 1, 1, 1, 0.0);
    check_embedding(7, 3, 5, 4, 0.3); /* a token has many rows, and some tokens none */
    check_embedding(65, 5, 68, 100, 0.0);
    check_embedding(3, 1, 1028, 2, 0.5);
#ifdef LKS_TEST_THREAD /* takes seconds under it, and the sort reads no activations */
    if (lks__cuda_halves(NULL))
        return;
#endif
    check_embedding(SORTED, 2, 1, 300, 0.0); /* several tiles are sorted, the last one in part */
}

HOST_TEST(test_dropout)
{
    const lks__dropout drops[] = {host_dropout(0.0), host_dropout(0.3)};
    for (size_t w = 0; w < WIDTHS; w++)
        for (size_t i = 0; i < 2; i++)
            EACH_ORDER(seed)
            {
                const size_t rows = 5, n = rows * widths[w];
                float *x = host_randoms(n, 1);
                x[n / 2] = INFINITY; /* dropped, it is a NaN */
                x = host_as_stored(x, n);
                const bool halves = host_halves(false);
                lks__act *cpu = host_empty_acts(n);
                lks__layers_cpu.dropout_rows(host_exec(), cpu, host_acts(x, n), rows, widths[w],
                                             &drops[i]);
                const float *want = host_act_floats(cpu, n);
                host_halves(halves);
                want = host_as_stored(want, n);
                lks__act *y = host_empty_acts(n), *in_place = host_acts(x, n);
                lks__cuda_dropout_rows(NULL, y, host_acts(x, n), rows, widths[w], &drops[i]);
                lks__cuda_dropout_rows(NULL, in_place, in_place, rows, widths[w], &drops[i]);
                const float *got[2] = {host_act_floats(y, n), host_act_floats(in_place, n)};
                for (size_t j = 0; j < 2 * n; j++)
                    assert_true(isnan(want[j / 2]) ? isnan(got[j % 2][j / 2])
                                                   : got[j % 2][j / 2] == want[j / 2]);
            }
}

/* --- the head --------------------------------------------------------------------------------- */

/* loss, and the gradient in place of the logits. */
static double xent_of(double *row, size_t V, size_t target, double scale, double cap)
{
    double max = -INFINITY, sum = 0.0;
    for (size_t j = 0; j < V; j++)
        max = fmax(max, cap == 0.0 ? row[j] : cap * tanh(row[j] / cap));
    for (size_t j = 0; j < V; j++)
        sum += exp((cap == 0.0 ? row[j] : cap * tanh(row[j] / cap)) - max);
    const double l = cap == 0.0 ? row[target] : cap * tanh(row[target] / cap);
    for (size_t j = 0; j < V; j++) {
        const double t = cap == 0.0 ? 0.0 : tanh(row[j] / cap), x = cap == 0.0 ? row[j] : cap * t;
        row[j] = (exp(x - max) / sum - (j == target)) * scale * (1.0 - t * t);
    }
    return log(sum) - (l - max);
}

/* Those of the other words are small next to the target's, so each is compared with its own size.
 */
static void assert_slopes(const float *got, const double *want, size_t V, size_t target)
{
    for (size_t j = 0; j < V; j++)
        if (j != target)
            assert_near(got[j] / want[j], 1.0, host_tolerance());
}

static void check_xent(size_t rows, size_t V, size_t ld, float cap)
{
    const size_t n = rows * ld;
    const float *kept = NULL;
    float *logits = host_randoms(n, 1);
    const int32_t *targets = host_tokens(rows, (int32_t)V, 2);
    double losses[64], before[64];
    for (size_t i = 0; i < n; i++)
        logits[i] = 12.0f * logits[i] - (cap == 0.0f ? 40.0f : 0.0f); /* 0 would be the largest */
    logits = host_as_stored(logits, n);
    double *want = host_wide(logits, n);
    for (size_t r = 0; r < rows; r++)
        losses[r] = xent_of(want + r * ld, V, (size_t)targets[r], 1.0, (double)cap);
    EACH_ORDER(seed)
    {
        lks__act *x = host_acts(logits, n);
        float loss, cpu_loss;
        double got[64];
        lks__xent o = {.rows = rows, .V = V, .ld = ld, .scale = 1.0f, .softcap = cap};
        lks__cuda_xent_rows(NULL, &o, x, targets, got);
        assert_bits(host_act_floats(x, n), logits, n); /* without the gradient they stay */
        o.grad = true;
        lks__cuda_xent_rows(NULL, &o, x, targets, before);
        assert_memory_equal(got, before, rows * sizeof *got);
        for (size_t r = 0; r < rows; r++)
            assert_near(got[r], losses[r], 1e-5 * fmax(1.0, losses[r]));
        const float *grad = host_act_floats(x, n);
        for (size_t r = 0; r < rows; r++) {
            assert_close(grad + r * ld, want + r * ld, V, host_tolerance());
            assert_slopes(grad + r * ld, want + r * ld, V, (size_t)targets[r]);
            assert_bits(grad + r * ld + V, logits + r * ld + V, ld - V); /* beyond V they stay */
        }
        assert_same_each("gradient", &kept, seed, grad, n);
        lks__cuda_mean_loss(NULL, &loss, got, rows);
        lks__layers_cpu.mean_loss(host_exec(), &cpu_loss, got, rows);
        assert_close_floats(&loss, &cpu_loss, 1, 1e-7);
    }
    lks__act *x = host_acts(logits, n);
    lks__xent o = {rows, V, ld, 0.25f, cap, true};
    lks__cuda_xent_rows(NULL, &o, x, targets, before);
    const float *grad = host_act_floats(x, n);
    const bool halves = host_halves(false);
    lks__act *cpu = host_acts(logits, n);
    lks__layers_cpu.xent_rows(host_exec(), &o, cpu, targets, losses);
    const float *cpu_grad = host_act_floats(cpu, n);
    host_halves(halves);
    assert_close_floats(grad, host_as_stored(cpu_grad, n), n, host_tolerance());
    for (size_t r = 0; r < rows; r++)
        assert_near(before[r], losses[r], 1e-5 * fmax(1.0, losses[r]));
}

HOST_TEST(test_xent)
{
    for (int capped = 0; capped < 2; capped++) {
        const float cap = capped ? 15.0f : 0.0f;
        check_xent(1, 1, 1, cap);
        check_xent(9, 65, 65, cap);
        check_xent(5, 65, 68, cap);
        check_xent(3, 1030, 1056, cap);
        check_xent(33, 7, 16, cap);
        check_xent(2, 9003, 9008, cap); /* more than a thread has at once */
        check_xent(1, 50257, 50260, cap);
        check_xent(1, 53253, 53256, cap); /* more than registers keep */
    }
}

/* As PyTorch: a NaN or +inf among the logits makes the loss NaN, and -inf is a word that can't
 * come. */
HOST_TEST(test_xent_not_finite)
{
    const int32_t target = 3;
    const lks__xent o = {.rows = 1, .V = 300, .ld = 300, .scale = 1.0f};
    const float odd[] = {NAN, INFINITY};
    double loss, cpu;
    for (size_t at = 0; at < 300; at += 299) {
        for (int i = 0; i < 2; i++) {
            float *x = host_randoms(300, 1);
            x[at] = odd[i];
            lks__cuda_xent_rows(NULL, &o, host_acts(x, 300), &target, &loss);
            assert_true(isnan(loss));
        }
        float *x = host_randoms(300, 1);
        x[at] = -INFINITY;
        for (size_t i = 8; at > 0 && i < 299; i++) /* all that most threads have */
            x[i] = -INFINITY;
        x = host_as_stored(x, 300);
        lks__cuda_xent_rows(NULL, &o, host_acts(x, 300), &target, &loss);
        const bool halves = host_halves(false);
        lks__layers_cpu.xent_rows(host_exec(), &o, host_acts(x, 300), &target, &cpu);
        host_halves(halves);
        assert_near(loss, cpu, 1e-5);
    }
}

/* Floats of activations, with a cap or as they are. */
HOST_TEST(test_cap_logits)
{
    for (int has_cap = 0; has_cap < 2; has_cap++)
        for (size_t w = 0; w < WIDTHS; w++) {
            const size_t n = widths[w];
            const float cap = has_cap ? 15.0f : 0.0f;
            const double error = has_cap ? 1e-5 : 0.0;
            float *x = host_randoms(n, 1), *y = host_floats(n), *cpu = host_floats(n);
            for (size_t i = 0; i < n; i++)
                x[i] *= 50.0f;
            x = host_as_stored(x, n);
            lks__cuda_cap_logits(NULL, y, host_acts(x, n), n, cap);
            double *want = host_doubles(n);
            for (size_t i = 0; i < n; i++)
                want[i] = has_cap ? 15.0 * tanh((double)x[i] / 15.0) : (double)x[i];
            assert_close(y, want, n, error);
            const bool halves = host_halves(false);
            lks__act *in_place = host_acts(x, n);
            lks__layers_cpu.cap_logits(host_exec(), cpu, host_acts(x, n), n, cap);
            assert_close(cpu, want, n, error);
            lks__layers_cpu.cap_logits(host_exec(), (void *)in_place, in_place, n, cap);
            assert_bits(host_act_floats(in_place, n), cpu, n);
            host_halves(halves);
        }
}

/* Fewer rows than threads, and several for each, of which the last ones lack some. The last test:
 * after blocks of 1,024 threads, barriers take longer under ThreadSanitizer. */
TEST(test_mean_loss)
{
    static const size_t rows[] = {1, 33, 1000, 1024, 9500};
    double losses[9500];
    const float *first = NULL;
    float want;
    for (size_t i = 0; i < 9500; i++)
        losses[i] = 1.0 + (double)(i * 7919 % 9500) / 9500.0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EACH_ORDER(seed)
        {
            float *got = host_floats(1);
            lks__cuda_mean_loss(NULL, got, losses, rows[i]);
            lks__layers_cpu.mean_loss(host_exec(), &want, losses, rows[i]);
            assert_close_floats(got, &want, 1, 1e-7);
            assert_same_each("mean", &first, seed, got, 1);
        }
}
