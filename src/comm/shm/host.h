/* comm/shm/host.h - the ranks of one host as a part of a world: the functions of a shared-memory
 * group that a group over several hosts (comm/hier) needs besides the operations of every backend.
 *
 * `local` is the host's group, of lks__comm_shm. After a call that fails, the group has failed on
 * all its ranks, unless the comment says otherwise; the status and the sentence are the group's.
 * Calls marked "any thread" may run at the same time as another thread of the rank: the leader's
 * thread. */
#pragma once

#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/shm/segment/descriptors.h"
#include "comm/shm/segment/status.h"
#include "comm/tree/plan.h"

/* --- the group ------------------------------------------------------------------------------ */

/* Open `local` for the ranks that share `segment`; takes the segment over, also on failure.
 * Collective. */
lks_status lks__shm_open_on(lks_comm *local, lks__segment *segment);
/* Instead, this rank has no memory to open it: tell the others. `segment` may be NULL. */
lks_status lks__shm_no_state(lks__segment *segment, int local_rank, int first_rank);
/* The group's segment; NULL if `local` is NULL or was not opened. Any thread. */
lks__segment *lks__shm_segment(const lks_comm *local);

/* Arrive at the call that `desc` describes, with all reductions in flight complete. */
lks_status lks__shm_call(lks_comm *local, const struct lks__shm_descriptor *desc);
/* Release the newest memory of lks_comm_alloc(); all ranks of the host call it. */
void lks__shm_undo_alloc(lks_comm *local);
/* A number for the location of `mem`, the same on all hosts; 0 for 0 bytes. If it isn't
 * LKS_MEM_COMMON memory (`lazy`: nor LKS_MEM_LAZY): ERR_ARG naming `call`, and the group stays
 * usable. */
lks_status lks__shm_location(const lks_comm *local, const char *call, const void *mem, size_t bytes,
                             bool lazy, uint64_t *location_p);

/* --- failures and waits --------------------------------------------------------------------- */

/* Record `text` as the group's failure unless there is one already, and return the recorded one.
 * The cause is `rank` of this host, or -1. ERR_TIMEOUT also keeps a status table of the host's
 * ranks, in which this host waits for `late_elsewhere`, a rank of the world (-1: not known). Any
 * thread. */
lks_status lks__shm_fail(lks_comm *local, lks_status st, int rank, int late_elsewhere,
                         const char *text);
/* The failure of a group that has failed, with its sentence as this thread's error. Any thread. */
lks_status lks__shm_failure(const lks_comm *local);
/* A rank of this host whose process has ended before the rank has left; -1: none. Any thread. */
int lks__shm_ended(const lks_comm *local);
/* The rank of this host with that process; -1: none. Any thread. */
int lks__shm_rank_of(const lks_comm *local, pid_t pid);
/* A part of this group has lost the rank with that process: lks__shm_fail(), unless the rank has
 * left, or with ERR_TIMEOUT makes progress or waits in this group. Any thread. */
void lks__shm_lost(lks_comm *local, lks_status st, pid_t pid, const char *text);
/* True if the group has failed: its status and sentence. Any thread. */
bool lks__shm_failed(const lks_comm *local, lks_status *st_p, char *text, size_t bytes);
/* Record that this rank waits for other hosts in its current call, or no longer does. */
void lks__shm_wait_for_hosts(lks_comm *local, bool waits);

/* --- facts about this rank (comm/liveness.h) ------------------------------------------------ */

/* Record a failure of this rank, which makes waiters return. Any thread. */
void lks__shm_rank_failed(lks_comm *local, const char *why);
/* Record the step and the phase, with a heartbeat of this group and all that it is a part of. */
void lks__shm_note(lks_comm *local, uint64_t step, const char *phase);
void lks__shm_beat(lks_comm *local); /* a heartbeat of this group only */
void lks__shm_saving(lks_comm *local, bool saves);
void lks__shm_uses(lks_comm *local, const char *device);
lks_status lks__shm_among_devices(lks_comm *local, bool waits);

/* --- reductions that also have parts on other hosts --------------------------------------------
 *
 * The host's parts are added as far as the tree allows; each sum is in the buffer of its first
 * part. The leader's thread then reads these sums, writes dst and block_sumsq, and calls
 * lks__shm_between_done(). */

struct lks__shm_between {
    uint64_t seq;
    uint32_t finish_goal;
    lks_reduction r; /* its borders are valid until the group is closed */
};

/* Start a reduction, and fill `task` and `desc` for the leader. args[2] and [3] of `desc` are the
 * locations (see lks__shm_location()) of dst and block_sumsq. After ERR_ARG and ERR_NOMEM the group
 * stays usable. */
lks_status lks__shm_between_start(lks_comm *local, const lks_reduction *r, lks_work **work_p,
                                  struct lks__shm_between *task, struct lks__shm_descriptor *desc);
/* True if a rank must still add its share of a reduction in flight. False if `local` isn't open. */
bool lks__shm_owes_shares(const lks_comm *local);
/* True if all ranks have added their shares. Any thread. */
bool lks__shm_shares_done(const lks_comm *local, const struct lks__shm_between *task);

/* The sums of this host: nodes in the order of leaves, and their addresses. `plan` is work memory
 * for this host's ranks, one per thread that calls it. Returns their number, or -1 if it exceeds
 * LKS__TREE_MAX_COVER, the size of both arrays. Any thread. */
int lks__shm_between_sums(lks_comm *local, struct lks__plan *plan,
                          const struct lks__shm_between *task, lks_node *nodes, float **bufs);
/* Mark the reduction as complete on this host. Any thread. */
void lks__shm_between_done(lks_comm *local, uint64_t seq);
