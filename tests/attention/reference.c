#include "attention/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One head of qkv (or of its gradient): element d of token t's query, key, value. */
struct head {
    size_t T, hs, ld;
    size_t q, k, v; /* offsets */
};

static struct head head_of(const lks__attention_shape *s, size_t b, size_t h)
{
    const size_t c = s->NH * s->hs, ld = 3 * c, q = b * s->T * ld + h * s->hs;
    return (struct head){s->T, s->hs, ld, q, q + c, q + 2 * c};
}

/* p [T,T]: probabilities of one head; lse [T] may be NULL. */
static void probabilities(const struct head *a, double *p, double *lse, const double *qkv)
{
    for (size_t i = 0; i < a->T; i++) {
        double max = -INFINITY, sum = 0;
        for (size_t j = 0; j <= i; j++) {
            double s = 0;
            for (size_t d = 0; d < a->hs; d++)
                s += qkv[a->q + i * a->ld + d] * qkv[a->k + j * a->ld + d];
            s /= sqrt((double)a->hs);
            p[i * a->T + j] = s;
            max = fmax(max, s);
        }
        for (size_t j = 0; j <= i; j++)
            sum += exp(p[i * a->T + j] - max);
        for (size_t j = 0; j < a->T; j++)
            p[i * a->T + j] = j <= i ? exp(p[i * a->T + j] - max) / sum : 0;
        if (lse != NULL)
            lse[i] = max + log(sum);
    }
}

void reference_fwd(const lks__attention_shape *shape, double *out, double *lse, const double *qkv,
                   const double *mask)
{
    const size_t T = shape->T, hs = shape->hs, NH = shape->NH, c = NH * hs;
    double *p = malloc(T * T * sizeof *p);
    for (size_t bh = 0; bh < shape->B * NH; bh++) {
        const size_t b = bh / NH, h = bh % NH;
        const struct head a = head_of(shape, b, h);
        probabilities(&a, p, lse + bh * T, qkv);
        for (size_t i = 0; i < T; i++)
            for (size_t d = 0; d < hs; d++) {
                double o = 0;
                for (size_t j = 0; j <= i; j++)
                    o += p[i * T + j] * (mask ? mask[(bh * T + i) * T + j] : 1) *
                         qkv[a.v + j * a.ld + d];
                out[(b * T + i) * c + h * hs + d] = o;
            }
    }
    free(p);
}

void reference_bwd(const lks__attention_shape *shape, double *dqkv, const double *dout,
                   const double *qkv, const double *mask)
{
    const size_t T = shape->T, hs = shape->hs, NH = shape->NH, c = NH * hs;
    double *p = malloc(T * T * sizeof *p), *dp = malloc(T * sizeof *dp);
    memset(dqkv, 0, shape->B * T * 3 * c * sizeof *dqkv);
    for (size_t bh = 0; bh < shape->B * NH; bh++) {
        const size_t b = bh / NH, h = bh % NH;
        const struct head a = head_of(shape, b, h);
        probabilities(&a, p, NULL, qkv);
        for (size_t i = 0; i < T; i++) {
            const double *go = dout + (b * T + i) * c + h * hs;
            double delta = 0; /* sum over j of p dp */
            for (size_t j = 0; j <= i; j++) {
                const double m = mask ? mask[(bh * T + i) * T + j] : 1;
                dp[j] = 0;
                for (size_t d = 0; d < hs; d++) {
                    dp[j] += m * go[d] * qkv[a.v + j * a.ld + d];
                    dqkv[a.v + j * a.ld + d] += m * p[i * T + j] * go[d];
                }
                delta += p[i * T + j] * dp[j];
            }
            for (size_t j = 0; j <= i; j++) {
                const double ds = p[i * T + j] * (dp[j] - delta) / sqrt((double)hs);
                for (size_t d = 0; d < hs; d++) {
                    dqkv[a.q + i * a.ld + d] += ds * qkv[a.k + j * a.ld + d];
                    dqkv[a.k + j * a.ld + d] += ds * qkv[a.q + i * a.ld + d];
                }
            }
        }
    }
    free(dp);
    free(p);
}

void reference_mask(const lks__attention_shape *shape, double *mask, const lks__dropout *drop)
{
    const uint64_t n = (uint64_t)shape->B * shape->NH * shape->T * shape->T;
    for (uint64_t e = 0; e < n; e++) {
        const uint32_t counter[4] = {drop->step, drop->vm, drop->site, (uint32_t)(e / 4)};
        uint32_t words[4];
        lks__philox4x32(drop->key, counter, words);
        mask[e] = words[e % 4] >= drop->threshold ? (double)drop->scale : 0;
    }
}
