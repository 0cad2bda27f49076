#include "optim/level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"

lks__exec level_exec(const lks__kernels *k, int n_threads)
{
    lks__pool *pool;
    assert_ok(lks__pool_open(n_threads, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &pool));
    return (lks__exec){.k = k, .pool = pool};
}

void level_close(lks__exec *ex)
{
    lks__pool_close(ex->pool);
}

void *level_memory(size_t bytes, int byte)
{
    bytes = lks__round_up(bytes + 1, 64);
    void *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    return memset(memory, byte, bytes);
}

void level_fill(float *x, size_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)((double)((i * (2 * seed + 37) + 11 * seed) * 7919 % 1009) / 1009.0 - 0.5);
}
