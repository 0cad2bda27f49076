/* cuda/device.c - lks__device_ops over the CUDA runtime: a stream for each queue, an event for each
 * mark. A device is used by one thread. */
#include "compute/cuda/device.h"
#include "compute/cuda/plans.h"
#include "compute/cuda/questions.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- failures -------------------------------------------------------------------------------- */

static _Thread_local lks__cuda *own_device; /* of this thread, for kernels' launches */

void lks__cuda_record(lks__cuda *c, const char *fmt, ...)
{
    va_list ap;
    if (lks__cuda_failed(c)) /* later failures follow from the first */
        return;
    va_start(ap, fmt);
    vsnprintf(c->failure, sizeof c->failure, fmt, ap);
    va_end(ap);
}

bool lks__cuda_check(lks__cuda *c, cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        lks__cuda_record(c, "%s failed on GPU %d (%s): %s (CUDA error %d); %s", call, c->gpu,
                         c->about.name, cudaGetErrorString(error), (int)error,
                         error == cudaErrorMemoryAllocation
                             ? "use a smaller batch, --recompute=block, or fewer ranks on this GPU"
                             : "the kernel log (dmesg) may have more");
    return error == cudaSuccess;
}

bool lks__cuda_check_product(lks__cuda *c, cublasStatus_t status, const char *call)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        lks__cuda_record(c, "%s failed on GPU %d (%s): %s", call, c->gpu, c->about.name,
                         cublasLtGetStatusString(status));
    return status == CUBLAS_STATUS_SUCCESS;
}

void lks__cuda_launched(const char *kernel)
{
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess && own_device != NULL)
        lks__cuda_record(
            own_device, "the kernel %s can't be started on GPU %d (%s): %s (CUDA error %d)", kernel,
            own_device->gpu, own_device->about.name, cudaGetErrorString(error), (int)error);
}

bool lks__cuda_launches(void)
{
    return own_device == NULL || !own_device->rehearses;
}

/* Wait until everything queued has ended, whatever the result. A failed GPU drops it at once. */
static void stop(const lks__cuda *c)
{
    if (c->device.hung)
        return;
    const cudaStream_t streams[] = {c->set_up, c->queues[LKS__QUEUE_COMPUTE].stream,
                                    c->queues[LKS__QUEUE_COPY].stream};
    for (int i = 0; i < 3; i++)
        if (streams[i] != NULL)
            (void)cudaStreamSynchronize(streams[i]);
}

/* After a failure, our caller may free the memory that queued work uses, while operations continue
 * to queue work. So wait until none is left. */
lks_status lks__cuda_failure(lks__cuda *c)
{
    lks__cuda_cut(c); /* data from other ranks may never come */
    stop(c);
    return c->fail(LKS_ERR_DEVICE, "%s", c->failure);
}

/* --- memory ---------------------------------------------------------------------------------- */

#define NO_MEMORY                                                                                  \
    "no %s memory for %.1f MB: GPU %d (%s) has %.1f of %.1f MB left: use a smaller batch, "        \
    "--recompute=block, or fewer ranks on this GPU"

static void look_at_memory(double *left_mb, double *all_mb)
{
    size_t left = 0, all = 0;
    (void)cudaGetLastError(); /* a later call must not report it */
    (void)cudaMemGetInfo(&left, &all);
    *left_mb = (double)left / 1e6;
    *all_mb = (double)all / 1e6;
}

static lks_status no_memory(const lks__cuda *c, const char *what, size_t bytes)
{
    double left, all;
    look_at_memory(&left, &all);
    return c->fail(LKS_ERR_NOMEM, NO_MEMORY, what, (double)bytes / 1e6, c->gpu, c->about.name, left,
                   all);
}

