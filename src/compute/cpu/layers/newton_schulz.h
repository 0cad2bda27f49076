/* compute/cpu/layers/newton_schulz.h - approximates the nearest matrix with orthonormal rows (or
 * columns): the quintic Newton-Schulz iteration of Muon (Jordan et al., 2024), in float32, or with
 * products of bfloat16 operands if the exec uses bfloat16.
 *
 * X is divided by its Frobenius norm + 1e-7; then, `steps` times, with A the Gram matrix over the
 * shorter side:  X <- aX + (bA + cA²)X,  a, b, c = 3.4445, -4.7750, 2.0315. Singular values
 * approach 0.7…1.2; those that are tiny compared with the norm change less, and zero stays zero.
 *
 * A, A² and so bA + cA² are symmetric: only panels of their lower triangles are computed, and
 * mirrored. The parts depend on the shape alone, so the bits depend neither on threads, nor on
 * ranks, nor on what else is computed at the same time. */
#pragma once

#include "base/beat.h"
#include "compute/cpu/exec.h"

/* Bytes of work space for a matrix [rows, cols], both at least 1: a multiple of 64. */
size_t lks__newton_schulz_bytes(size_t rows, size_t cols);

/* Iterate on x [rows, cols], row-major, in place. work: 64-byte aligned. In float32, ex->pool may
 * be NULL: then the calling thread, which must be one that calls kernels, does the work; the bits
 * are the same. */
void lks__newton_schulz(const lks__exec *ex, float *x, size_t rows, size_t cols, int steps,
                        const lks__beat *beat, void *work);
