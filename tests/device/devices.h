/* devices.h - the list of devices of lockstep_deferred, which replaces compute/devices.h. */
#pragma once

#define LKS__DEVICES(X) X(deferred)
