/* comm/shm/segment/status.h - the state of a job's ranks on one host, in their segment: the group's
 * failure, requests to stop, and each rank's progress. The launcher reads it, too. */
#pragma once

#include "comm/liveness.h"
#include "comm/shm/segment/segment.h"

enum { LKS__RANK_ABSENT = 0, LKS__RANK_JOINED = 1, LKS__RANK_LEFT = 2 };

/* Record a failure unless there is one already; true if this call was the first. It wakes no rank:
 * waits check for a failure several times a second. */
bool lks__segment_abort(lks__segment *segment, lks_status status, int rank, const char *text);
/* Like lks__segment_abort(), with more lines about the failure, at most LKS__SHM_REPORT bytes. */
bool lks__segment_abort_report(lks__segment *segment, lks_status status, int rank, const char *text,
                               const char *report);

bool lks__segment_aborted(const lks__segment *segment);
/* True if the recorded failure is ERR_STOPPED: a signal may have ended a rank before it joined. */
bool lks__segment_given_up(const lks__segment *segment);

/* For the launcher: record that the cause of the group's failure lasts (lks__sys_is_lasting()), so
 * a restart would fail, too. */
void lks__segment_set_lasting(lks__segment *segment);
bool lks__segment_lasting(const lks__segment *segment);

/* The process that will join as this rank, so that the others notice if it ends before. */
void lks__segment_expect(lks__segment *segment, int rank, pid_t pid);
/* For the launcher: the process of a rank has ended. A rank that hasn't joined counts as having
 * left, so that the others don't wait for it: then the result is true. */
bool lks__segment_rank_ended(lks__segment *segment, int rank, pid_t pid);

/* Request a stop. The first signal is kept. One that comes after the group's failure is no request:
 * the launcher sends it to end the ranks, and may start them again. May be called in a signal
 * handler. */
void lks__segment_ask_stop(lks__segment *segment, int signo);
int lks__segment_asked_stop(const lks__segment *segment); /* 0: none */

/* The deadline of the ranks' waits in seconds; 0 if no rank has joined. */
double lks__segment_timeout_s(const lks__segment *segment);

/* Record that the process of a rank of the world has ended before the rank has left. The first one
 * is kept, and is no failure until another rank needs it. */
void lks__segment_has_ended(lks__segment *segment, int rank);
int lks__segment_ended(const lks__segment *segment); /* -1: none */

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
