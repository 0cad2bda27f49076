/* compute/peak/peak_device.h - the peak rate of a device with separate memory. */
#pragma once

#include "compute/device.h"

/* The best rate in FLOP/s of products with square factors. Their sizes grow until they take a tenth
 * of a millisecond or fill `memory`, which is the device's and overwritten; 0 if it is too small
 * for any. bf16: the factors are bfloat16. Nothing else may use the compute queue. */
lks_status lks__peak_of_device(lks__device *device, bool bf16, void *memory, size_t bytes,
                               double *flops_p);
