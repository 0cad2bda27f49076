/* Updates of lists of pieces: src/compute/cuda/kernels/update.cu. */
#include "support.h"

#include <math.h>

#include "host.h"

/* Empty pieces, short ones, several blocks, a list that is full. */
static const size_t lengths[] = {1, 0, 16, 4096, 4097, 9000, 3};
enum { LENGTHS = sizeof lengths / sizeof *lengths, ALL = LKS__UPDATE_PIECES };

static size_t length_of(size_t i)
{
    return i < LENGTHS ? lengths[i] : i % 5 * 7;
}

/* The best level of this machine: the reference has no fused multiply-adds, so it has other bits.
 */
static lks__exec best;

TEST(test_blend)
{
    const size_t counts[] = {0, 1, LENGTHS, ALL};
    EACH_ORDER(seed)
    for (size_t k = 0; k < 4; k++) {
        lks__blend got = {.a = 0.9f, .b = 0.3f, .n_pieces = counts[k]}, want = got;
        for (size_t i = 0; i < counts[k]; i++) {
            const size_t n = length_of(i);
            const float *x = host_randoms(n, 2 * (unsigned)i);
            const float *y = host_randoms(n, 2 * (unsigned)i + 1);
            got.piece[i].x = want.piece[i].x = i % 4 == 3 ? NULL : x;
            got.piece[i].n = want.piece[i].n = n;
            got.piece[i].y = host_copy(y, n);
            want.piece[i].y = host_copy(y, n);
        }
        lks__cuda_update_blend(NULL, &got);
        lks__layers_cpu.update_blend(host_exec(), &want);
        for (size_t i = 0; i < counts[k]; i++)
            assert_bits(got.piece[i].y, want.piece[i].y, length_of(i));
    }
}

/* torch.optim.AdamW's formula in doubles, on the first element. */
static double adamw_of(const lks__adamw_list *s, double p, double m, double v, double g)
{
    g *= s->clip;
    m += (g - m) * (1 - s->beta1);
    v = v * s->beta2 + (1 - s->beta2) * g * g;
    const double t = (double)s->t, unbiased = sqrt(v / (1 - pow(s->beta2, t)));
    return p * (1 - s->lr * s->weight_decay) -
           s->lr * m / (1 - pow(s->beta1, t)) / (unbiased + s->eps);
}

TEST(test_adamw)
{
    const size_t counts[] = {1, LENGTHS, ALL};
    EACH_ORDER(seed)
    for (size_t k = 0; k < 3; k++) {
        lks__adamw_list got = {.lr = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .t = 7 + k,
                               .clip = 0.7,
                               .n_pieces = counts[k]};
        lks__adamw_list want = got;
        for (size_t i = 0; i < counts[k]; i++) {
            const size_t n = length_of(i);
            const unsigned at = 4 * (unsigned)i;
            float *p = host_randoms(n, at), *m = host_randoms(n, at + 1);
            float *v = host_randoms(n, at + 2), *g = host_randoms(n, at + 3);
            for (size_t j = 0; j < n; j++)
                v[j] = v[j] * v[j];
            for (size_t j = 4; j < n; j += 5) { /* moments around the least normal number */
                g[j] = 0.0f;
                m[j] *= 3e-38f;
                v[j] *= 3e-38f;
            }
            got.piece[i].n = want.piece[i].n = n;
            got.piece[i].grads = want.piece[i].grads = g;
            got.piece[i].params = host_copy(p, n);
            got.piece[i].exp_avg = host_copy(m, n);
            got.piece[i].exp_avg_sq = host_copy(v, n);
            want.piece[i].params = p;
            want.piece[i].exp_avg = m;
            want.piece[i].exp_avg_sq = v;
            if (i == 0) {
                const double first =
                    adamw_of(&got, (double)p[0], (double)m[0], (double)v[0], (double)g[0]);
                lks__adamw_list one = got;
                one.n_pieces = 1;
                one.piece[0].params = host_copy(p, 1);
                one.piece[0].exp_avg = host_copy(m, 1);
                one.piece[0].exp_avg_sq = host_copy(v, 1);
                lks__cuda_update_adamw(NULL, &one);
                assert_near((double)one.piece[0].params[0], first, 1e-6);
            }
        }
        lks__cuda_update_adamw(NULL, &got);
        lks__layers_cpu.update_adamw(&best, &want);
        for (size_t i = 0; i < counts[k]; i++) {
            const size_t n = length_of(i);
            assert_bits(got.piece[i].params, want.piece[i].params, n);
            assert_bits(got.piece[i].exp_avg, want.piece[i].exp_avg, n);
            assert_bits(got.piece[i].exp_avg_sq, want.piece[i].exp_avg_sq, n);
        }
    }
}

int main(void)
{
    static lks__kernels kernels;
    lks_test_need_level_of(LKS__CPU_AVX2, &kernels);
    best = *host_exec();
    best.k = &kernels;
    return lks_test_run_all(NULL, NULL);
}
