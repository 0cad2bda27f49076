/* compute/devices.h - the devices besides the CPU, one row each, best first. A test
 * program replaces the list (tests/device/devices.h). */
#pragma once

#include "compute/device.h"

/* X(name in --device): lks__device_open_NAME() opens it, lks__device_look_NAME() looks for it. A
 * machine may have several: NAME:N is number N, from 0 on. */
#ifndef LKS__DEVICES
#define LKS__DEVICES(X) X(cuda)
#endif

/* The values of --device. */
#define LKS__DEVICE_CHOICE(name) #name "|" #name ":N|"
#define LKS__DEVICE_CHOICES      "auto|" LKS__DEVICES(LKS__DEVICE_CHOICE) "cpu"

enum { LKS__DEVICE_TEXT = 700, LKS__DEVICE_LOOK = 4000 };

/* The caller that opens a device, and its purpose. */
typedef struct lks__device_place {
    const lks__exec *cpu; /* stays valid; computes everything that runs on the host */
    int local_rank;       /* rank within this host */
    int number;           /* number of the device, from 0 on; -1: any */
    bool questions;       /* the caller asks only questions (compute/layers.h): needs no memory */
    /* NULL: the device was asked for by name. Otherwise LKS__DEVICE_TEXT bytes, "" at first: a
     * remark for the user, if ERR_SUPPORT makes `auto` choose another device. */
    char *note;
} lks__device_place;

/* Open a device. ERR_SUPPORT if this machine has no such device, ERR_CONFIG if it has none with
 * that number. Close it with lks__device_close(). */
typedef lks_status lks__device_open_fn(const lks__device_place *place, lks__device **device_p);

/* True if this machine has such a device. text: lines, without a final line feed. The first names
 * the devices, or the reason why there are none; then each device has one, "NUMBER: description",
 * followed by lines that begin with a blank. NULL: no text is needed. It opens nothing. */
typedef bool lks__device_look_fn(char text[LKS__DEVICE_LOOK]);

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

/* The row for "NAME" or "NAME:N", and N (-1: none); NULL if there is none. */
const lks__device_row *lks__device_find(const char *text, int *number_p);
