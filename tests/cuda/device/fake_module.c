/* fake_module.c - a lockstep_cuda.so without GPUs: it only says what it is asked for. FAKE_GPUS:
 * how many there are; "none": CUDA doesn't work. FAKE_MAJOR: their capability. FAKE_OPENS: a GPU
 * can be opened, and then not be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cuda/module.h"

static int count(char *why, size_t why_bytes)
{
    const char *text = getenv("FAKE_GPUS");
    if (strcmp(text, "none") == 0) {
        snprintf(why, why_bytes, "cudaGetDeviceCount failed: no driver");
        return -1;
    }
    return atoi(text);
}

static bool look(int gpu, lks__cuda_gpu *out, char *why, size_t why_bytes)
{
    const char *major = getenv("FAKE_MAJOR");
    *out = (lks__cuda_gpu){.name = "Fake",
                           .bytes = 80000000000u,
                           .major = major == NULL ? 9 : atoi(major),
                           .pci = "0000:19:00.0"};
    snprintf(why, why_bytes, "GPU %d is lost", gpu);
    return out->major > 0;
}

static void versions(char *text, size_t bytes)
{
    snprintf(text, bytes, "CUDA 0.0");
}

static void close_gpu(lks__device *device)
{
}

static lks_status open_gpu(int gpu, lks__cuda_fail *fail, lks__cuda_wait *wait,
                           lks__cuda_load_nccl *load_nccl, lks__device **device_p)
{
    static const struct lks__device_ops ops = {.name = "cuda", .close = close_gpu};
    static lks__device device = {.ops = &ops, .unit = 1, .which = "GPU of a test"};
    fprintf(stderr, "GPU %d was asked for\n", gpu);
    if (getenv("FAKE_OPENS") != NULL) {
        device.unit += (uint64_t)gpu;
        *device_p = &device;
        return LKS_OK;
    }
    return fail(LKS_ERR_DEVICE, "the fake module was asked for GPU %d", gpu);
}

static const lks__layers layers;

LKS__MODULE_EXPORT const lks__cuda_module lks__module_table = {
    .version = LKS__CUDA_MODULE_VERSION,
    .layers = &layers,
    .count = count,
    .look = look,
    .versions = versions,
    .open = open_gpu,
};
