/* standins.h - the CUDA runtime and cuBLASLt for tests, on the CPU (standins.cc).
 *
 * Copies, kernels, products and calls of the host are queued and run in an order of the seed:
 * CUDA_STANDIN_SEED + LKS_TEST_START + RANK of the environment, modulo 4: as late as a wait allows;
 * streams of even numbers as early as possible; of odd numbers; at random. A query is answered "not
 * yet" up to five times in a row. New memory holds NaNs if it is small, and so does the target of a
 * queued copy to the host.
 *
 *   CUDA_STANDIN_GPUS=N         GPUs of this machine (8); "none": there is no driver
 *   CUDA_STANDIN_OWN=1          each rank sees other GPUs than the ranks before it
 *   CUDA_STANDIN_MAJOR=N        their capability (9)
 *   CUDA_STANDIN_PROCESSORS=N   multiprocessors of this rank's GPU
 *   CUDA_STANDIN_ALGORITHMS=N   another number: the heuristic chooses other algorithms, with other
 *                               bits; -1: in each process
 *   CUDA_STANDIN_REFUSED=N      algorithms of that number aren't supported by this rank's GPU
 *   CUDA_STANDIN_OFF=N          products are off by N millionths
 *   CUDA_STANDIN_MB=X           memory of a GPU, in MiB (4,096)
 *   CUDA_STANDIN_PEAK=PATH      append the most bytes that a process had allocated, at its end
 *   CUDA_STANDIN_FAIL=NAME:N    the Nth call of NAME in a process fails; "kernel": a launch;
 *                               "asynchronous": NCCL finds it out when it is asked the Nth time
 *   CUDA_STANDIN_KILL=NAME:N    … ends the process by SIGKILL
 *   CUDA_STANDIN_STOP=NAME:N    … stops it by SIGSTOP
 *   CUDA_STANDIN_HANG=NAME:N    … never returns, as one does whose GPU takes no more work;
 *                               "kernel": the Nth kernel never ends
 *   CUDA_STANDIN_ONLY_RANK=R    PROCESSORS, ALGORITHMS, REFUSED, FAIL, KILL, STOP and HANG apply to
 * that rank CUDA_STANDIN_NCCL=FOLDER    for what NCCL's stand-in moves between ranks (/tmp)
 *   CUDA_STANDIN_CALLS=PATH     append each kind of call and kernel that was used, at the end
 *   CUDA_STANDIN_COUNTS=PATH    … with the number of times: "KIND: N"
 *
 * It ends the process with a sentence if the host touches the device's memory, if anything touches
 * memory that was freed or lies beyond a block, for a copy of pageable memory, for which CUDA may
 * stop the host, for a product whose algorithm was made for another one, and if what is destroyed
 * or freed is still queued. NCCL's stand-in (standins_nccl.cc) adds: a call that would block, or
 * that comes while an earlier one is in progress or after the end, pieces outside of a group, which
 * might wait for each other for ever, and sizes that differ between ranks.
 *
 * What it doesn't show: two operations at the same time, numbers of other hardware, speed, and what
 * NVIDIA's libraries refuse beyond this. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
#include <functional>
#include <mutex>

/* What NCCL's stand-in uses of CUDA's: lks_standins_table. */
struct lks_standins {
    bool (*fails)(const char *name, const char *signature);
    bool (*is_chosen_time)(const char *name); /* the same for what is no call */
    void (*die)(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
    uint32_t (*draw)(uint32_t below);
    void (*is_device_memory)(const char *what, const void *p, size_t bytes);
    /* Put it on the stream: it is tried in its turn, with the device's memory, until it is true. */
    void (*put)(cudaStream_t stream, const char *what, std::function<bool()> attempt);
    void (*go_on)(void);         /* all streams, as far as they can */
    const int *unit;             /* of this process's GPU */
    std::recursive_mutex *mutex; /* to be held in calls */
};
#endif
