/* session/session.h - used by every command that computes: this rank's place among the ranks, the
 * kernels that all ranks agreed on, and its threads. */
#pragma once

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
    lks__device *device; /* computes the models: &cpu, or another one */
    char device_note[LKS__DEVICE_TEXT];
    char algorithms_note[LKS__DEVICE_TEXT]; /* why a kept table isn't used; "": it is, or none */
    double timeout_s;                       /* for waits */
    int threads;
    int cores;            /* available to all ranks of this host together; 0: unknown */
    char fingerprint[17]; /* of the kernels and the device, 16 hex digits */
    /* Called during long work (micro-batches of a step, batches of an evaluation) with this rank's
     * own progress: `done` of `n`. May be NULL. */
    void (*on_progress)(void *ctx, size_t done, size_t n);
    void *on_progress_ctx;
} lks__session;

void lks__session_progress(const lks__session *s, size_t done, size_t n);

/* Join the ranks that the environment describes (or be the only one), agree on the lowest kernel
 * level among them, start `threads` threads (0: cores / local ranks), bound according to `bind`.
 * Collective. */
lks_status lks__session_open(const char *backend, double timeout_s, int threads,
                             enum lks__bind bind, lks__session *s);
void lks__session_close(lks__session *s);

/* Report a failure before lks__session_open(), with lks_last_error(), to the other ranks, if
 * they come within LKS__TOLD_S. Does nothing after a session was opened, or tried. */
void lks__session_tell(const char *backend, lks_status failure);

/* Let waits for the device also send heartbeats and notice the failure of the group. */
void lks__session_watch(lks__session *s);

/* Choose the device for models by name; "auto": the best one of this machine. Without a call it is
 * the CPU. `share`: ranks of a host may share a device; otherwise sharing is ERR_CONFIG, with both
 * numbers. Collective: ERR_DIVERGED if ranks would use different devices. */
lks_status lks__session_device(lks__session *s, const char *name, bool share);

/* Join the ranks' devices, so that data moves between them without passing through the host.
 * Collective. If a rank can't join, it is an error with `must`. Without `must`, data passes through
 * the host, as for devices that never join, and the note below contains the reason. A single rank
 * doesn't join without `must`; its device then sums by itself. */
lks_status lks__session_join(lks__session *s, bool must);

/* Why `auto` skipped a device that the user may have expected, or how devices have joined. NULL:
 * nothing to report, or another rank reports it. */
const char *lks__session_device_note(const lks__session *s);

/* Describe a device without a session and without opening it, for queries of sizes only. `ops`
 * identifies it. */
lks_status lks__session_describe(const char *name, lks__device *asked);

/* Set the precision of products to bfloat16 or float32 (initially float32). Collective:
 * ERR_DIVERGED if the ranks' kernels don't give the same bits. */
lks_status lks__session_products(lks__session *s, bool bf16);

/* Calls each operation that the ranks are going to compute, for a rehearsal (compute/device.h). */
typedef lks_status lks__rehearsal(void *ctx);
/* Let all ranks compute matrix products by the algorithms that rank 0 chooses, which are those of
 * the table `kept`, unless it is NULL or can't be used here. Collective: ERR_SUPPORT if a rank
 * can't use one of them. Does nothing if the device chooses no algorithms. */
lks_status lks__session_rehearse(lks__session *s, const char *kept, lks__rehearsal *rehearsal,
                                 void *ctx);

/* Measure the speed of this rank's first `threads` threads together, in multiply-adds of the
 * session's products: FLOP/s, the best of `bursts` of a millisecond on each, because other programs
 * may disturb some. If the host's ranks have more threads than cores, this is the rank's share of
 * the cores' peak. Not collective; ERR_NOMEM. */
lks_status lks__session_peak(const lks__session *s, int threads, int bursts, double *flops_p);

/* Collective: OK if every rank passes OK. Otherwise the lowest rank that failed gets its own status
 * back, and every other rank gets ERR_PEER with that rank's message. After a failure the group is
 * aborted. ERR_STOPPED is not a failure: if a rank passes it and no rank fails, all get it, and
 * lks__session_asked_stop() is the signal on all. */
lks_status lks__session_agree(lks__session *s, lks_status st);

/* Collective: `mine` [bytes] of every rank, by rank, in memory that the caller frees. NULL if *st_p
 * isn't LKS_OK, or if the call fails and sets it. */
void *lks__session_gather(const lks__session *s, const void *mine, size_t bytes, lks_status *st_p);

/* This host's name, as ranks send it to each other, and "rank 2 (host b)" for messages. */
enum { LKS__HOST_NAME = 64 };
typedef struct lks__place_text {
    char text[4 * LKS__HOST_NAME + 32];
} lks__place_text;
void lks__session_host(char host[LKS__HOST_NAME]);
lks__place_text lks__session_place(int rank, const char host[LKS__HOST_NAME]);

/* Collective: ERR_DIVERGED, with `what` and two ranks with their hosts and values, if `value`
 * differs between ranks. */
lks_status lks__session_same(lks__session *s, const char *what, uint64_t value);
/* Compare a word of at most 16 characters. */
lks_status lks__session_same_word(lks__session *s, const char *what, const char *text);

/* The signal that asked any rank to stop, or 0. Cheap enough to call for each micro-batch. Ranks
 * notice it at different times, so they must agree before they act on it. */
int lks__session_asked_stop(const lks__session *s);

/* ERR_STOPPED if lks__session_asked_stop() is not 0. */
lks_status lks__session_check_stop(const lks__session *s);

/* Set whether a request to stop may end this rank's reading of files (ERR_STOPPED). Initially
 * false. */
void lks__session_stoppable(const lks__session *s, bool stoppable);

/* While `saving` is true, a second signal to stop doesn't end this rank, but a third does. */
void lks__session_saving(lks__session *s, bool saving);

/* Report this rank's first failure to all ranks (nothing for OK); returns `st`. */
lks_status lks__session_fail(const lks__session *s, lks_status st);

/* True if this process has reported its failure to all ranks. Then lockstep's launcher prints it,
 * too. */
bool lks__session_on_record(void);
