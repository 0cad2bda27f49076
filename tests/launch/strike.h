/* strike.h - the faults of the fault table, and how to make them. */
#pragma once

#include "support.h"

#include "comm/shm/segment/status.h"

enum { STRIKE_RANKS = 4, STRIKE_NODES = 2 };

enum strike_kind {
    STRIKE_SIGNAL, /* `arg` is sent to a rank */
    STRIKE_EXIT,   /* a rank exits with 7 */
    STRIKE_MEMORY, /* the kernel kills a rank that takes more memory than there is */
    STRIKE_DISK,   /* the disk that rank 0 writes to is full */
    STRIKE_CLOCK,  /* all clocks are set a day ahead, and then back */
    STRIKE_LAUNCHER,
    STRIKE_PORT,  /* another program listens on the job's port */
    STRIKE_NODE,  /* launcher number `arg` of two is killed */
    STRIKE_CABLE, /* ... can't reach the other for `arg` seconds; 0: for good */
};

typedef struct strike_fault {
    const char *name;
    enum strike_kind kind;
    int arg;
    int exit_code; /* of the launch; 0: nothing may happen; -1: any but 0 */
} strike_fault;

extern const strike_fault strike_faults[];
extern const int strike_n_faults;

/* One rank, read from its environment. */
struct strike_rank {
    pid_t pid;
    int local;        /* its number on its node */
    char segment[64]; /* LOCKSTEP_SEGMENT */
};

typedef struct strike_run {
    const strike_fault *fault;
    int W, n_nodes;
    lks_test_child nodes[STRIKE_NODES]; /* launchers */
    const char *mark;                   /* in the environment of all its processes */
    const char *out;
    struct strike_rank ranks[STRIKE_RANKS];
} strike_run;

/* Call them at the begin and the end of main(): they prepare the machine for faults. */
void strike_open(void);
void strike_close(void);
/* Why this fault is impossible here; NULL if it is possible. */
const char *strike_missing(const strike_fault *fault);

/* Call them for each run: before its start (its folder exists), after its end, and after the
 * comparison. */
void strike_before(const strike_run *r);
void strike_heal(const strike_run *r);
void strike_after(const strike_run *r);

/* The words before `argv` that run a launcher on a node. */
const char *const *strike_host(int node);

/* Make the fault now; false if the victim has ended already. */
bool strike(const strike_run *r, int victim);

/* Find the run's ranks, into r->ranks; returns their number. */
int strike_find_ranks(strike_run *r);
/* The shared memory of a rank's node, or NULL if the rank has ended. */
lks__segment *strike_look_inside(const struct strike_rank *rank, int n_local);
bool strike_is_gone(pid_t pid);
