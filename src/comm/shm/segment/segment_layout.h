/* comm/shm/segment/segment_layout.h - contents of the segment; only for comm/shm:
 *
 *     header | a line for each rank | counters of operations | descriptors | bounce buffers
 *     | regions
 *
 * The file is sealed against shrinking, and fallocate reserves its parts before they are mapped, so
 * an access never raises SIGBUS. What peers write is checked before use: no number in here becomes
 * an index or a size unchecked. */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>

#include "comm/liveness.h"
#include "comm/shm/segment/descriptors.h"

enum {
    /* Operations whose descriptors are kept; a power of two. Descriptor s may be overwritten for
     * operation s + SLOTS: a rank arrives there only after it has completed s + SLOTS/2. So all
     * ranks have arrived at s + SLOTS/2, and to do so they have completed s. */
    LKS__SHM_SLOTS = 2 * LKS__SHM_IN_FLIGHT,
    LKS__SHM_BOUNCE = 256 << 10, /* bytes of one bounce buffer; each rank has two */
    LKS__SHM_PAGE = 4096,
    LKS__SHM_UNIT = 64 << 10, /* regions start and end at its multiples, so at page borders */
};

/* States of a waiting rank: it waits until all have arrived at an operation, or until all have done
 * their share, or, outside operations, for other ranks' devices. */
enum {
    LKS__WAIT_NONE = 0,
    LKS__WAIT_ARRIVE = 1,
    LKS__WAIT_FINISH = 2,
    LKS__WAIT_BETWEEN = 3,
    LKS__WAIT_DEVICES = 4
};

/* The line of one rank, which only this rank writes. The launcher reads it, and so do other ranks
 * that wait too long. Each field is atomic, but not the line as a whole: it is for messages. */
struct lks__rank_line {
    alignas(128) atomic_uint state;
    atomic_int pid;
    atomic_uint posted;   /* number of operations that this rank has arrived at */
    atomic_uint finished; /* number of operations of which its share is done */
    atomic_uint between;  /* number of operations that it has completed with other hosts */
    atomic_uint waiting;  /* inside a wait, LKS__WAIT_...: this rank isn't the cause */
    atomic_uint wait_seq; /* the operation that it waits for */
    atomic_uint saving;   /* it writes a checkpoint, or waits for the last one */
    atomic_ullong step;
    atomic_ullong beat_us; /* time of its last heartbeat; lks__sys_now() in microseconds */
    atomic_ullong phase[LKS__SHM_PHASE / 8];
    atomic_ullong device[LKS__SHM_DEVICE / 8]; /* the device that it computes on; "": the CPU */
};

/* Operation s uses slot s % LKS__SHM_SLOTS. Counters only grow (modulo 2^32); each use of the slot
 * adds world_size. They are futex words. */
struct lks__shm_slot {
    alignas(64) atomic_uint arrived;
    atomic_uint arrive_sleepers;
    alignas(64) atomic_uint finished;
    atomic_uint finish_sleepers;
    alignas(64) atomic_uint between; /* incremented once for each use, by the host's leader */
    atomic_uint between_sleepers;
};

struct lks__segment_header {
    uint32_t magic, version;
    uint32_t world_size, reserved;
    uint64_t token;
    uint64_t base_bytes; /* everything except the regions */
    atomic_ullong
        timeout_us; /* the deadline of the ranks' waits, for the launcher; 0: no rank has joined */

    /* The signal that asks all ranks to stop, 0: none; and whether a rank of another host saves. */
    atomic_int stop_signal;
    atomic_uint saving_elsewhere;
    atomic_uint ended;   /* number in the world, plus 1, of a rank whose process has ended before it
                            left; 0: none */
    atomic_bool lasting; /* the cause of the group's failure lasts */

    /* The group's failure: 0 none, 1 being written, 2 complete. The first failure is kept. */
    alignas(64) atomic_uint abort_state;
    int abort_rank;   /* the rank that failed; -1 if not known */
    int abort_status; /* the status that the other ranks return */
    char abort_text[1024];
    char abort_report[LKS__SHM_REPORT]; /* a line for each rank, or "" */
};
