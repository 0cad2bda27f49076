/* level.h - what the files of one level's tests share. */
#pragma once

#include "compute/cpu/kernels.h"

extern const lks__kernels ref; /* the scalar reference: products and rows only */
extern lks__kernels lvl;       /* the level that is tested */
