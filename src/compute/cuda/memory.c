/* cuda/memory.c - the GPU's memory: blocks that callers allocate, with their rounded copies, and
 * memory of operations, which grows. */
#include <stdlib.h>
#include <string.h>

#include "compute/cuda/device.h"
#include "compute/cuda/plans.h"

#define NO_MEMORY                                                                                  \
    "no GPU memory for %.1f MB: GPU %d (%s) has %.1f of %.1f MB left: use a smaller batch, "       \
    "--recompute=block, or fewer ranks on this GPU"

static void look_at_memory(double *left_mb, double *all_mb)
{
    size_t left = 0, all = 0;
    (void)cudaGetLastError(); /* a later call must not report it */
    (void)cudaMemGetInfo(&left, &all);
    *left_mb = (double)left / 1e6;
    *all_mb = (double)all / 1e6;
}

/* Memory for operations under way. False: the device has failed. */
static bool take(lks__cuda *c, void **p, size_t bytes)
{
    double left, all;
    const cudaError_t error = cudaMalloc(p, bytes);
    if (error != cudaErrorMemoryAllocation)
        return lks__cuda_check(c, error, "cudaMalloc");
    look_at_memory(&left, &all);
    lks__cuda_record(c, NO_MEMORY, (double)bytes / 1e6, c->gpu, c->about.name, left, all);
    return false;
}

static bool remember(lks__cuda *c, void *p, size_t bytes)
{
    lks__cuda_block *b = malloc(sizeof *b);
    if (b == NULL) {
        lks__cuda_record(c, "no memory for the list of memory of GPU %d", c->gpu);
        return false;
    }
    *b = (lks__cuda_block){.next = c->blocks, .at = p, .bytes = bytes, .stale = true};
    c->blocks = b;
    return true;
}

static void forget(lks__cuda *c, lks__cuda_block **at)
{
    lks__cuda_block *b = *at;
    if (b->rounded != NULL && !c->device.hung) /* cudaFree would wait */
        LKS__CUDA_CALL(c, cudaFree, b->rounded);
    *at = b->next;
    free(b);
}

lks_status lks__cuda_alloc(lks__device *device, size_t bytes, void **p)
{
    lks__cuda *c = (lks__cuda *)device;
    *p = NULL;
    const cudaError_t error = cudaMalloc(p, bytes > 0 ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        double left, all;
        look_at_memory(&left, &all);
        return c->fail(LKS_ERR_NOMEM, NO_MEMORY, (double)bytes / 1e6, c->gpu, c->about.name, left,
                       all);
    }
    if (!lks__cuda_check(c, error, "cudaMalloc") || !remember(c, *p, bytes) ||
        !LKS__CUDA_CALL(c, cudaMemsetAsync, *p, 0, bytes, c->set_up) ||
        !LKS__CUDA_CALL(c, cudaStreamSynchronize, c->set_up))
        return lks__cuda_failure(c);
    return LKS_OK;
}

void lks__cuda_release(lks__device *device, void *p, size_t bytes)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_block **at = &c->blocks;
    while (*at != NULL && (*at)->at != p)
        at = &(*at)->next;
    if (*at != NULL)
        forget(c, at);
    if (!c->device.hung)
        LKS__CUDA_CALL(c, cudaFree, p);
}

lks_status lks__cuda_alloc_staging(lks__device *device, size_t bytes, void **p)
{
    lks__cuda *c = (lks__cuda *)device;
    *p = NULL;
    const cudaError_t error = cudaHostAlloc(p, bytes > 0 ? bytes : 1, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* a later call must not report it */
        return c->fail(LKS_ERR_NOMEM,
                       "no pinned memory for %.1f MB on this host: its memory, or its container's, "
                       "is used up; start fewer ranks here",
                       (double)bytes / 1e6);
    }
    if (!lks__cuda_check(c, error, "cudaHostAlloc"))
        return lks__cuda_failure(c);
    memset(*p, 0, bytes);
    return LKS_OK;
}

void lks__cuda_release_staging(lks__device *device, void *p, size_t bytes)
{
    lks__cuda *c = (lks__cuda *)device;
    if (!c->device.hung)
        LKS__CUDA_CALL(c, cudaFreeHost, p);
}

lks_status lks__cuda_memory(lks__device *device, size_t *left, size_t *all)
{
    lks__cuda *c = (lks__cuda *)device;
    return LKS__CUDA_CALL(c, cudaMemGetInfo, left, all) ? LKS_OK : lks__cuda_failure(c);
}

/* Stands for memory in a rehearsal: an address that is aligned like that of an allocation. */
#define UNUSED ((void *)256)

/* At least `bytes` of it, 256-byte aligned. Queued work may use the old memory until it is done.
 * NULL: the device has failed. */
static void *grow(lks__cuda *c, lks__cuda_space *space, size_t bytes)
{
    if (lks__cuda_failed(c))
        return NULL;
    if (c->rehearses)
        return UNUSED;
    if (bytes > space->bytes) {
        void *old = space->at;
        *space = (lks__cuda_space){0};
        if ((old != NULL &&
             (!LKS__CUDA_CALL(c, cudaStreamSynchronize, c->queues[LKS__QUEUE_COMPUTE].stream) ||
              !LKS__CUDA_CALL(c, cudaFree, old))) ||
            !take(c, &space->at, bytes))
            return NULL;
        space->bytes = bytes;
    }
    return space->at;
}

void *lks__cuda_work(const lks__exec *ex, size_t bytes)
{
    lks__cuda *c = lks__cuda_of(ex);
    return grow(c, &c->work, bytes);
}

void *lks__cuda_operand(const lks__exec *ex, int operand, size_t bytes)
{
    lks__cuda *c = lks__cuda_of(ex);
    return grow(c, &c->operands[operand], bytes);
}

const uint16_t *lks__cuda_rounded(const lks__exec *ex, const float *p)
{
    lks__cuda *c = lks__cuda_of(ex);
    lks__cuda_block *b = c->blocks;
    while (b != NULL && (p < b->at || p >= b->at + b->bytes / sizeof *p))
        b = b->next;
    if (b == NULL || lks__cuda_failed(c))
        return NULL;
    if (c->rehearses)
        return (const uint16_t *)UNUSED + (p - b->at);
    const size_t n = b->bytes / sizeof *p;
    if (b->rounded == NULL && !take(c, (void **)&b->rounded, n * sizeof *b->rounded))
        return NULL;
    if (b->stale) {
        const lks__cuda_rounding all = {b->rounded, b->at,    .rows = 1, .width = n,
                                        .ldy = n,   .ldx = n, .count = 1};
        lks__cuda_round(c->device.ex, &all);
        b->stale = false;
    }
    return b->rounded + (p - b->at);
}

void lks__cuda_written(const lks__exec *ex, const void *p, size_t bytes)
{
    for (lks__cuda_block *b = lks__cuda_of(ex)->blocks; b != NULL; b = b->next)
        if ((const char *)p < (const char *)b->at + b->bytes &&
            (const char *)b->at < (const char *)p + bytes)
            b->stale = true;
}

void lks__cuda_memory_close(lks__cuda *c)
{
    void *const spaces[] = {c->work.at, c->operands[0].at, c->operands[1].at};
    while (c->blocks != NULL)
        forget(c, &c->blocks);
    for (int i = 0; i < 3; i++)
        if (spaces[i] != NULL)
            LKS__CUDA_CALL(c, cudaFree, spaces[i]);
}
