/* data/read/numpy_order.h - the order into which NumPy's generator shuffles: what
 * numpy.random.default_rng(seed).permutation(n) gives.
 *
 * Hugging Face's datasets divide documents by it, and so nanoGPT's script for openwebtext. */
#ifndef LKS_DATA_READ_NUMPY_ORDER_H
#define LKS_DATA_READ_NUMPY_ORDER_H

#include <stdint.h>

/* Fill order[n], n below 2^32: PCG64 (O'Neill, 2014) seeded through SeedSequence, and a shuffle
 * from the end, whose places are bits of halves of 64-bit outputs, drawn until one is in range. */
void lks__numpy_permutation(uint32_t seed, uint32_t *order, uint32_t n);

#endif
