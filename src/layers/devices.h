/* layers/devices.h - the devices besides the CPU, one row each, best first. A program of the tests
 * has its own list. */
#ifndef LKS_LAYERS_DEVICES_H
#define LKS_LAYERS_DEVICES_H

#include "layers/device.h"

/* X(name in --device): lks__device_open_NAME() opens it, lks__device_look_NAME() looks for it. */
#ifndef LKS__DEVICES
#define LKS__DEVICES(X) X(cuda)
#endif

/* The values of --device. */
#define LKS__DEVICE_CHOICE(name) #name "|"
#define LKS__DEVICE_CHOICES      "auto|" LKS__DEVICES(LKS__DEVICE_CHOICE) "cpu"

enum { LKS__DEVICE_TEXT = 700 };

/* Who opens a device, and for what. */
typedef struct lks__device_place {
    const lks__exec *cpu;        /* stays valid; computes what the device leaves to the host */
    int local_rank, local_ranks; /* of this host */
    bool share;                  /* several ranks may have one device */
    bool questions;              /* only its table's questions are asked: needs no memory */
    /* NULL: the device was asked for by name. Otherwise LKS__DEVICE_TEXT bytes, "" at first: what
     * the user should know if ERR_SUPPORT makes `auto` take another device. */
    char *note;
} lks__device_place;

/* Open a device. ERR_SUPPORT if this machine has no such device, ERR_CONFIG if it has too few.
 * Close it with lks__device_close(). */
typedef lks_status lks__device_open_fn(const lks__device_place *place, lks__device **device_p);

/* Has this machine such a device? text: what it is, or why there is none; one line. It opens
 * nothing. */
typedef bool lks__device_look_fn(char text[LKS__DEVICE_TEXT]);

#define X(name)                                                                                    \
    lks__device_open_fn lks__device_open_##name;                                                   \
    lks__device_look_fn lks__device_look_##name;
LKS__DEVICES(X)
#undef X

typedef struct lks__device_row {
    const char *name;
    lks__device_open_fn *open;
    lks__device_look_fn *look;
} lks__device_row;

/* The list, and an empty row. */
extern const lks__device_row lks__device_rows[];

#endif
