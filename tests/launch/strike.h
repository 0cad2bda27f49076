/* strike.h - what can happen to a run of the fault table, and how it is brought about. */
#ifndef LKS_TESTS_STRIKE_H
#define LKS_TESTS_STRIKE_H

#include "support.h"

#include "comm/shm/segment.h"

enum { STRIKE_RANKS = 4, STRIKE_NODES = 2 };

enum strike_kind {
    STRIKE_SIGNAL, /* `arg` is sent to a rank */
    STRIKE_EXIT,   /* a rank exits with 7 */
    STRIKE_MEMORY, /* the kernel ends a rank that takes more than there is */
    STRIKE_DISK,   /* the disk that rank 0 writes to is full */
    STRIKE_CLOCK,  /* all clocks are set a day on, and then back */
    STRIKE_LAUNCHER,
    STRIKE_PORT,  /* somebody listens where the job wants to */
    STRIKE_NODE,  /* launcher number `arg` of two is killed */
    STRIKE_CABLE, /* ... can't reach the other for `arg` seconds, 0: for good */
};

typedef struct strike_fault {
    const char *name;
    enum strike_kind kind;
    int arg;
    int exit_code; /* of the launch; 0: nothing may happen; -1: any other than 0 */
} strike_fault;

extern const strike_fault strike_faults[];
extern const int strike_n_faults;

/* One rank, as its environment tells. */
struct strike_rank {
    pid_t pid;
    int local;        /* its number on its node */
    char segment[64]; /* LOCKSTEP_SEGMENT */
};

typedef struct strike_run {
    const strike_fault *fault;
    int W, n_nodes;
    lks_test_child nodes[STRIKE_NODES]; /* launchers */
    const char *mark;                   /* of all its processes */
    const char *out;
    struct strike_rank ranks[STRIKE_RANKS];
} strike_run;

/* For main() to begin with, and to end with: what faults need of the machine. */
void strike_open(void);
void strike_close(void);
/* Why this fault can't be had here; NULL where it can. */
const char *strike_missing(const strike_fault *fault);

/* Around each run: before its start (its folder exists), after its end, and when all is compared.
 */
void strike_before(const strike_run *r);
void strike_heal(const strike_run *r);
void strike_after(const strike_run *r);

/* The launcher's words on a node, before those of the program: to be put before `argv`'s. */
const char *const *strike_host(int node);

/* Strike now; false: nobody was there any more. */
bool strike(const strike_run *r, int victim);

/* The run's ranks that can be found, into r->ranks; their number. */
int strike_find_ranks(strike_run *r);
/* The shared memory of a rank's node, or NULL where the rank is gone already. */
lks__segment *strike_look_inside(const struct strike_rank *rank, int n_local);
bool strike_is_gone(pid_t pid);

#endif
