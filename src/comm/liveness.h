/* comm/liveness.h - facts about ranks outside collectives: heartbeats, failures, requests to stop.
 * The shared memory of each host holds them, for the host's ranks and its launcher. Leaders pass
 * failures and requests on to other hosts with their heartbeats. See also lks_comm_abort(),
 * lks_comm_note() and lks_comm_beat(). */
#pragma once

#include <stdbool.h>

#include "base/beat.h"
#include "lockstep/comm.h"

enum {
    LKS__SHM_PHASE = 32,        /* size of a phase's text */
    LKS__SHM_DEVICE = 80,       /* size of a device's text */
    LKS__SHM_REPORT = 16 << 10, /* size of the status table of all ranks */
};

/* lks_comm_note(), called by the library for a program that never calls it. */
void lks__comm_note_for(lks_comm *comm, uint64_t step, const char *phase);

/* lks_comm_beat(), for long computations of one call. */
lks__beat lks__comm_beats(lks_comm *comm);

/* Seconds for which a failure before the group is open is kept for ranks that start later. */
enum { LKS__TOLD_S = 5 };

/* The failure `st` of this rank's part in a call that the others may have begun: let them fail,
 * too, with lks_last_error() as the reason. Returns `st`. */
lks_status lks__comm_fail_call(lks_comm *comm, lks_status st);
/* The same if `st` is a failure of this rank alone: it is neither OK nor ERR_ARG, a misuse, which
 * has done nothing. */
lks_status lks__comm_fail_alone(lks_comm *comm, lks_status st);

/* Record the failure `st` of opening the group, for the ranks that wait for this one. ERR_PEER
 * becomes ERR_STOPPED if a signal has come and no failure is recorded: then other ranks have left
 * because of it. */
lks_status lks__comm_not_opened(lks_comm *comm, lks_status st);

/* A request to stop, outside collectives. All ranks of the host see it at once, ranks of other
 * hosts with their next heartbeat. The first signal is kept; 0: no request. lks__comm_ask_stop()
 * may be called in a signal handler. Ranks must agree before they act on the request. */
void lks__comm_ask_stop(lks_comm *comm, int signo);
int lks__comm_asked_stop(const lks_comm *comm);

/* This rank writes a checkpoint, or waits for the run's last one. The launcher doesn't let a second
 * signal interrupt that. */
void lks__comm_saving(lks_comm *comm, bool saving);

/* The device that this rank computes on, for messages; "": the CPU. */
void lks__comm_uses(lks_comm *comm, const char *device);

/* Seconds beyond the deadline before a rank that isn't inside such a transfer is named. A rank
 * detects a hanging device itself, and then it can report more about it. */
static const double LKS__OWN_WORD_S = 1.0;

/* Watch a transfer between devices, which bypasses the group. `waits`: this rank's device is inside
 * such a transfer, and this rank waits for it. Call it repeatedly while waiting, and once with
 * false at the end; each change counts as a heartbeat. ERR_TIMEOUT names a rank that isn't inside a
 * transfer and has had no heartbeat for the deadline and LKS__OWN_WORD_S: a rank whose own device
 * hangs can report that first. ERR_PEER names a rank whose process has ended. */
lks_status lks__comm_among_devices(lks_comm *comm, bool waits);
