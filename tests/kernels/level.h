/* level.h - what the files of one level's tests share. */
#ifndef LKS_TESTS_LEVEL_H
#define LKS_TESTS_LEVEL_H

#include "compute/cpu/kernels.h"

extern const lks__kernels ref; /* the scalar reference: products and rows only */
extern lks__kernels lvl;       /* the level that is tested */

#endif
