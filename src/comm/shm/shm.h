/* comm/shm/shm.h - internal to the shared-memory backend.
 *
 * Every collective is a numbered operation. A rank *arrives* at operation s: it fills in its
 * descriptor of the call and increments the slot's counter. Once all have arrived, each rank
 * compares the descriptors, so calls that don't match are found before any data move. If ranks must
 * also know that all have done their share, they increment a second counter: they *finish*. The
 * last rank to finish wakes the sleeping ranks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/backend.h"
#include "comm/shm/host.h"
#include "comm/shm/segment/segment_layout.h"
#include "comm/tree/plan.h"
#include "comm/tree/tree.h"

/* A part in a descriptor. */
struct lks__shm_part {
    uint64_t offset; /* in the segment */
    int32_t level, index;
};

/* Memory from lks_comm_alloc(). */
struct lks__shm_region {
    int kind;
    uint64_t offset; /* in the segment */
    uint64_t stride; /* bytes of one rank's slice; of all for LKS_MEM_COMMON */
    uint64_t bytes;  /* of all slices */
    char *mem;
    bool unused; /* lks__comm_free() was called */
};

/* The time of a wait. */
struct lks__shm_clock {
    double start;   /* 0: no wait */
    double looked;  /* time of the last check of the others */
    double stopped; /* seconds of the wait in which this process was stopped */
    double back;    /* when it was last continued */
};

enum { LKS__SHM_FREED = -1 }; /* kind of a region whose memory was returned */

/* A reduction in flight. */
struct lks__shm_work {
    lks_work head;
    struct lks__shm_work *next_free, *next_made;
    uint64_t seq;
    bool between; /* with several hosts: this group sums its parts, a leader does the rest */
    uint32_t between_goal;
    bool shared;    /* this rank's share is done */
    bool complete;  /* all shares are done */
    bool forgotten; /* no thread waits for it; its memory is reused once it is complete */
    lks_reduction r;
    size_t
        /* Copy of r.block_start, because the caller's may change before our share is done. */
        *borders;
    size_t borders_room;
};

struct lks__shm {
    lks_comm *comm;
    lks__segment *segment;
    struct lks__rank_line *line; /* this rank's line */
    int rank, world_size;
    uint64_t seq; /* number of the next operation */
    /* Number of operations in each slot that this rank has finished. */
    uint32_t finishes[LKS__SHM_SLOTS];
    uint32_t betweens[LKS__SHM_SLOTS]; /* … and of those that continue among hosts */
    double spin_s;                     /* how long a wait polls before it sleeps */
    bool timing;                       /* inside lks_work_wait() */
    struct lks__shm_clock among;       /* of lks__shm_among_devices() */
    /* The rank of another host that the status table names; -1: not known. Any thread sets it. */
    atomic_int late_elsewhere;
    uint64_t end;    /* end of the regions */
    uint8_t *merges; /* [world_size] the plan for a sum of one part per rank */

    struct lks__shm_region *regions;
    size_t n_regions;

    /* Reductions that some rank has not finished, oldest first, in a ring. */
    struct lks__shm_work *pending[LKS__SHM_IN_FLIGHT];
    unsigned first_pending, n_pending;
    struct lks__shm_work *free_works;
    struct lks__shm_work *all_works; /* list for closing */
    size_t most_borders;             /* largest number of borders in any reduction so far */
    struct lks__plan plan;           /* work memory of the shares */
};

/* --- shm.c ------------------------------------------------------------------------------- */

void lks__shm_beat_all(struct lks__shm *g); /* heartbeat, also of groups that this is a part of */

/* The segment's offset of `count` floats at `p` (or doubles: `size` bytes in all), if they are in a
 * region of `kind`, for LKS_MEM_OWN in the slice of `rank`; otherwise false. */
bool lks__shm_offset(const struct lks__shm *g, const void *p, uint64_t size, int kind, int rank,
                     uint64_t *offset_p);
/* The address of an offset. NULL if lks__shm_offset() could not have returned that offset. */
void *lks__shm_address(const struct lks__shm *g, uint64_t offset, uint64_t size, int kind,
                       int rank);
