/* compute/cpu/vector/vec.h - a vector of 16 floats at every level: one register of AVX-512, a pair
 * of AVX2's, four of NEON's, or an array in C. A kernel is written once, with these operations, and
 * built for each level with its instructions. So its sums have one order, and its bits are the same
 * at all levels.
 *
 * A mask is n leading lanes. Masked loads and stores touch only the memory of their lanes, and
 * loads give 0 in the others. If one operand is NaN, v_min and v_max give the second one. Sums and
 * maxima of lanes fold halves onto each other: 16, 8, 4, 2, 1 lanes. */
#pragma once

#if defined(__AVX512F__)
#include "compute/cpu/vector/vec_register.h"
#elif defined(__AVX2__)
#include "compute/cpu/vector/vec_pair.h"
#elif defined(LKS__NEON)
#include "compute/cpu/vector/vec_neon.h"
#else
#include "compute/cpu/vector/vec_plain.h"
#endif