/* Memory for operations under way. False: the device has failed. */
static bool take(lks__cuda *c, void **p, size_t bytes)
{
    double left, all;
    const cudaError_t error = cudaMalloc(p, bytes);
    if (error != cudaErrorMemoryAllocation)
        return lks__cuda_check(c, error, "cudaMalloc");
    look_at_memory(&left, &all);
    lks__cuda_record(c, NO_MEMORY, "GPU", (double)bytes / 1e6, c->gpu, c->about.name, left, all);
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

static lks_status alloc(lks__device *device, size_t bytes, void **p)
{
    lks__cuda *c = (lks__cuda *)device;
    *p = NULL;
    const cudaError_t error = cudaMalloc(p, bytes > 0 ? bytes : 1);
    if (error == cudaErrorMemoryAllocation)
        return no_memory(c, "GPU", bytes);
    if (!lks__cuda_check(c, error, "cudaMalloc") || !remember(c, *p, bytes) ||
        !LKS__CUDA_CALL(c, cudaMemsetAsync, *p, 0, bytes, c->set_up) ||
        !LKS__CUDA_CALL(c, cudaStreamSynchronize, c->set_up))
        return lks__cuda_failure(c);
    return LKS_OK;
}

static void release(lks__device *device, void *p, size_t bytes)
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

static lks_status alloc_staging(lks__device *device, size_t bytes, void **p)
{
    lks__cuda *c = (lks__cuda *)device;
    *p = NULL;
    const cudaError_t error = cudaHostAlloc(p, bytes > 0 ? bytes : 1, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation)
        return no_memory(c, "pinned host", bytes);
    if (!lks__cuda_check(c, error, "cudaHostAlloc"))
        return lks__cuda_failure(c);
    memset(*p, 0, bytes);
    return LKS_OK;
}

static void release_staging(lks__device *device, void *p, size_t bytes)
{
    lks__cuda *c = (lks__cuda *)device;
    if (!c->device.hung)
        LKS__CUDA_CALL(c, cudaFreeHost, p);
}

static lks_status memory(lks__device *device, size_t *left, size_t *all)
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

bool lks__cuda_halves(const lks__exec *ex)
{
    return lks__cuda_of(ex)->bf16;
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

cudaStream_t lks__cuda_stream(const lks__exec *ex)
{
    return lks__cuda_of(ex)->queues[LKS__QUEUE_COMPUTE].stream;
}

void lks__cuda_count(const lks__exec *ex, double bytes, double flops)
{
    lks__cuda *c = lks__cuda_of(ex);
    if (c->rehearses)
        return;
    c->counts.bytes += bytes;
    c->counts.flops += flops;
}

static lks__device_counts counts(lks__device *device)
{
    return ((lks__cuda *)device)->counts;
}

/* --- copies ---------------------------------------------------------------------------------- */

static enum cudaMemoryType type_of(lks__cuda *c, const void *p)
{
    struct cudaPointerAttributes a = {.type = cudaMemoryTypeUnregistered};
    LKS__CUDA_CALL(c, cudaPointerGetAttributes, &a, p);
    return a.type;
}

static void CUDART_CB run_call(void *arg)
{
    lks__cuda_call *call = arg;
    memcpy(call->dst, call->src, call->bytes);
    atomic_fetch_add(call->done, 1);
}

static bool open_pinned(lks__cuda *c, lks__cuda_queue *q)
{
    if (q->pinned == NULL &&
        !LKS__CUDA_CALL(c, cudaHostAlloc, &q->pinned, LKS__CUDA_PIECE, cudaHostAllocDefault))
        return false;
    if (q->calls == NULL)
        q->calls = calloc(LKS__CUDA_CALLS, sizeof *q->calls);
    if (q->calls == NULL)
        lks__cuda_record(c, "no memory for copies to GPU %d", c->gpu);
    return q->calls != NULL;
}

/* Queue a host call that copies. */
static bool call_later(lks__cuda *c, lks__cuda_queue *q, void *dst, const void *src, size_t bytes)
{
    while (q->called - atomic_load(&q->done) >= LKS__CUDA_CALLS) {
        const cudaError_t error = cudaStreamQuery(q->stream);
        if (error != cudaErrorNotReady && !lks__cuda_check(c, error, "cudaStreamQuery"))
            return false;
    }
    lks__cuda_call *call = &q->calls[q->called++ % LKS__CUDA_CALLS];
    *call = (lks__cuda_call){dst, src, bytes, &q->done};
    return LKS__CUDA_CALL(c, cudaLaunchHostFunc, q->stream, run_call, call);
}

/* The queue's order keeps a piece's pinned memory until its second half is done. */
static void copy_pieces(lks__cuda *c, lks__cuda_queue *q, char *dst, const char *src, size_t bytes,
                        bool to_host)
{
    if (!open_pinned(c, q))
        return;
    for (size_t n; bytes > 0; bytes -= n, dst += n, src += n) {
        n = bytes < LKS__CUDA_PIECE ? bytes : LKS__CUDA_PIECE;
        const bool put = to_host ? LKS__CUDA_CALL(c, cudaMemcpyAsync, q->pinned, src, n,
                                                  cudaMemcpyDeviceToHost, q->stream) &&
                                       call_later(c, q, dst, q->pinned, n)
                                 : call_later(c, q, q->pinned, src, n) &&
                                       LKS__CUDA_CALL(c, cudaMemcpyAsync, dst, q->pinned, n,
                                                      cudaMemcpyHostToDevice, q->stream);
        if (!put)
            return;
    }
}

static void copy(lks__device *device, lks__queue queue, void *dst, const void *src, size_t bytes)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_queue *q = &c->queues[queue];
    if (lks__cuda_failed(c) || bytes == 0)
        return;
    lks__cuda_written(device->ex, dst, bytes);
    const enum cudaMemoryType to = type_of(c, dst), from = type_of(c, src);
    if (lks__cuda_failed(c)) /* unknown for some types */
        return;
    if (to == cudaMemoryTypeUnregistered || from == cudaMemoryTypeUnregistered)
        copy_pieces(c, q, dst, src, bytes, to == cudaMemoryTypeUnregistered);
    else
        LKS__CUDA_CALL(c, cudaMemcpyAsync, dst, src, bytes, cudaMemcpyDefault, q->stream);
}

/* --- queues ---------------------------------------------------------------------------------- */

static lks__mark mark(lks__device *device, lks__queue queue)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_queue *q = &c->queues[queue];
    q->made++;
    if (!lks__cuda_failed(c))
        LKS__CUDA_CALL(c, cudaEventRecord, q->events[q->made % LKS__CUDA_EVENTS], q->stream);
    return (lks__mark){queue, q->made};
}

