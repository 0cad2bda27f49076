/* data/read/numpy_order.h - the order of NumPy's shuffle:
 * numpy.random.default_rng(seed).permutation(n).
 *
 * Hugging Face's datasets split documents with it, and so does nanoGPT's script for openwebtext. */
#pragma once

#include <stdint.h>

/* Fill order[n], n below 2^32: PCG64 (O'Neill, 2014) seeded through SeedSequence, and a shuffle
 * from the end. Its indices are bits of halves of 64-bit outputs, drawn until one is in range. */
void lks__numpy_permutation(uint32_t seed, uint32_t *order, uint32_t n);
