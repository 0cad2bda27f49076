/* compute/cpu/device.h - the CPU as a device: it completes every operation within the call. */
#pragma once

#include "compute/cpu/exec.h"
#include "compute/device.h"

/* `ex` is borrowed. It needs no close. */
lks__device lks__device_cpu(const lks__exec *ex);