/* A number for the location of `offset`, computed from the region's position in the order of
 * allocations. It is the same on all hosts, although their segments have other offsets. */
uint64_t lks__shm_location_at(const struct lks__shm *g, uint64_t offset);
/* --- wait.c ------------------------------------------------------------------------------- */

/* Arrive at the next operation. `desc` has kind, size, args, n_parts; `payload` has n bytes. */
lks_status lks__shm_arrive(struct lks__shm *g, const struct lks__shm_descriptor *desc,
                           const void *payload, size_t n, uint64_t *seq_p);
bool lks__shm_all_arrived(const struct lks__shm *g, uint64_t seq);
/* Wait until all have arrived, and compare all descriptors. */
lks_status lks__shm_wait_arrived(struct lks__shm *g, uint64_t seq);
/* Check that all descriptors of operation `seq` are equal. Otherwise ERR_ARG, and the group has
 * failed. */
lks_status lks__shm_check_descriptors(struct lks__shm *g, uint64_t seq);
/* Mark our share as done. Call the two functions below only after it. */
void lks__shm_finish(struct lks__shm *g, uint64_t seq);
bool lks__shm_all_finished(const struct lks__shm *g, uint64_t seq);
lks_status lks__shm_wait_finished(struct lks__shm *g, uint64_t seq);

/* For operations that continue among hosts: the leader's thread calls lks__shm_between_done()
 * (host.h) when the rest is done, too. */
bool lks__shm_all_between(const struct lks__shm *g, uint64_t seq, uint32_t goal);
lks_status lks__shm_wait_between(struct lks__shm *g, uint64_t seq, uint32_t goal);

/* Record `text` as the group's failure, unless there is one already, and return the recorded
 * one. */
lks_status lks__shm_abort(struct lks__shm *g, lks_status status, int rank, const char *text);
/* --- table.c ------------------------------------------------------------------------------ */

bool lks__shm_is_stopped(pid_t pid); /* by SIGSTOP or a debugger: alive, but not running */

/* True if `rank` has not yet reached the point that a rank waiting with `what` for operation `seq`
 * needs. */
bool lks__shm_is_behind(const struct lks__shm *g, int rank, unsigned what, uint32_t seq);
/* The status table of all ranks as lines of text: each rank's state, and the ranks that it waits
 * for. */
void lks__shm_table(const struct lks__shm *g, char *text, size_t bytes);

/* --- collective.c ------------------------------------------------------------------------- */

lks_status lks__shm_barrier(lks_comm *comm);
lks_status lks__shm_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);
lks_status lks__shm_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                               lks_dtype dtype);
lks_status lks__shm_all_gather_v(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                                 lks_dtype dtype);
lks_status lks__shm_reduce_scatter(lks_comm *comm, const void *all, void *mine, size_t count,
                                   lks_dtype dtype, lks_op op);
lks_status lks__shm_replicate(lks_comm *comm, void *mem, size_t bytes);
lks_status lks__shm_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                  size_t n_blocks, int to_first);
/* Check that `mem` is LKS_MEM_COMMON memory (`lazy`: or LKS_MEM_LAZY) of `bytes` bytes. If not,
 * ERR_ARG names `call`. *offset_p: the offset in the segment. */
lks_status lks__shm_check_common(const struct lks__shm *g, const char *call, const void *mem,
                                 size_t bytes, bool lazy, uint64_t *offset_p);
lks_status lks__shm_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op);

/* --- reduce.c ----------------------------------------------------------------------------- */

void lks__shm_reduce_close(struct lks__shm *g);
lks_status lks__shm_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p);
lks_status lks__shm_progress(lks_comm *comm);
lks_status lks__shm_work_wait(lks_comm *comm, lks_work *work);
lks_status lks__shm_work_test(lks_comm *comm, lks_work *work, bool *done_p);
void lks__shm_work_forget(lks_comm *comm, lks_work *work);

/* Complete the reductions in flight. Every blocking collective calls it first, so that operations
 * finish in order, and ranks that wait at different points can't deadlock. */
lks_status lks__shm_drain(struct lks__shm *g);
