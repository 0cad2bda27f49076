/* launch/doctor/doctor.h - finds problems that would stop a run or slow it down, before it starts:
 * on this host, and between it and other hosts. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"
#include "compute/cpu/kernels.h"

typedef enum lks__finding {
    LKS__FINE,
    LKS__NOTE,    /* it works, but may be slow or surprising */
    LKS__PROBLEM, /* something will fail */
} lks__finding;

typedef struct lks__doctor {
    FILE *out;
    int n_notes, n_problems, n_peers; /* n_peers: number of hosts that were measured */
    bool served;                      /* other hosts could measure their links to this one */
    char first_problem[32];           /* the problem's topic */
    /* Facts about this host to send to other hosts; lks__doctor_host() fills them in. */
    lks__cpu_level level;
    lks__kernels kernels;
    bool has_kernels;
} lks__doctor;

/* Print one line, and `advice` (if not NULL) on a second line. */
void lks__doctor_say(lks__doctor *d, lks__finding finding, const char *topic, const char *advice,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Check processor, kernels, limits, memory, clock, modules. */
void lks__doctor_host(lks__doctor *d);
/* Check a folder for checkpoints, or the parent in which it would be made; leaves no file there. */
void lks__doctor_folder(lks__doctor *d, const char *path);
/* Check interfaces and the host's own name. */
void lks__doctor_network(lks__doctor *d);

/* Print a summary of all findings in one line, after a list of the facts that weren't found out. */
void lks__doctor_verdict(lks__doctor *d);

/* Wait for other hosts' doctors at ADDRESS[:PORT] until SIGINT or SIGTERM. */
lks_status lks__doctor_serve(lks__doctor *d, const char *address);
/* Measure the connection to a host that serves, and compare that host with this one. LOCKSTEP_TOKEN
 * is the token that the other host has printed. */
void lks__doctor_peer(lks__doctor *d, const char *address);
