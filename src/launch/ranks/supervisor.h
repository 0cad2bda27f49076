/* launch/ranks/supervisor.h - watches an attempt's ranks: which have ended, which must end, and
 * why. */
#pragma once

#include <poll.h>

#include "launch/attempt.h"
#include "launch/nodes/nodes.h"

/* Initialized for each attempt by lks__supervisor_begin(). The attempt and the nodes are
 * borrowed. */
struct lks__supervisor {
    struct lks__attempt *attempt;
    struct lks__nodes *nodes; /* NULL if the job has one node */
    struct pollfd *polls;     /* [lks__output_polls(nproc) + 3] */

    bool failed;          /* a rank has failed; the others are being ended */
    bool ended_by_others; /* ... because another node's ranks have ended */
    bool killed;          /* SIGKILL has been sent */
    int passed_on;        /* the SIGUSR1 or SIGUSR2 that was passed on last, or 0 */
    bool stood_still;     /* all ranks stopped making progress, and were ended for it (still.c) */
    double look_from, looked_at; /* of still.c */
    int looked_running;          /* ranks, at looked_at */
    int user_signal;             /* the first signal that asks to stop, or 0 */
    double user_signal_at;       /* ... and the time of the latest one */
    bool signalled;              /* this launcher itself received a signal to stop */
    bool held_back;              /* a second signal has not ended the ranks, because they save */
    double kill_at;              /* when to send SIGKILL; 0: never */
    double stuck_at;             /* when to name a killed rank that hasn't ended; 0: never */
    bool all_wait; /* all ranks that were killed by the shutdown timeout were waiting for others */
    bool gave_up;  /* a rank failed after a signal to stop */
    bool first_by_rank;    /* the group had a failure before we recorded one */
    int first_rank;        /* ... and the rank that it names, -1 for none */
    char first_text[1100]; /* ... and its text */
    char late_text[512];   /* describes a rank that hasn't ended in time after a signal to stop */
};

/* --- supervise.c -------------------------------------------------------------------------- */

/* Call it before the ranks start; free sup->polls in any case. ERR_NOMEM. */
lks_status lks__supervisor_begin(struct lks__supervisor *sup, struct lks__attempt *a,
                                 struct lks__nodes *nodes);

/* Watch the ranks until all have ended, then end the processes that they have left. */
void lks__supervise(struct lks__supervisor *sup);

/* End all processes that have been started, at once. */
void lks__end_all(struct lks__supervisor *sup);

/* --- verdict.c ---------------------------------------------------------------------------- */

/* The first rank that failed, of those that were seen to end in collection `order` or later; -1:
 * none. If several were seen at once, a signal is the cause, and an exit code a consequence. */
int lks__first_failed(const struct lks__attempt *a, int order);
/* After all have ended: fill in the verdict. */
void lks__verdict(const struct lks__supervisor *sup, struct lks__verdict *v);
/* The facts that other nodes learn in addition to the verdict; r->table is "". */
void lks__verdict_report(const struct lks__supervisor *sup, const struct lks__verdict *v,
                         struct lks__nodes_report *r);

/* --- files.c ------------------------------------------------------------------------------ */

/* Write error.json for each rank that failed and hasn't written one itself. */
void lks__files_errors(const struct lks__attempt *a, const struct lks__verdict *v);

/* --- still.c ------------------------------------------------------------------------------ */

/* Time of the next check whether all ranks have stopped making progress; 0: never. */
double lks__still_next(const struct lks__supervisor *sup);
/* True, once, if all have stopped making progress: their state has been recorded, and they must be
 * ended. */
bool lks__still_look(struct lks__supervisor *sup);