static void follow(lks__device *device, lks__queue queue, lks__mark after)
{
    lks__cuda *c = (lks__cuda *)device;
    const lks__cuda_queue *q = &c->queues[after.queue];
    if (!lks__cuda_failed(c) && after.number > q->passed)
        LKS__CUDA_CALL(c, cudaStreamWaitEvent, c->queues[queue].stream,
                       q->events[after.number % LKS__CUDA_EVENTS], 0);
}

/* The mark that was made last with the event of this one. */
static uint64_t newest(const lks__cuda_queue *q, uint64_t number)
{
    return number + (q->made - number) / LKS__CUDA_EVENTS * LKS__CUDA_EVENTS;
}

static lks_status passed(lks__device *device, lks__mark asked, bool *passed_p)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_queue *q = &c->queues[asked.queue];
    *passed_p = false;
    if (!lks__cuda_failed(c) && asked.number > q->passed) {
        const cudaError_t error = cudaEventQuery(q->events[asked.number % LKS__CUDA_EVENTS]);
        if (error == cudaErrorNotReady)
            lks__cuda_check_peers(c);
        else if (lks__cuda_check(c, error, "cudaEventQuery"))
            q->passed = newest(q, asked.number);
    }
    if (lks__cuda_failed(c))
        return lks__cuda_failure(c);
    *passed_p = asked.number <= q->passed;
    return LKS_OK;
}

/* --- open and close -------------------------------------------------------------------------- */

static void close_queue(lks__cuda *c, lks__cuda_queue *q)
{
    for (int i = 0; i < LKS__CUDA_EVENTS; i++)
        if (q->events[i] != NULL)
            LKS__CUDA_CALL(c, cudaEventDestroy, q->events[i]);
    if (q->stream != NULL)
        LKS__CUDA_CALL(c, cudaStreamDestroy, q->stream);
    if (q->pinned != NULL)
        LKS__CUDA_CALL(c, cudaFreeHost, q->pinned);
    free(q->calls);
}

