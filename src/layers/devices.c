#include "layers/devices.h"

const lks__device_row lks__device_rows[] = {
#define X(name) {#name, lks__device_open_##name, lks__device_look_##name},
    LKS__DEVICES(X)
#undef X
        {.name = NULL},
};
