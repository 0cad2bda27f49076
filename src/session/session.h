/* session/session.h - what every computing command stands on: this rank's place among the ranks,
 * the kernels they agreed on, and its threads. */
#ifndef LKS_SESSION_SESSION_H
#define LKS_SESSION_SESSION_H

#include <stdbool.h>

#include "kernels/device.h"
#include "lockstep/comm.h"

typedef struct lks__session {
    lks_world world;
    lks_comm *comm;
    lks__kernels kernels;
    lks__pool *pool;
    lks__exec ex;
    lks__device cpu;
    lks__device *device; /* where models compute: &cpu, or another one */
    int threads;
    char fingerprint[17]; /* of the kernels, 16 hex digits */
} lks__session;

/* Join the ranks that the environment describes (else: one rank), agree on the lowest kernel level
 * among them, start `threads` threads (0: cores / local ranks). Collective. */
lks_status lks__session_open(const char *backend, double timeout_s, int threads, lks__session *s);
void lks__session_close(lks__session *s);

/* Models compute on the device of that name; "auto": the best one that this machine has. Without a
 * call it is the CPU. Collective: ERR_DIVERGED if ranks would take different ones. */
lks_status lks__session_device(lks__session *s, const char *name);

/* Products are float32's after lks__session_open(): from here on they are bfloat16's, or float32's
 * again. Collective: ERR_DIVERGED where the ranks' kernels don't give the same bits. */
lks_status lks__session_products(lks__session *s, bool bf16);

/* What `threads` of this rank's threads can do in multiply-adds of the session's products at the
 * same time, in FLOP/s: the best of `bursts` of a millisecond for each, as somebody else may have
 * its core for one. Not collective; ERR_NOMEM. */
lks_status lks__session_peak(const lks__session *s, int threads, int bursts, double *flops_p);

/* Collective: OK where every rank brings OK. Otherwise the lowest rank that failed gets its own
 * status back, and every other rank ERR_PEER naming it: one failure, one message. After a
 * failure the group is aborted. ERR_STOPPED is no failure: if a rank brings it and none fails, all
 * get it, and lks__session_asked_stop() is the signal on all. */
lks_status lks__session_agree(lks__session *s, lks_status st);

/* Collective: ERR_DIVERGED naming `what` and two ranks where `value` isn't the same on all. */
lks_status lks__session_same(lks__session *s, const char *what, uint64_t value);

/* Has a signal asked this rank, or another one, to stop? Its number; 0: no. Cheap: for each
 * micro-batch. Ranks see it at different times: what follows from it they have to agree on. */
int lks__session_asked_stop(const lks__session *s);

/* ERR_STOPPED where lks__session_asked_stop() is not 0. */
lks_status lks__session_check_stop(const lks__session *s);

/* May a request to stop end this rank's reading of files (ERR_STOPPED)? At first it may not. */
void lks__session_stoppable(const lks__session *s, bool stoppable);

/* Until `saving` is false again a second signal to stop doesn't end this rank, a third does. */
void lks__session_saving(lks__session *s, bool saving);

/* This rank's first failure becomes everybody's (a no-op for OK); returns `st`. */
lks_status lks__session_fail(lks__session *s, lks_status st);

/* Has this process's failure been made everybody's? Then a launcher of ours says it, too. */
bool lks__session_on_record(void);

#endif
