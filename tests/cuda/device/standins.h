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
 *   CUDA_STANDIN_ALGORITHMS=N   another number: other algorithms for products
 *   CUDA_STANDIN_OFF=N          products are off by N millionths
 *   CUDA_STANDIN_MB=N           memory of a GPU, in MiB (4,096)
 *   CUDA_STANDIN_FAIL=NAME:N    the Nth call of NAME in a process fails; "kernel": a launch
 *   CUDA_STANDIN_ONLY_RANK=R    PROCESSORS, ALGORITHMS and FAIL apply to that rank alone
 *   CUDA_STANDIN_CALLS=PATH     append each kind of call and kernel that was used, at the end
 *
 * It ends the process with a sentence if the host touches the device's memory, if anything touches
 * memory that was freed or lies beyond a block, for a copy of pageable memory, for which CUDA may
 * stop the host, for a product whose algorithm was made for another one, and if what is destroyed
 * or freed is still queued.
 *
 * What it doesn't show: two operations at the same time, numbers of other hardware, speed, and what
 * NVIDIA's libraries refuse beyond this. */
#ifndef LKS_TESTS_CUDA_STANDINS_H
#define LKS_TESTS_CUDA_STANDINS_H
#endif
