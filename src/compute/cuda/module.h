/* cuda/module.h - the interface of the module lockstep_cuda.so to compute/cuda.c. Only the module
 * is linked to NVIDIA's libraries. It uses nothing of the program but the arguments that it gets
 * here. */
#ifndef LKS_COMPUTE_CUDA_MODULE_H
#define LKS_COMPUTE_CUDA_MODULE_H

#include "base/system/module.h"
#include "compute/cuda/exchange/nccl.h"
#include "compute/device.h"

#define LKS__CUDA_MODULE_FILE "lockstep_cuda.so"

enum { LKS__CUDA_MODULE_VERSION = 11 }; /* increase it with every change below, or in compute/ */

typedef struct lks__cuda_gpu {
    char name[256];
    size_t bytes;     /* of memory */
    int major, minor; /* capability */
    uint64_t unit;    /* of its uuid: no other GPU has it */
    char pci[20];     /* its address: "0000:19:00.0" */
} lks__cuda_gpu;

typedef lks_status lks__cuda_fail(lks_status st, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

typedef lks_status lks__cuda_wait(lks__device *device, lks__mark mark);

/* The table of lockstep_nccl.so; NULL, with the reason in `why`, if there is none. */
typedef const lks__nccl_module *lks__cuda_load_nccl(char *why, size_t why_bytes);

typedef struct lks__cuda_module {
    int version;
    const lks__layers *layers;
    /* Number of GPUs that this process may use; negative, with half a sentence in `why`, if CUDA
     * doesn't work here. */
    int (*count)(char *why, size_t why_bytes);
    /* False, with the reason in `why`. */
    bool (*look)(int gpu, lks__cuda_gpu *out, char *why, size_t why_bytes);
    /* "CUDA runtime 13.0, driver 13.0, cuBLASLt 13.1" */
    void (*versions)(char *text, size_t bytes);
    /* Open the GPU, of a capability of at least LKS__CUDA_LEAST. `fail` and `wait` are the
     * program's lks__fail and lks__device_wait. */
    lks_status (*open)(int gpu, lks__cuda_fail *fail, lks__cuda_wait *wait,
                       lks__cuda_load_nccl *load_nccl, lks__device **device_p);
} lks__cuda_module;

enum { LKS__CUDA_LEAST = 8 }; /* major number of the oldest capability that kernels are built for */

#endif
