/* faulty_queues.cu - a small program that uses streams, events and memory as the device does, with
 * one fault each of the kinds that such programs have: test_faulty_queues.c demands that the
 * stand-ins find each, in some order at least, and nothing in the program without a fault.
 *
 * Usage: cuda_faulty_queues_program NAME. It prints what is wrong with the results, if anything is;
 * the stand-ins end it for what they find themselves. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cuda/common/launch.h"

/* Called for each launch; a GPU's errors are no part of this. */
extern "C" bool lks__cuda_launches(void)
{
    return true;
}

extern "C" void lks__cuda_launched(const char *)
{
}

namespace
{

enum fault {
    SOUND,
    NO_WAIT_FOR_INPUT,
    NO_WAIT_FOR_KERNEL,
    MARK_BEFORE_KERNEL,
    MARK_NEVER_MADE,
    OTHER_MARK,
    INPUT_WRITTEN_EARLY,
    OUTPUT_READ_EARLY,
    OUTPUT_AFTER_A_QUERY,
    HOST_READS_DEVICE,
    CALL_READS_DEVICE,
    CALL_CALLS_CUDA,
    PAGEABLE,
    COPY_TOO_LONG,
    COPY_BACKWARDS,
    KERNEL_TOO_LONG,
    NOT_CLEARED,
    FREED_EARLY,
    PINNED_FREED_EARLY,
    FREED_TWICE,
    STREAM_CLOSED_EARLY,
    EVENT_CLOSED_EARLY,
    CLOSED_STREAM,
    FAULTS
};

const char *const names[FAULTS] = {
    "sound",
    "no_wait_for_input",
    "no_wait_for_kernel",
    "mark_before_kernel",
    "mark_never_made",
    "other_mark",
    "input_written_early",
    "output_read_early",
    "output_after_a_query",
    "host_reads_device",
    "call_reads_device",
    "call_calls_cuda",
    "pageable",
    "copy_too_long",
    "copy_backwards",
    "kernel_too_long",
    "not_cleared",
    "freed_early",
    "pinned_freed_early",
    "freed_twice",
    "stream_closed_early",
    "event_closed_early",
    "closed_stream",
};

const unsigned N = 256, ROUNDS = 4;

/* y += 2 x */
static __global__ void add_twice(float *y, const float *x, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += 2.0f * x[i];
}

/* What a call of the host gets. */
struct call {
    fault f;
    const float *device, *out;
    cudaEvent_t event;
    float seen;
};

static void CUDART_CB look(void *arg)
{
    call *c = (call *)arg;
    c->seen = (c->f == CALL_READS_DEVICE ? c->device : c->out)[0];
    if (c->f == CALL_CALLS_CUDA)
        cudaEventQuery(c->event);
}

struct program {
    fault f;
    cudaStream_t copies, compute;
    cudaEvent_t there, done, back, never;
    float *x, *y;    /* the device's */
    float *in, *out; /* pinned */
    float plain[N];  /* pageable */
    call call_;
};

static void open(program *p)
{
    cudaStreamCreateWithFlags(&p->copies, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&p->compute, cudaStreamNonBlocking);
    cudaEvent_t *const events[] = {&p->there, &p->done, &p->back, &p->never};
    for (cudaEvent_t *e : events)
        cudaEventCreateWithFlags(e, cudaEventDisableTiming);
    cudaMalloc((void **)&p->x, N * sizeof(float));
    cudaMalloc((void **)&p->y, N * sizeof(float));
    cudaHostAlloc((void **)&p->in, N * sizeof(float), cudaHostAllocDefault);
    cudaHostAlloc((void **)&p->out, N * sizeof(float), cudaHostAllocDefault);
}

static void close(program *p)
{
    cudaStream_t const streams[] = {p->copies, p->compute};
    for (cudaStream_t s : streams) {
        if (p->f != STREAM_CLOSED_EARLY)
            cudaStreamSynchronize(s);
        cudaStreamDestroy(s);
    }
    cudaEvent_t const events[] = {p->there, p->done, p->back, p->never};
    for (cudaEvent_t e : events)
        cudaEventDestroy(e);
    cudaFree(p->x);
    cudaFree(p->f == FREED_TWICE ? p->x : p->y);
    cudaFreeHost(p->in);
    cudaFreeHost(p->out);
}

/* out = 2 * (first, first + 1, …), by way of the device. False: it isn't. */
static bool compute(program *p, float first)
{
    const fault f = p->f;
    const size_t bytes = N * sizeof(float);
    for (unsigned i = 0; i < N; i++)
        p->in[i] = first + (float)i;
    cudaMemcpyAsync(p->x, f == PAGEABLE ? p->plain : p->in, f == COPY_TOO_LONG ? bytes + 4 : bytes,
                    f == COPY_BACKWARDS ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                    p->copies);
    cudaEventRecord(p->there, p->copies);
    if (f == INPUT_WRITTEN_EARLY)
        p->in[N - 1] = -1.0f;

    if (f != NOT_CLEARED)
        cudaMemsetAsync(p->y, 0, bytes, p->compute);
    if (f != NO_WAIT_FOR_INPUT)
        cudaStreamWaitEvent(p->compute, f == MARK_NEVER_MADE ? p->never : p->there, 0);
    if (f == MARK_BEFORE_KERNEL)
        cudaEventRecord(p->done, p->compute);
    LKS_LAUNCH(add_twice, dim3(N / 64 + (f == KERNEL_TOO_LONG)), dim3(64), p->compute, p->y, p->x,
               f == KERNEL_TOO_LONG ? (size_t)N + 64 : N);
    if (f != MARK_BEFORE_KERNEL)
        cudaEventRecord(p->done, p->compute);
    if (f == FREED_EARLY)
        cudaFree(p->x);

    if (f != NO_WAIT_FOR_KERNEL)
        cudaStreamWaitEvent(p->copies, f == OTHER_MARK ? p->there : p->done, 0);
    cudaMemcpyAsync(p->out, p->y, bytes, cudaMemcpyDeviceToHost, p->copies);
    p->call_ = {f, p->y, p->out, p->there, 0.0f};
    cudaLaunchHostFunc(p->copies, look, &p->call_);
    cudaEventRecord(p->back, p->copies);
    if (f == PINNED_FREED_EARLY)
        cudaFreeHost(p->out);
    if (f == EVENT_CLOSED_EARLY)
        cudaEventDestroy(p->back);
    if (f == HOST_READS_DEVICE)
        return p->y[0] >= 0.0f;
    if (f == OUTPUT_AFTER_A_QUERY)
        cudaEventQuery(p->back);
    while (f != OUTPUT_READ_EARLY && f != OUTPUT_AFTER_A_QUERY && f != STREAM_CLOSED_EARLY &&
           cudaEventQuery(p->back) != cudaSuccess)
        ;
    bool right = f == STREAM_CLOSED_EARLY || p->out[0] == 2.0f * first;
    for (unsigned i = 1; i < N && f != STREAM_CLOSED_EARLY; i++)
        right = right && p->out[i] == 2.0f * (first + (float)i);
    if (f != OUTPUT_READ_EARLY && f != OUTPUT_AFTER_A_QUERY && f != STREAM_CLOSED_EARLY)
        right = right && p->call_.seen == 2.0f * first;
    return right;
}

} // namespace

int main(int argc, char **argv)
{
    program p = {};
    while (p.f < FAULTS && (argc != 2 || strcmp(argv[1], names[p.f]) != 0))
        p.f = (fault)(p.f + 1);
    if (p.f == FAULTS)
        return 2;
    open(&p);
    bool right = true;
    for (unsigned round = 0; round < ROUNDS; round++)
        right = compute(&p, (float)(1 + 1000 * round)) && right;
    if (p.f == CLOSED_STREAM) {
        cudaStreamSynchronize(p.compute);
        cudaStreamDestroy(p.compute);
        compute(&p, 1.0f);
    }
    close(&p);
    if (!right)
        printf("a result is wrong\n");
    return right ? 0 : 1;
}
