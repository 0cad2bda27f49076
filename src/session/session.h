/* session/session.h - used by every command that computes: this rank's place among the ranks, the
 * kernels that they agreed on, and its threads. */
#ifndef LKS_SESSION_SESSION_H
#define LKS_SESSION_SESSION_H

#include <stdbool.h>

#include "compute/cpu/device.h"
#include "compute/devices.h"
#include "lockstep/comm.h"
#include "session/bind.h"

typedef struct lks__session {
    lks_world world;
    lks_comm *comm;
    lks__kernels kernels;
    lks__pool *pool;
    lks__exec ex;
    lks__device cpu;
    lks__device *device; /* where models compute: &cpu, or another one */
    char device_note[LKS__DEVICE_TEXT];
    double timeout_s; /* for waits */
    int threads;
    int cores;            /* that the ranks of this host may use, all together; 0: unknown */
    char fingerprint[17]; /* of the kernels and the device, 16 hex digits */
    /* Called as a long piece of work goes on (micro-batches of a step, batches of an evaluation),
     * on this rank's own progress: `done` of `n`. NULL: nobody asks. */
    void (*on_progress)(void *ctx, size_t done, size_t n);
    void *on_progress_ctx;
} lks__session;

void lks__session_progress(const lks__session *s, size_t done, size_t n);

/* Join the ranks that the environment describes (or be the only one), agree on the lowest kernel
 * level among them, start `threads` threads (0: cores / local ranks), bound as `bind` says.
 * Collective. */
lks_status lks__session_open(const char *backend, double timeout_s, int threads,
                             enum lks__bind bind, lks__session *s);
void lks__session_close(lks__session *s);

/* Models compute on the device of that name; "auto": the best one of this machine. Without a call
 * it is the CPU. `share`: ranks of a host may have one device together; without it that is
 * ERR_CONFIG, with both numbers. Collective: ERR_DIVERGED if ranks would use different ones. */
lks_status lks__session_device(lks__session *s, const char *name, bool share);

/* Join the ranks' devices, so that memory goes from one to the other without the host. Collective.
 * If that can't be on some rank it is an error with `must`; without, the host stays between them,
 * as it does for devices that never join, and the note below has the reason. A rank that is alone
 * joins nobody, without `must`; then its device sums by itself. */
lks_status lks__session_join(lks__session *s, bool must);

/* Why `auto` left out what the user may have expected, or how devices have joined; NULL: nothing,
 * or another rank reports it. */
const char *lks__session_device_note(const lks__session *s);

/* Without a session: that device, but not open. Its table answers questions, and `ops` says what it
 * is; nothing else may be called. */
lks_status lks__session_ask(const char *name, lks__device *asked);

/* Set the precision of products to bfloat16 or float32, the initial one. Collective: ERR_DIVERGED
 * if the ranks' kernels don't give the same bits. */
lks_status lks__session_products(lks__session *s, bool bf16);

/* Measure the speed of this rank's first `threads` threads together, in multiply-adds of the
 * session's products: FLOP/s, the best of `bursts` of a millisecond on each, because other programs
 * may disturb some. If the host's ranks have more threads than cores, this is the rank's share of
 * the cores' peak. Not collective; ERR_NOMEM. */
lks_status lks__session_peak(const lks__session *s, int threads, int bursts, double *flops_p);

/* Collective: OK if every rank passes OK. Otherwise the lowest rank that failed gets its own status
 * back, and every other rank gets ERR_PEER naming it, so there is one message for one failure.
 * After a failure the group is aborted. ERR_STOPPED is no failure: if a rank passes it and none
 * fails, all get it, and lks__session_asked_stop() is the signal on all. */
lks_status lks__session_agree(lks__session *s, lks_status st);

/* This host's name, as ranks send it to each other, and "rank 2 (host b)" for messages. */
enum { LKS__HOST_NAME = 64 };
typedef struct lks__place_text {
    char text[4 * LKS__HOST_NAME + 32];
} lks__place_text;
void lks__session_host(char host[LKS__HOST_NAME]);
void lks__session_place(lks__place_text *out, int rank, const char host[LKS__HOST_NAME]);

/* Collective: ERR_DIVERGED, naming `what` and two ranks with their hosts and values, if `value`
 * isn't the same on all. */
lks_status lks__session_same(lks__session *s, const char *what, uint64_t value);
/* The same for a word, of 16 characters at most. */
lks_status lks__session_same_word(lks__session *s, const char *what, const char *text);

/* The signal that has asked any rank to stop; 0: none. Cheap enough to call for each micro-batch.
 * Ranks notice it at different times, so they must agree before they act on it. */
int lks__session_asked_stop(const lks__session *s);

/* ERR_STOPPED if lks__session_asked_stop() is not 0. */
lks_status lks__session_check_stop(const lks__session *s);

/* May a request to stop end this rank's reading of files (ERR_STOPPED)? Initially not. */
void lks__session_stoppable(const lks__session *s, bool stoppable);

/* While `saving` is true, a second signal to stop doesn't end this rank, but a third does. */
void lks__session_saving(lks__session *s, bool saving);

/* Report this rank's first failure to all ranks (nothing for OK); returns `st`. */
lks_status lks__session_fail(lks__session *s, lks_status st);

/* Has another launcher than lockstep's started this process, or the launcher that started it? */
bool lks__session_foreign(void);

/* Has this process reported its failure to all ranks? Then lockstep's launcher prints it, too. */
bool lks__session_on_record(void);

#endif
