/* comm/shm/segment_layout.h - what lies in the segment; for comm/shm alone:
 *
 *     header | a line for each rank | counters of operations | mailboxes | bounce buffers | regions
 *
 * The file is sealed against shrinking and its parts are reserved by fallocate before anybody
 * maps them, so a touch never raises SIGBUS. What peers write is checked before it is used: no
 * number in here is an index or a size unchecked. */
#ifndef LKS_COMM_SHM_SEGMENT_LAYOUT_H
#define LKS_COMM_SHM_SEGMENT_LAYOUT_H

#include <stdalign.h>
#include <stdatomic.h>

#include "comm/shm/host.h"
#include "comm/shm/segment.h"

enum {
    /* Operations whose mailboxes are kept; a power of two. Mailbox s may be written again for
     * operation s + SLOTS: nobody arrives there before completing s + SLOTS/2, hence all have
     * arrived at that one, and for that completed s. */
    LKS__SHM_SLOTS = 2 * LKS__SHM_IN_FLIGHT,
    LKS__SHM_BOUNCE = 256 << 10, /* bytes of one bounce buffer; each rank has two */
    LKS__SHM_PAGE = 4096,
    LKS__SHM_UNIT = 64 << 10, /* regions start and end on multiples of it, and so on pages */
};

/* What it waits for: until all have arrived at an operation, or until all have done their share. */
enum { LKS__WAIT_NONE = 0, LKS__WAIT_ARRIVE = 1, LKS__WAIT_FINISH = 2, LKS__WAIT_BETWEEN = 3 };

/* One rank's line: written by its owner, read by others when they wait too long, and by the
 * launcher. Each field is atomic, the line as a whole is not: it is for messages. */
struct lks__rank_line {
    alignas(128) atomic_uint state;
    atomic_int pid;
    atomic_uint posted;   /* operations that this rank has arrived at */
    atomic_uint finished; /* operations of which its share is done */
    atomic_uint between;  /* operations that it has completed with other hosts */
    atomic_uint waiting;  /* inside a wait, LKS__WAIT_...: not the one to blame */
    atomic_uint wait_seq; /* ... for this operation */
    atomic_uint saving;   /* it writes a checkpoint, or waits for the last one */
    atomic_ullong step;
    atomic_ullong beat_us; /* when it last gave a sign of life; lks__sys_now() in microseconds */
    atomic_ullong phase[LKS__SHM_PHASE / 8];
};

/* Operation s uses slot s % LKS__SHM_SLOTS. Counters only grow (modulo 2^32); each use of the slot
 * adds world_size. They are futex words. */
struct lks__shm_slot {
    alignas(64) atomic_uint arrived;
    atomic_uint arrive_sleepers;
    alignas(64) atomic_uint finished;
    atomic_uint finish_sleepers;
    alignas(64) atomic_uint between; /* counted once by use: by the rank that speaks for the host */
    atomic_uint between_sleepers;
};

struct lks__segment_header {
    uint32_t magic, version;
    uint32_t world_size, reserved;
    uint64_t token;
    uint64_t base_bytes; /* everything but the regions */
    atomic_ullong
        timeout_us; /* the deadline of the ranks' waits, for the launcher; 0: none joined */

    /* The signal that asks all ranks to stop, 0: none; and whether a rank of another host saves. */
    atomic_int stop_signal;
    atomic_uint saving_elsewhere;

    /* The group's failure: 0 none, 1 being written, 2 there. The first one wins. */
    alignas(64) atomic_uint abort_state;
    int abort_rank;   /* the one to blame, -1 where nobody is known */
    int abort_status; /* what the other ranks return */
    char abort_text[1024];
    char abort_report[LKS__SHM_REPORT]; /* a line for each rank, or "" */
};

struct lks__segment_header *lks__segment_header(const lks__segment *segment);
struct lks__rank_line *lks__segment_line(const lks__segment *segment, int rank);
struct lks__shm_slot *lks__segment_slot(const lks__segment *segment, uint32_t seq);
struct lks__shm_mail *lks__segment_mail(const lks__segment *segment, int rank, uint32_t seq);
void *lks__segment_bounce(const lks__segment *segment, int rank, int half);

/* Would `bytes` more fit into what the machine and its control groups leave? A memfd takes pages
 * until the kernel kills somebody. ERR_NOMEM says how much there is. */
lks_status lks__segment_fits(uint64_t bytes);
/* --- regions: memory behind the base, at offsets that all ranks compute alike --------------------
 * Reserve makes [offset, offset + bytes) touchable for good; map shows it to this process (ranks
 * that are threads get one address). Both page-aligned. ERR_NOMEM with sizes and advice. */
lks_status lks__segment_reserve(lks__segment *segment, uint64_t offset, uint64_t bytes);
/* Make the file reach to `end` without taking memory: for regions whose pages come when touched. */
lks_status lks__segment_extend(lks__segment *segment, uint64_t end);
void lks__segment_release(lks__segment *segment, uint64_t offset, uint64_t bytes);
lks_status lks__segment_map(lks__segment *segment, uint64_t offset, uint64_t bytes, void **mem_p);

#endif