static void close_device(lks__device *device)
{
    lks__cuda *c = (lks__cuda *)device;
    if (c->device.hung) /* queued work still needs all of it; the process ends soon */
        return;
    lks__cuda_leave(c);
    stop(c);
    lks__cuda_plans_close(c);
    while (c->blocks != NULL)
        forget(c, &c->blocks);
    void *const spaces[] = {c->work.at, c->operands[0].at, c->operands[1].at};
    for (int i = 0; i < 3; i++)
        if (spaces[i] != NULL)
            LKS__CUDA_CALL(c, cudaFree, spaces[i]);
    lks__cuda_moves_close(c);
    for (int i = 0; i < LKS__QUEUES; i++)
        close_queue(c, &c->queues[i]);
    if (c->set_up != NULL)
        LKS__CUDA_CALL(c, cudaStreamDestroy, c->set_up);
    own_device = NULL;
    free(c);
}

static lks_status products(lks__device *device, bool bf16)
{
    lks__cuda *c = (lks__cuda *)device;
    c->bf16 = bf16;
    return lks__cuda_failed(c) || !lks__cuda_find_fingerprint(c) ? lks__cuda_failure(c) : LKS_OK;
}

static const struct lks__device_ops ops = {
    .name = "cuda",
    .host_memory = false,
    .open_bytes = LKS__CUDA_PRODUCT_BYTES + LKS__CUDA_CONTEXT_BYTES,
    .spare_bytes = LKS__CUDA_LATER_BYTES,
    .memory = memory,
    .alloc = alloc,
    .release = release,
    .alloc_staging = alloc_staging,
    .release_staging = release_staging,
    .copy = copy,
    .mark = mark,
    .follow = follow,
    .passed = passed,
    .products = products,
    .rehearse = lks__cuda_rehearse,
    .perform = lks__cuda_perform,
    .algorithms = lks__cuda_algorithms,
    .choose_freely = lks__cuda_choose_freely,
    .counts = counts,
    .exchange = &lks__cuda_exchange,
    .close = close_device,
};

static bool open_queue(lks__cuda *c, lks__cuda_queue *q)
{
    if (!LKS__CUDA_CALL(c, cudaStreamCreateWithFlags, &q->stream, cudaStreamNonBlocking))
        return false;
    for (int i = 0; i < LKS__CUDA_EVENTS; i++)
        if (!LKS__CUDA_CALL(c, cudaEventCreateWithFlags, &q->events[i], cudaEventDisableTiming))
            return false;
    return true;
}

lks_status lks__cuda_open(int gpu, const lks__layers *layers, lks__cuda_fail *fail,
                          lks__cuda_load_nccl *load_nccl, lks__device **device_p)
{
    lks__cuda *c = calloc(1, sizeof *c);
    char why[200];
    if (c == NULL)
        return fail(LKS_ERR_NOMEM, "no memory for a CUDA device");
    c->device =
        (lks__device){.ops = &ops, .layers = layers, .ex = (const lks__exec *)c, .bf16 = true};
    c->fail = fail;
    c->load_nccl = load_nccl;
    c->gpu = gpu;
    own_device = c;
    if (!lks__cuda_look(gpu, &c->about, why, sizeof why))
        lks__cuda_record(c, "GPU %d: %s", gpu, why);
    else if (LKS__CUDA_CALL(c, cudaSetDevice, gpu) &&
             LKS__CUDA_CALL(c, cudaStreamCreateWithFlags, &c->set_up, cudaStreamNonBlocking) &&
             open_queue(c, &c->queues[LKS__QUEUE_COMPUTE]) &&
             open_queue(c, &c->queues[LKS__QUEUE_COPY]) && lks__cuda_plans_open(c) &&
             lks__cuda_find_fingerprint(c)) {
        c->device.unit = c->about.unit;
        snprintf(c->device.which, sizeof c->device.which, "GPU %d (%.200s, PCI %s)", gpu,
                 c->about.name, c->about.pci);
        *device_p = &c->device;
        return LKS_OK;
    }
    const lks_status st = lks__cuda_failure(c);
    close_device(&c->device);
    return st;
}
