/* comm/shm/segment.h - the shared memory of one job on one host.
 *
 * One memfd, made by the launcher before it starts the ranks and inherited by them as a file
 * descriptor, named to them as LOCKSTEP_SEGMENT=FD:TOKEN. It has no name in any file system and
 * dies with the processes that hold it. Layout:
 *
 *     header | a line for each rank | counters of operations | mailboxes | bounce buffers | regions
 *
 * The file is sealed against shrinking and its parts are reserved by fallocate before anybody
 * maps them, so a touch never raises SIGBUS. What peers write is checked before it is believed:
 * no number in here is used as an index or a size unchecked. */
#ifndef LKS_COMM_SHM_SEGMENT_H
#define LKS_COMM_SHM_SEGMENT_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "lockstep/comm.h"

#define LKS__SEGMENT_ENV "LOCKSTEP_SEGMENT"

enum {
    LKS__SEGMENT_MAX_RANKS = 1024,
    LKS__SHM_SLOTS = 128,        /* operations whose mailboxes are kept; a power of two */
    LKS__SHM_PAYLOAD = 960,      /* bytes that travel inside a mailbox */
    LKS__SHM_BOUNCE = 256 << 10, /* bytes of one bounce buffer; each rank has two */
    LKS__SHM_PHASE = 32,         /* bytes of a phase's text */
    LKS__SHM_REPORT = 16 << 10,  /* bytes of the table of all ranks */
    LKS__SHM_PAGE = 4096,
    LKS__SHM_UNIT = 64 << 10, /* regions start and end on multiples of it, and so on pages */
};

/* Where a rank is in its life. */
enum { LKS__RANK_ABSENT = 0, LKS__RANK_JOINED = 1, LKS__RANK_LEFT = 2 };

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

/* This process's hold on the segment. Ranks that are threads of one process share one. */
typedef struct lks__segment lks__segment;

/* Make a segment for `world_size` ranks; the descriptor is close-on-exec. ERR_NOMEM says what was
 * asked for and what to do. */
lks_status lks__segment_create(int world_size, lks__segment **segment_p);

/* The value of LOCKSTEP_SEGMENT for the ranks; `text` has LKS__SEGMENT_ENV_BYTES. */
enum { LKS__SEGMENT_ENV_BYTES = 64 };
void lks__segment_env(const lks__segment *segment, char *text);

/* Take over the descriptor that the environment names (close-on-exec from now on, and gone from the
 * environment) after checking that it is this job's segment for `world_size` ranks. ERR_SUPPORT
 * where the variable is not set, ERR_FORMAT where it names something else. */
lks_status lks__segment_inherit(int world_size, lks__segment **segment_p);

/* The segment of this host's ranks where their launcher isn't ours (share.c): all call it, local
 * rank 0 makes it. ERR_TIMEOUT names who hasn't come. */
lks_status lks__segment_share(const lks_world *world, double timeout_s, lks__segment **segment_p);

lks__segment *lks__segment_ref(lks__segment *segment); /* one more owner */
void lks__segment_close(lks__segment *segment);        /* NULL is fine */

int lks__segment_fd(const lks__segment *segment);
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

/* --- the group's failure ---------------------------------------------------------------------- */

/* Record it unless one is there already; true where this call was the first. Wakes nobody: waits
 * look at it several times a second. */
bool lks__segment_abort(lks__segment *segment, lks_status status, int rank, const char *text);
/* The same, with more lines about it: at most LKS__SHM_REPORT bytes. */
bool lks__segment_abort_report(lks__segment *segment, lks_status status, int rank, const char *text,
                               const char *report);

bool lks__segment_aborted(const lks__segment *segment);

/* A request to stop: the first signal stays. In a signal handler, too. */
void lks__segment_ask_stop(lks__segment *segment, int signo);
int lks__segment_asked_stop(const lks__segment *segment); /* 0: none */

/* Does a rank of `world_size` here, or `elsewhere`, write a checkpoint? */
bool lks__segment_saving(const lks__segment *segment, bool elsewhere);

/* The failure's status, rank and text (fit for a terminal; may be NULL). Only where aborted. */
void lks__segment_failure(const lks__segment *segment, lks_status *status_p, int *rank_p,
                          char *text, size_t text_bytes);

/* All ranks as lines of text: what each is doing, and who waits for whom. `first_rank` is added to
 * the numbers of ranks. */
void lks__segment_table(const lks__segment *segment, int world_size, int first_rank, char *text,
                        size_t bytes);

/* Its lines (fit for a terminal); text[LKS__SHM_REPORT], "" where there are none. */
void lks__segment_report(const lks__segment *segment, char *text);

/* --- for messages ----------------------------------------------------------------------------- */

typedef struct lks__rank_status {
    int state; /* LKS__RANK_... */
    pid_t pid;
    bool waiting;
    unsigned posted; /* operations that it has arrived at */
    uint64_t step;
    double beat_age_s;
    char phase[LKS__SHM_PHASE + 1]; /* fit for a terminal; "" where it never said */
} lks__rank_status;

void lks__segment_status(const lks__segment *segment, int rank, lks__rank_status *status);

#endif
