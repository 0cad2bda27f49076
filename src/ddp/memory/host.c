/* ddp/memory/host.c - the mode in which device memory is host memory: the ranks' group adds
 * gradients in place, and a rank's updated parameters are already where the others read them. */
#include <xxhash.h>

#include "ddp/memory/mode.h"

static int group_arenas(int n_arenas, int n_nodes)
{
    return n_arenas;
}

static lks_status open_arenas(lks__memory *m)
{
    LKS__TRY(lks__group_open(m, m->config.n_arenas));
    for (int i = 0; i < m->config.n_arenas; i++)
        m->arena[i] = m->sent[i];
    return LKS_OK;
}

static const float *same(lks__memory *m, const float *grads)
{
    return grads;
}

static lks_status hash(lks__memory *m, size_t first, size_t count, uint64_t *hash_p)
{
    *hash_p = XXH3_64bits((const float *)m->params.dev + first, count * sizeof(float));
    return LKS_OK;
}

const lks__memory_mode lks__memory_host = {
    .in_caches = true,
    .group_arenas = group_arenas,
    .open = open_arenas,
    .start = lks__group_start,
    .sum = lks__group_sum,
    .squares = lks__group_squares,
    .release = lks__group_release,
    .begin_update = same,
    .whole = same,
    .hash = hash,
};
