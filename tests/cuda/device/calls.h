/* calls.h - what runs on the stand-ins used of NVIDIA's libraries. */
#pragma once

/* calls.txt lists all calls and kernels of the runs. There
 * are at least `n` of them. `path`: the file that the stand-ins wrote (CUDA_STANDIN_CALLS). */
void calls_assert_listed(const char *path, int n);
