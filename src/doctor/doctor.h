/* doctor/doctor.h - what can keep a run from working or from being fast, found before it starts:
 * on this host, and between it and others. */
#ifndef LKS_DOCTOR_DOCTOR_H
#define LKS_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"
#include "kernels/kernels.h"

typedef enum lks__finding {
    LKS__FINE,
    LKS__NOTE,    /* it works; it may be slow, or surprise */
    LKS__PROBLEM, /* something will fail */
} lks__finding;

typedef struct lks__doctor {
    FILE *out;
    int n_notes, n_problems;
    /* This host, as others see it; filled in by lks__doctor_host(). */
    lks__cpu_level level;
    lks__kernels kernels;
    bool has_kernels;
} lks__doctor;

/* One line, and with `advice` what to do about it on a second one. */
void lks__doctor_say(lks__doctor *d, lks__finding finding, const char *topic, const char *advice,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Processor, kernels, limits, memory, clock, modules. */
void lks__doctor_host(lks__doctor *d);
/* A folder to write checkpoints to, or where it would be made; nothing is left there. */
void lks__doctor_folder(lks__doctor *d, const char *path);
/* Interfaces, the host's own name. */
void lks__doctor_network(lks__doctor *d);

/* Wait for other hosts' doctors at ADDRESS[:PORT] until SIGINT or SIGTERM. */
lks_status lks__doctor_serve(lks__doctor *d, const char *address);
/* The way to a host that serves, and how that host differs from this one. LOCKSTEP_TOKEN is what it
 * has printed. */
void lks__doctor_peer(lks__doctor *d, const char *address);

#endif
