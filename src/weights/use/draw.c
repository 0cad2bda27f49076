#include "weights/use/draw.h"

#include <math.h>
#include <stdlib.h>

#include "base/number/math.h"
#include "base/number/rng.h"

/* Work space: each token's share of the probability, not yet divided by the sum; candidates. */
struct candidate {
    float logit;
    int32_t id;
};

size_t lks__draw_work_bytes(size_t n)
{
    return n * (sizeof(double) + sizeof(struct candidate));
}

static double uniform(const lks__draw_options *o, uint64_t token, uint32_t sample)
{
    uint32_t counter[4] = {(uint32_t)token, sample, LKS__SITE_SAMPLE, (uint32_t)(token >> 32)};
    uint32_t word[4];
    lks__philox4x32(lks__philox_key_of(o->seed), counter, word);
    return (double)((uint64_t)word[0] << 21 | word[1] >> 11) * 0x1p-53;
}

/* Restore the heap heap[n], smallest element at the front, if only element `i` may violate it. */
static void sift(float *heap, size_t n, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[i] <= heap[child])
            return;
        const float up = heap[child];
        heap[child] = heap[i];
        heap[i] = up;
    }
}

/* The k-th largest of n logits, 1 <= k <= n; heap[k] is work space. */
static float kth_largest(const float *logits, size_t n, size_t k, float *heap)
{
    for (size_t i = 0; i < k; i++)
        heap[i] = logits[i];
    for (size_t i = k; i-- > 0;)
        sift(heap, k, i);
    for (size_t i = k; i < n; i++)
        if (logits[i] > heap[0]) {
            heap[0] = logits[i];
            sift(heap, k, 0);
        }
    return heap[0];
}

static int likelier(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Set share[] of the tokens that top_p excludes to 0. */
static void cut_at(double top_p, const float *logits, double *share, size_t n, double sum,
                   struct candidate *list)
{
    size_t n_list = 0, i = 0;
    double mass = 0.0;
    for (size_t id = 0; id < n; id++)
        if (share[id] > 0.0)
            list[n_list++] = (struct candidate){logits[id], (int32_t)id};
    qsort(list, n_list, sizeof *list, likelier);
    do
        mass += share[list[i++].id];
    while (i < n_list && mass < top_p * sum);
    for (; i < n_list; i++)
        share[list[i].id] = 0.0;
}

static double sum_of(const double *share, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += share[i];
    return sum;
}

/* Set the logits of tokens outside o->has to -inf, then find the largest logit (the first of equal
 * ones). ERR_FORMAT if a logit is NaN, or the largest isn't finite. */
static lks_status likeliest(const lks__draw_options *o, float *logits, size_t n, size_t *first_p)
{
    size_t first = 0;
    bool numbers = true;
    for (size_t i = 0; i < n; i++) {
        numbers = numbers && !isnan(logits[i]);
        if (o->has != NULL && !o->has[i])
            logits[i] = -INFINITY;
        if (logits[i] > logits[first])
            first = i;
    }
    if (!numbers || !isfinite(logits[first]))
        return lks__fail(LKS_ERR_FORMAT,
                         "the model gives logits that are not finite numbers, so no token can be "
                         "drawn: its weights are damaged, or training diverged");
    *first_p = first;
    return LKS_OK;
}

lks_status lks__draw(const lks__draw_options *o, uint64_t token, uint32_t sample, float *logits,
                     size_t n, void *work, int32_t *id_p)
{
    double *share = work;
    struct candidate *list = (struct candidate *)(void *)(share + n);
    float least = -INFINITY;
    size_t first = 0;
    LKS__TRY(likeliest(o, logits, n, &first));
    *id_p = (int32_t)first;
    if (o->temperature == 0.0)
        return LKS_OK;
    if (o->top_k > 0 && o->top_k < n)
        least = kth_largest(logits, n, o->top_k, (float *)(void *)list);
    const double largest = (double)logits[first];
    for (size_t i = 0; i < n; i++)
        share[i] = logits[i] >= least
                       ? lks__math_exp(((double)logits[i] - largest) / o->temperature)
                       : 0.0;
    double sum = sum_of(share, n);
    if (o->top_p < 1.0) {
        cut_at(o->top_p, logits, share, n, sum, list);
        sum = sum_of(share, n);
    }
    const double u = uniform(o, token, sample) * sum;
    double at = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (share[i] == 0.0)
            continue;
        at += share[i];
        *id_p = (int32_t)i; /* after rounding, u may slightly exceed the last sum */
        if (u < at)
            break;
    }
    return LKS_OK;
}
