/* cuda/module.c - the module's table, and its answers about this machine. */
#include <stdio.h>
#include <string.h>

#include "compute/cuda/device.h"

static int count(char *why, size_t why_bytes)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess)
        return n;
    (void)cudaGetLastError();
    snprintf(why, why_bytes, "cudaGetDeviceCount failed: %s (CUDA error %d)%s",
             cudaGetErrorString(error), (int)error,
             error == cudaErrorInsufficientDriver
                 ? "; NVIDIA's driver is missing, or too old for this CUDA"
                 : "");
    return error == cudaErrorNoDevice ? 0 : -1;
}

static void versions(char *text, size_t bytes)
{
    int runtime = 0, driver = 0;
    char of_driver[40] = "no driver";
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    const size_t products = cublasLtGetVersion();
    if (driver > 0)
        snprintf(of_driver, sizeof of_driver, "driver %d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(text, bytes, "CUDA runtime %d.%d, %s, cuBLASLt %zu.%zu", runtime / 1000,
             runtime % 1000 / 10, of_driver, products / 10000, products / 100 % 100);
}

static const lks__layers layers = {
#define X(name) .name = lks__cuda_##name,
    LKS__LAYER_MAP(X) LKS__LAYER_QUESTION_MAP(X)
#undef X
};

static lks_status open_gpu(int gpu, lks__cuda_fail *fail, lks__cuda_wait *wait,
                           lks__cuda_load_nccl *load_nccl, lks__device **device_p)
{
    return lks__cuda_open(gpu, &layers, fail, wait, load_nccl, device_p);
}

LKS__MODULE_EXPORT const lks__cuda_module lks__module_table = {
    .version = LKS__CUDA_MODULE_VERSION,
    .layers = &layers,
    .count = count,
    .look = lks__cuda_look,
    .versions = versions,
    .open = open_gpu,
};
