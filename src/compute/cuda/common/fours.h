/* compute/cuda/common/fours.h - rows in fours of elements, which a thread loads and stores as one:
 * so a warp moves 512 bytes of floats by one instruction. If the rows don't allow it, the same
 * threads move the same elements one by one, and no bit changes. */
#ifndef LKS_COMPUTE_CUDA_COMMON_FOURS_H
#define LKS_COMPUTE_CUDA_COMMON_FOURS_H

#include "compute/cuda/common/rows.h"

typedef lks_floats<4> lks_four;

/* Elements left in a row from a four's first element on. */
struct lks_rest {
    size_t n;
    bool fours; /* see lks_in_fours() */
};

/* Elements beyond the row are 0. */
template <typename E> static __device__ inline lks_four lks_four_at(const E *p, lks_rest rest)
{
    if (rest.fours)
        return lks_load<4>(p);
    lks_four v;
    for (int j = 0; j < 4; j++)
        v.at[j] = (size_t)j < rest.n ? lks_element(p + j) : 0.0f;
    return v;
}

template <typename E>
static __device__ inline void lks_four_put(E *p, lks_rest rest, const lks_four &v)
{
    if (rest.fours)
        lks_store<4>(p, v);
    else
        for (int j = 0; j < 4; j++)
            if ((size_t)j < rest.n)
                lks_put(p + j, v.at[j]);
}

#endif
