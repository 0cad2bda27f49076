/* comm/shm/host.h - the ranks of one host as a part of a world: all that a group over several hosts
 * (comm/hier) uses of a shared-memory group beside the operations that every backend has.
 *
 * `local` is the host's group, of lks__comm_shm. A call that fails has ended the group on all its
 * ranks unless it says otherwise; the status is the group's, with its sentence. Calls marked "any
 * thread" may come from another thread of the rank at the same time: the leader's thread. */
#ifndef LKS_COMM_SHM_HOST_H
#define LKS_COMM_SHM_HOST_H

#include <stdalign.h>

#include "comm/backend.h"
#include "comm/shm/segment.h"

enum {
    LKS__SHM_IN_FLIGHT = 64, /* the most reductions that a group has in flight */
    LKS__SHM_PAYLOAD = 960,  /* bytes that travel inside a mailbox */
};

/* --- what is published about a call --------------------------------------------------------- */

enum lks__shm_kind {
    LKS__OP_JOIN = 1,
    LKS__OP_ALLOC,
    LKS__OP_BARRIER,
    LKS__OP_BROADCAST,
    LKS__OP_ALL_GATHER,
    LKS__OP_ALL_REDUCE,
    LKS__OP_REDUCE,
    LKS__OP_REPLICATE,
    LKS__OP_GATHER_SHARES,
    LKS__OP_END
};

/* What one rank says about one operation. All but the payload must be equal on all ranks. */
struct lks__shm_mail {
    alignas(64) uint32_t seq;
    uint32_t kind;    /* enum lks__shm_kind */
    uint64_t size;    /* bytes, or elements for the reductions */
    uint64_t args[4]; /* root, memory kind, offsets, hash of borders ... by kind */
    uint32_t n_parts; /* LKS__OP_REDUCE: entries of the payload; may differ */
    uint32_t reserved;
    alignas(64) unsigned char payload[LKS__SHM_PAYLOAD];
};

/* What a call was, for messages: "broadcast of 8 bytes from rank 0". */
void lks__shm_describe(const struct lks__shm_mail *mail, char *text, size_t bytes);
/* Do two calls fit? */
bool lks__shm_same_call(const struct lks__shm_mail *a, const struct lks__shm_mail *b);

/* --- the group ------------------------------------------------------------------------------ */

/* Open `local` for the ranks that share `segment`; takes the segment over, on failure too.
 * Collective. */
lks_status lks__shm_open_on(lks_comm *local, lks__segment *segment);
/* Its segment, the group's own; NULL if `local` is NULL or was not opened. Any thread. */
lks__segment *lks__shm_segment(const lks_comm *local);

/* Come to the call that `mail` describes, with all reductions in flight complete. */
lks_status lks__shm_call(lks_comm *local, const struct lks__shm_mail *mail);
/* Release the newest memory of lks_comm_alloc(); all ranks of the host do. */
void lks__shm_undo_alloc(lks_comm *local);
/* A number for where `mem` lies, the same on all hosts; 0 for 0 bytes. ERR_ARG names `call` if it
 * isn't LKS_MEM_COMMON memory (`lazy`: nor LKS_MEM_LAZY); the group lives on then. */
lks_status lks__shm_place(const lks_comm *local, const char *call, const void *mem, size_t bytes,
                          bool lazy, uint64_t *place_p);

/* --- failures and waits --------------------------------------------------------------------- */

/* Make `text` the group's failure unless it has one, and return what it has. `rank` of this host,
 * or -1, is the culprit. With ERR_TIMEOUT a table of the host's ranks is kept; it names
 * `late_elsewhere`, a rank of the world, as the one that this host waits for (-1: not known). Any
 * thread. */
lks_status lks__shm_fail(lks_comm *local, lks_status st, int rank, int late_elsewhere,
                         const char *text);
/* The failure of a group that has failed. Any thread. */
lks_status lks__shm_failure(const lks_comm *local);
/* From now on this rank waits for other hosts in the call that it came to last; or no longer. */
void lks__shm_wait_for_hosts(lks_comm *local, bool waits);

/* --- reductions of which other hosts have parts, too ------------------------------------------
 * The host's parts are added as far as the tree allows, each sum standing in the buffer of its
 * first part. The leader's thread then asks for these sums, writes dst and block_sumsq, and
 * calls lks__shm_between_done(). */

struct lks__shm_between {
    uint64_t seq;
    uint32_t finish_goal;
    lks_reduction r; /* its borders live as long as the group */
};

/* Start one; `job` and `mail` are filled for the leader. args[2] and [3] of `mail` are places (see
 * lks__shm_place()) of dst and block_sumsq. ERR_ARG and ERR_NOMEM leave the group alive. */
lks_status lks__shm_between_start(lks_comm *local, const lks_reduction *r, lks_work **work_p,
                                  struct lks__shm_between *job, struct lks__shm_mail *mail);
/* Has a rank yet to add its share of a reduction in flight? False if `local` isn't open. */
bool lks__shm_owes_shares(const lks_comm *local);
/* Have all added their shares? Any thread. */
bool lks__shm_shares_done(const lks_comm *local, const struct lks__shm_between *job);

struct lks__shm_plan; /* scratch of the next call: one for each thread that makes it */
lks_status lks__shm_plan_new(const lks_comm *local, struct lks__shm_plan **plan_p);
void lks__shm_plan_free(struct lks__shm_plan *plan); /* NULL is fine */

/* The sums: nodes, leaves in order, and where they stand. Returns their number; -1 if it exceeds
 * LKS__TREE_MAX_COVER, the size of both arrays. Any thread. */
int lks__shm_between_sums(lks_comm *local, struct lks__shm_plan *plan,
                          const struct lks__shm_between *job, lks_node *nodes, float **bufs);
/* The reduction is complete on this host. Any thread. */
void lks__shm_between_done(lks_comm *local, uint64_t seq);

#endif
