#include "compute/peak/peak_device.h"

#include <math.h>
#include <stdlib.h>

#include "base/system/sys.h"

enum { LEAST = 64, MOST = 4096, PATTERN = 1 << 18, TURNS = 3, RUNS = 8 };
static const double LONG_S = 1e-4;

/* dw[n, n] += dy[n, n]^T x[n, n]. */
struct product {
    lks__device *device;
    lks__act *dy, *x;
    float *dw;
    size_t n;
};

/* Fill with numbers in [1/2, 2): the same as floats and as bfloat16, whose bits are the upper half
 * of a float's. A GPU is faster with zeros. */
static lks_status fill(lks__device *device, char *memory, size_t bytes)
{
    uint32_t *pattern = malloc(PATTERN), random = 1;
    LKS__MEMORY(pattern, "for %d bytes of random numbers", (int)PATTERN);
    for (size_t i = 0; i < PATTERN / sizeof *pattern; i++) {
        random = random * 1664525u + 1013904223u;
        const uint32_t half = 0x3f00 + (random >> 24);
        pattern[i] = half << 16 | half;
    }
    for (size_t at = 0; at < bytes; at += PATTERN)
        device->ops->copy(device, LKS__QUEUE_COMPUTE, memory + at, pattern,
                          bytes - at < PATTERN ? bytes - at : PATTERN);
    const lks_status st = lks__device_finish(device, LKS__QUEUE_COMPUTE);
    free(pattern);
    return st;
}

/* Seconds per product. */
static lks_status time_products(const struct product *p, double *seconds_p)
{
    *seconds_p = INFINITY;
    for (int turn = 0; turn < TURNS; turn++) { /* the first one also finds an algorithm */
        const double start = lks__sys_now();
        for (int i = 0; i < RUNS; i++)
            p->device->layers->linear_bwd_w(p->device->ex, p->dw, NULL, p->dy, p->n, p->x, p->n,
                                            p->n, p->n, false);
        LKS__TRY(lks__device_finish(p->device, LKS__QUEUE_COMPUTE));
        *seconds_p = fmin(*seconds_p, (lks__sys_now() - start) / RUNS);
    }
    return LKS_OK;
}

static lks_status measure(lks__device *device, bool bf16, void *memory, size_t bytes,
                          double *flops_p)
{
    const size_t element = device->layers->act_bytes(bf16);
    double seconds = 0.0;
    *flops_p = 0.0;
    for (size_t n = LEAST; n <= MOST && seconds < LONG_S; n *= 2) {
        const size_t factor = n * n * element;
        if (2 * factor + n * n * sizeof(float) > bytes)
            break;
        const struct product p = {.device = device,
                                  .dy = memory,
                                  .x = lks__act_at(memory, n * n, element),
                                  .dw = (float *)(void *)((char *)memory + 2 * factor),
                                  .n = n};
        LKS__TRY(fill(device, memory, 2 * factor));
        device->layers->clear(device->ex, p.dw, n * n);
        LKS__TRY(time_products(&p, &seconds));
        *flops_p = fmax(*flops_p, 2.0 * (double)n * (double)n * (double)n / seconds);
    }
    return LKS_OK;
}

lks_status lks__peak_of_device(lks__device *device, bool bf16, void *memory, size_t bytes,
                               double *flops_p)
{
    lks__device_choose_freely(device, true);
    const lks_status st = measure(device, bf16, memory, bytes, flops_p);
    lks__device_choose_freely(device, false);
    return st;
}
