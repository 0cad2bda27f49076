/* devices.h - the list of devices of lockstep_deferred, which replaces compute/devices.h. */
#ifndef LKS_TESTS_DEVICE_DEVICES_H
#define LKS_TESTS_DEVICE_DEVICES_H

#define LKS__DEVICES(X) X(deferred)

#endif
