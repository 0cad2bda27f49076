/* cuda/fours.h - rows taken by fours of floats, which a thread loads and stores as one: so a warp
 * moves 512 bytes by one instruction. If the rows don't allow it, the same threads move the same
 * elements one by one, and no bit changes. */
#ifndef LKS_CUDA_FOURS_H
#define LKS_CUDA_FOURS_H

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/launch.h"

struct alignas(4 * sizeof(float)) lks_four {
    float at[4];
};

/* What a row has from a four's first element on. */
struct lks_rest {
    size_t n;
    bool fours; /* as lks_in_fours() says */
};

/* Elements beyond the row are 0. */
__device__ inline lks_four lks_four_at(const float *p, lks_rest rest)
{
    if (rest.fours)
        return *(const lks_four *)p;
    lks_four v;
    for (int j = 0; j < 4; j++)
        v.at[j] = (size_t)j < rest.n ? p[j] : 0.0f;
    return v;
}

__device__ inline void lks_four_put(float *p, lks_rest rest, const lks_four &v)
{
    if (rest.fours)
        *(lks_four *)p = v;
    else
        for (int j = 0; j < 4; j++)
            if ((size_t)j < rest.n)
                p[j] = v.at[j];
}

/* Can rows of n floats at these places be moved by fours? NULL counts as a place. */
template <typename... P> inline bool lks_in_fours(size_t n, P... p)
{
    return n % 4 == 0 && (... && ((uintptr_t)p % 16 == 0));
}

#endif
