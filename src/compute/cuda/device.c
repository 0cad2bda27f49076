/* cuda/device.c - lks__device_ops over the CUDA runtime: a stream for each queue, an event for each
 * mark. A device is used by one thread. */
#include "compute/cuda/device.h"
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
        lks__cuda_record(
            c, "%s failed on GPU %d (%s): %s (CUDA error %d); %s", call, c->gpu, c->about.name,
            cudaGetErrorString(error), (int)error,
            error != cudaErrorMemoryAllocation ? "the kernel log (dmesg) may have more"
            : c->blocks == NULL
                ? "other programs use its memory (nvidia-smi), or too many ranks"
                : "use a smaller batch, --recompute=block, or fewer ranks on this GPU");
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

/* --- what operations need --------------------------------------------------------------------- */

bool lks__cuda_halves(const lks__exec *ex)
{
    return lks__cuda_of(ex)->bf16;
}

bool lks__cuda_together(const lks__exec *ex)
{
    return lks__cuda_of(ex)->about.major == 9; /* no later capability has these instructions */
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

static lks__mark mark(lks__device *device, lks__queue queue)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_queue *q = &c->queues[queue];
    q->made++;
    if (!lks__cuda_failed(c))
        LKS__CUDA_CALL(c, cudaEventRecord, q->events[q->made % LKS__CUDA_EVENTS], q->stream);
    return (lks__mark){queue, q->made};
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

/* Queue a host call that copies. After a failure of the group the copy is missing, and each later
 * wait reports the same failure. */
static bool call_later(lks__cuda *c, lks__queue queue, void *dst, const void *src, size_t bytes)
{
    lks__cuda_queue *q = &c->queues[queue];
    if (q->called > 0 && q->called % (LKS__CUDA_CALLS / 2) == 0) {
        const lks__mark now = mark(&c->device, queue);
        if (q->called >= LKS__CUDA_CALLS && c->wait(&c->device, q->half) != LKS_OK)
            return false;
        q->half = now;
    }
    lks__cuda_call *call = &q->calls[q->called++ % LKS__CUDA_CALLS];
    *call = (lks__cuda_call){dst, src, bytes};
    return LKS__CUDA_CALL(c, cudaLaunchHostFunc, q->stream, run_call, call);
}

/* The queue's order keeps a piece's pinned memory until its second half is done. */
static void copy_pieces(lks__cuda *c, lks__queue queue, char *dst, const char *src, size_t bytes,
                        bool to_host)
{
    lks__cuda_queue *q = &c->queues[queue];
    if (!open_pinned(c, q))
        return;
    for (size_t n; bytes > 0; bytes -= n, dst += n, src += n) {
        n = bytes < LKS__CUDA_PIECE ? bytes : LKS__CUDA_PIECE;
        const bool put = to_host ? LKS__CUDA_CALL(c, cudaMemcpyAsync, q->pinned, src, n,
                                                  cudaMemcpyDeviceToHost, q->stream) &&
                                       call_later(c, queue, dst, q->pinned, n)
                                 : call_later(c, queue, q->pinned, src, n) &&
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
        copy_pieces(c, queue, dst, src, bytes, to == cudaMemoryTypeUnregistered);
    else
        LKS__CUDA_CALL(c, cudaMemcpyAsync, dst, src, bytes, cudaMemcpyDefault, q->stream);
}

/* --- queues ---------------------------------------------------------------------------------- */

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
    lks__cuda_memory_close(c);
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
    .memory = lks__cuda_memory,
    .alloc = lks__cuda_alloc,
    .release = lks__cuda_release,
    .alloc_staging = lks__cuda_alloc_staging,
    .release_staging = lks__cuda_release_staging,
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
                          lks__cuda_wait *wait, lks__cuda_load_nccl *load_nccl,
                          lks__device **device_p)
{
    lks__cuda *c = calloc(1, sizeof *c);
    char why[200];
    if (c == NULL)
        return fail(LKS_ERR_NOMEM, "no memory for a CUDA device");
    c->device =
        (lks__device){.ops = &ops, .layers = layers, .ex = (const lks__exec *)c, .bf16 = true};
    c->fail = fail;
    c->wait = wait;
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
