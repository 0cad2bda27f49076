#include "comm/tree/sum.h"

#include <string.h>

#include "comm/tree/tree.h"

/* Elements summed at a time: few enough for the stack of partial sums to stay in the first-level
 * cache. A multiple of 8, so that squares keep their lanes. */
enum { CHUNK = 1024 };

/* Four lanes on every machine (compilers may use wider ones). Memory limits sums of this size, so
 * wider registers gain nothing. */
typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));

enum { LANES = 4 };

/* Outputs may be one of the inputs: element i is read before it is written. */

static void add(float *out, const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(f32x4 *)(out + i) = *(const f32x4 *)(a + i) + *(const f32x4 *)(b + i);
    for (; i < n; i++)
        out[i] = a[i] + b[i];
}

/* The last addition. The kernel also adds up squares, which takes longer than the sum itself while
 * data are in the caches. A product with 1 has the bits of its factor. */
static void add_last(const struct lks__sum *s, float *out, const float *a, const float *b,
                     double lanes[8], size_t n)
{
    if (lanes == NULL && s->scale == 1 && b != NULL)
        add(out, a, b, n);
    else
        s->last(out, a, b, s->scale, lanes, n);
}

/* Uses a stack of partial sums: a value is a part, read in place, or the buffer of its level. */
static void sum_chunk(const struct lks__sum *s, size_t first, size_t n, double lanes[8])
{
    float temp[LKS__TREE_MAX_LEVELS][CHUNK];
    const float *stack[LKS__TREE_MAX_LEVELS + 1];
    float *dst = s->dst + first;
    int depth = 0;
    for (int i = 0; i < s->n_parts; i++) {
        stack[depth++] = s->parts[i] + first;
        for (int m = 0; m < s->merges[i]; m++) {
            depth--;
            const float *a = stack[depth - 1], *b = stack[depth];
            if (i == s->n_parts - 1 && depth == 1) {
                add_last(s, dst, a, b, lanes, n);
                return;
            }
            float *out = depth == 1 && !s->dst_is_late_part ? dst : temp[depth - 1];
            add(out, a, b, n);
            stack[depth - 1] = out;
        }
    }
    add_last(s, dst, stack[0], NULL, lanes, n);
}

void lks__sum_range(const struct lks__sum *s, size_t first, size_t n, double lanes[8])
{
    if (s->n_parts <= 2) { /* there is only one plan */
        add_last(s, s->dst + first, s->parts[0] + first,
                 s->n_parts == 2 ? s->parts[1] + first : NULL, lanes, n);
        return;
    }
    while (n > 0) {
        size_t some = n < CHUNK ? n : CHUNK;
        sum_chunk(s, first, some, lanes);
        first += some;
        n -= some;
    }
}
