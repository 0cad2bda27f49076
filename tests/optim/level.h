/* tests/optim/level.h - pools, and fixed numbers. */
#pragma once

#include "support.h"

#include "compute/cpu/exec.h"

lks__exec level_exec(const lks__kernels *k, int n_threads);
void level_close(lks__exec *ex);

/* Memory aligned to 64 bytes, filled with `byte`; the test fails if there is none. */
void *level_memory(size_t bytes, int byte);

/* n values in (-0.5, 0.5), with the pattern of tests/figures/golf_optim.json. */
void level_fill(float *x, size_t n, uint64_t seed);
