/* compute/cpu/products/gemm_dnnl.h - oneDNN's sgemm, loaded when AVX2 or a level above it
 * is opened. gemm_dnnl.c also defines what kernels.h declares about a GEMM library. */
#pragma once

#include "compute/cpu/kernels.h"

/* Load the library and cap its instructions at `level`. A second call with the same level does
 * nothing, one with another level is ERR_ARG, because the library's cap can't be changed. */
lks_status lks__gemm_dnnl_open(lks__cpu_level level);

bool lks__gemm_dnnl_is_open(void);

const char *lks__gemm_dnnl_version(void); /* "oneDNN 2.6.3" */

/* The library's product, in its own order of sums (kinds.h). Sizes are at least 1. If the library
 * fails, C becomes NaN: no result is ever silently wrong. */
lks__gemm_fn lks__gemm_dnnl;
