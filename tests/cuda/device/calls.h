/* calls.h - what runs on the stand-ins used of NVIDIA's libraries. */
#ifndef LKS_TESTS_CUDA_CALLS_H
#define LKS_TESTS_CUDA_CALLS_H

/* calls.txt lists all calls and kernels of the runs. There
 * are at least `n` of them. `path`: the file that the stand-ins wrote (CUDA_STANDIN_CALLS). */
void calls_assert_listed(const char *path, int n);

#endif
