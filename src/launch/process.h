/* launch/process.h - the processes of a launch: ranks, their descendants, and the guard. */
#ifndef LKS_LAUNCH_PROCESS_H
#define LKS_LAUNCH_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"
#include "comm/shm/segment.h"
#include "launch/launch.h"

/* One rank: the leader of a process group of its own. */
struct lks__rank_process {
    pid_t pid;
    bool running;
    bool by_signal;
    int code;  /* exit code, or the signal's number */
    int order; /* 0 for the first that was seen to end, and so on */
};

struct lks__launch {
    const lks__launch_options *options;
    lks__segment *segment;
    struct lks__rank_process *ranks; /* [nproc] */
    int n_started, n_running, n_ended;
    int master_port;
    sigset_t old_mask; /* what the ranks get */
    pid_t guard;
    int guard_fd; /* our end of the guard's socket; -1 without a guard */
};

/* --- start.c ------------------------------------------------------------------------------ */

/* A TCP port that nobody listens on just now. */
int lks__free_port(void);

/* Start rank `rank`. *exec_errno_p is 0, or why the program can't be executed (then nothing runs);
 * a status other than OK where no process could be made. */
lks_status lks__start_rank(struct lks__launch *l, int rank, int *exec_errno_p);

/* --- guard.c ------------------------------------------------------------------------------ */

/* A process that does nothing until the launcher is gone, and then kills the ranks' process groups.
 * The ranks themselves die with the launcher (PR_SET_PDEATHSIG); what they have started doesn't. */
void lks__guard_start(struct lks__launch *l);
void lks__guard_add(const struct lks__launch *l, pid_t group); /* called by the rank itself */
void lks__guard_stop(struct lks__launch *l);

/* --- descendants.c ------------------------------------------------------------------------ */

/* Send `sig` to the groups of all running ranks but rank `spared` (-1: none) and to what ended
 * ranks have left behind (we are their subreaper, so orphans are our children). Returns how many
 * processes or groups there are. */
int lks__signal_all(const struct lks__launch *l, int sig, int spared);

#endif
