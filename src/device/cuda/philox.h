/* cuda/philox.h - the random words of dropout's masks: base/rng.h's Philox4x32-10. */
#ifndef LKS_CUDA_PHILOX_H
#define LKS_CUDA_PHILOX_H

#include <stdint.h>

#include "device/cuda/launch.h"
#include "layers/dropout.h"

struct lks_philox_words {
    uint32_t at[4];
};

/* Those of elements 4 four to 4 four + 3 of a mask (layers/dropout.h). */
__device__ inline lks_philox_words lks_philox_of(const lks__dropout &drop, uint32_t four)
{
    uint32_t c0 = drop.step, c1 = drop.vm, c2 = drop.site, c3 = four;
    uint32_t k0 = drop.key.k[0], k1 = drop.key.k[1];
    for (int round = 0; round < 10; round++) {
        const uint32_t a_high = __umulhi(0xd2511f53u, c0), a_low = 0xd2511f53u * c0;
        const uint32_t b_high = __umulhi(0xcd9e8d57u, c2), b_low = 0xcd9e8d57u * c2;
        c0 = b_high ^ c1 ^ k0;
        c1 = b_low;
        c2 = a_high ^ c3 ^ k1;
        c3 = a_low;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

#endif
