/* comm/shm/segment/segment.h - the shared memory of one job on one host.
 *
 * It is one memfd, which the launcher makes before it starts the ranks. They inherit its file
 * descriptor, which LOCKSTEP_SEGMENT=FD:TOKEN names. It has no name in any file system and ends
 * with the processes that hold it. This header is for code that starts or watches ranks; only
 * comm/shm knows the segment's contents (segment_layout.h). */
#ifndef LKS_COMM_SHM_SEGMENT_SEGMENT_H
#define LKS_COMM_SHM_SEGMENT_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "lockstep/comm.h"

#define LKS__SEGMENT_ENV "LOCKSTEP_SEGMENT"

enum {
    LKS__SEGMENT_MAX_RANKS = 1024,
    LKS__SHM_PHASE = 32,        /* size of a phase's text */
    LKS__SHM_DEVICE = 80,       /* size of a device's text */
    LKS__SHM_REPORT = 16 << 10, /* size of the status table of all ranks */
};

/* State of a rank. */
enum { LKS__RANK_ABSENT = 0, LKS__RANK_JOINED = 1, LKS__RANK_LEFT = 2 };

/* This process's handle of the segment. Ranks that are threads of one process share it. */
typedef struct lks__segment lks__segment;

/* Bytes of a segment for `world_size` ranks before they allocate memory. */
uint64_t lks__segment_base_bytes(int world_size);

/* Make a segment for `world_size` ranks; the descriptor is close-on-exec. ERR_NOMEM gives the size
 * and what to do. */
lks_status lks__segment_create(int world_size, lks__segment **segment_p);

/* The value of LOCKSTEP_SEGMENT for the ranks; `text` has LKS__SEGMENT_ENV_BYTES. */
enum { LKS__SEGMENT_ENV_BYTES = 64 };
void lks__segment_env(const lks__segment *segment, char *text);

/* Take over the descriptor that the environment names, after checking that it is this job's segment
 * for `world_size` ranks. It becomes close-on-exec and leaves the environment. ERR_SUPPORT if the
 * variable is not set, ERR_FORMAT if it names something else. */
lks_status lks__segment_inherit(int world_size, lks__segment **segment_p);

/* The segment of this host's ranks if another program launched them (share.c). All ranks call it;
 * local rank 0 makes the segment. ERR_TIMEOUT names the missing rank. */
lks_status lks__segment_share(const lks_world *world, double timeout_s, lks__segment **segment_p);

lks__segment *lks__segment_ref(lks__segment *segment); /* returns `segment` with another owner */
void lks__segment_close(lks__segment *segment);        /* NULL does nothing */

int lks__segment_fd(const lks__segment *segment);
/* --- the group's failure ---------------------------------------------------------------------- */

/* Record a failure unless there is one already; true if this call was the first. It wakes no rank:
 * waits check for a failure several times a second. */
bool lks__segment_abort(lks__segment *segment, lks_status status, int rank, const char *text);
/* Like lks__segment_abort(), with more lines about the failure, at most LKS__SHM_REPORT bytes. */
bool lks__segment_abort_report(lks__segment *segment, lks_status status, int rank, const char *text,
                               const char *report);

bool lks__segment_aborted(const lks__segment *segment);

/* For the launcher: record that the cause of the group's failure is a full disk, so a restart would
 * fail, too. */
void lks__segment_set_no_room(lks__segment *segment);
bool lks__segment_no_room(const lks__segment *segment);

/* For the launcher: the process of a rank has ended. A rank that hasn't joined counts as having
 * left, so that the others don't wait for it. */
void lks__segment_rank_ended(lks__segment *segment, int rank, pid_t pid);

/* Request a stop. The first signal is kept. May be called in a signal handler. */
void lks__segment_ask_stop(lks__segment *segment, int signo);
int lks__segment_asked_stop(const lks__segment *segment); /* 0: none */

/* The deadline of the ranks' waits in seconds; 0 if no rank has joined. */
double lks__segment_timeout_s(const lks__segment *segment);

/* Record whether a rank of another host writes a checkpoint. */
void lks__segment_saves_elsewhere(lks__segment *segment, bool saves);
/* True if a rank of this host, or with `elsewhere` of another host, writes a checkpoint. */
bool lks__segment_saving(const lks__segment *segment, bool elsewhere);

/* The failure's status, rank and text (safe on a terminal; may be NULL). Call it only if there is a
 * failure. */
void lks__segment_failure(const lks__segment *segment, lks_status *status_p, int *rank_p,
                          char *text, size_t text_bytes);

/* The status table of all ranks as lines of text: each rank's state, and the ranks that it waits
 * for. `first_rank` is added to the numbers of ranks. */
void lks__segment_table(const lks__segment *segment, int world_size, int first_rank, char *text,
                        size_t bytes);

/* The lines of a failure's report (safe on a terminal) in text[LKS__SHM_REPORT]; "" if there are
 * none. */
void lks__segment_report(const lks__segment *segment, char *text);

/* --- for messages ----------------------------------------------------------------------------- */

typedef struct lks__rank_status {
    int state; /* LKS__RANK_... */
    pid_t pid;
    bool waiting, among_devices; /* among_devices: it waits for other ranks' devices */
    unsigned posted;             /* number of operations that it has arrived at */
    uint64_t step;
    double beat_age_s;
    /* Safe on a terminal; "" if it has published none. */
    char phase[LKS__SHM_PHASE + 1], device[LKS__SHM_DEVICE + 1];
} lks__rank_status;

void lks__segment_status(const lks__segment *segment, int rank, lks__rank_status *status);

#endif
