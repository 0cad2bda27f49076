/* layers/devices.h - the devices besides the CPU, one row each, best first. A program of the tests
 * has its own list. */
#ifndef LKS_LAYERS_DEVICES_H
#define LKS_LAYERS_DEVICES_H

#include "layers/device.h"

/* X(name in --device): lks__device_open_NAME() opens it. */
#ifndef LKS__DEVICES
#define LKS__DEVICES(X)
#endif

/* The values of --device. */
#define LKS__DEVICE_CHOICE(name) #name "|"
#define LKS__DEVICE_CHOICES      "auto|" LKS__DEVICES(LKS__DEVICE_CHOICE) "cpu"

/* Open a device. `cpu`, which stays valid, computes what the device leaves to the host. ERR_SUPPORT
 * if this machine has no such device. Close it with lks__device_close(). */
typedef lks_status lks__device_open_fn(const lks__exec *cpu, lks__device **device_p);

#define X(name) lks__device_open_fn lks__device_open_##name;
LKS__DEVICES(X)
#undef X

#endif
