/* session/bind_module.h - the interface of the module lockstep_hwloc.so to session/bind.c: the
 * machine's cores and memory nodes. It is loaded when several ranks of a host start. */
#pragma once

#include <sched.h>
#include <stddef.h>

#include "base/system/module.h"

#define LKS__BIND_MODULE_FILE "lockstep_hwloc.so"

enum { LKS__BIND_MODULE_VERSION = 1 }; /* increase it with every change below */

typedef struct lks__bind_share {
    int cores, nodes; /* of the machine, as far as this process may use it */
    cpu_set_t set;    /* the processors of this rank's share */
} lks__bind_share;

typedef struct lks__bind_module {
    int version;
    const char *(*library)(void); /* "hwloc 2.9" */
    /* Divide the usable processors into `ranks` shares, each with processors as close together as
     * possible, and return the share of `rank`. Not 0, with the reason in `why`, if the machine
     * can't be read. */
    int (*share)(int rank, int ranks, lks__bind_share *share, char *why, size_t why_bytes);
} lks__bind_module;
