/* cuda/gpu.c - facts about a GPU: its properties, and the fingerprint of its bits. */
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compute/cuda/device.h"

bool lks__cuda_look(int gpu, lks__cuda_gpu *out, char *why, size_t why_bytes)
{
    struct cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, gpu);
    if (error != cudaSuccess) {
        snprintf(why, why_bytes, "cudaGetDeviceProperties failed: %s (CUDA error %d)",
                 cudaGetErrorString(error), (int)error);
        (void)cudaGetLastError();
        return false;
    }
    *out = (lks__cuda_gpu){.bytes = p.totalGlobalMem, .major = p.major, .minor = p.minor};
    out->unit = XXH3_64bits(&p.uuid, sizeof p.uuid) | 1; /* not 0 */
    snprintf(out->name, sizeof out->name, "%s", p.name);
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", (unsigned)p.pciDomainID & 0xffffu,
             (unsigned)p.pciBusID & 0xffu, (unsigned)p.pciDeviceID & 0xffu);
    return true;
}

/* Hash everything that the bits of a run depend on: GPU, libraries, driver (it may compile
 * kernels), and, after a rehearsal, algorithms. */
bool lks__cuda_find_fingerprint(lks__cuda *c)
{
    lks__device_part *parts = c->device.parts;
    uint64_t facts[6] = {(uint64_t)c->about.major, (uint64_t)c->about.minor, cublasLtGetVersion()};
    int found[3];
    if (!LKS__CUDA_CALL(c, cudaDeviceGetAttribute, &found[0], cudaDevAttrMultiProcessorCount,
                        c->gpu) ||
        !LKS__CUDA_CALL(c, cudaRuntimeGetVersion, &found[1]) ||
        !LKS__CUDA_CALL(c, cudaDriverGetVersion, &found[2]))
        return false;
    for (int i = 0; i < 3; i++)
        facts[3 + i] = (uint64_t)found[i];
    uint64_t h = XXH3_64bits(LKS_VERSION_TEXT, sizeof LKS_VERSION_TEXT);
    h = XXH3_64bits_withSeed(c->about.name, strlen(c->about.name), h);
    parts[0].name = "the GPU's kind, its driver or CUDA's libraries";
    parts[0].value = h = XXH3_64bits_withSeed(facts, sizeof facts, h);
    snprintf(c->kind, sizeof c->kind, "%.160s capability=%d.%d multiprocessors=%d cublaslt=%zu",
             c->about.name, c->about.major, c->about.minor, found[0], (size_t)facts[2]);
    snprintf(parts[0].text, sizeof parts[0].text, "%s runtime=%d driver=%d", c->kind, found[1],
             found[2]);
    if (parts[1].name != NULL)
        h = XXH3_64bits_withSeed(&parts[1].value, sizeof parts[1].value, h);
    c->device.fingerprint = h | 1; /* not 0 */
    return true;
}
