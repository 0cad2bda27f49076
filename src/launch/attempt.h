/* launch/attempt.h - one start of a job's ranks on this host, and their processes. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "comm/shm/segment/status.h"
#include "launch/end.h"
#include "launch/job.h"

/* One rank: the leader of a separate process group. */
struct lks__rank_process {
    pid_t pid;
    bool running;
    bool by_signal;
    int code;  /* exit code, or the signal's number */
    int order; /* 0 for the first rank that was seen to end, and so on */
    bool late; /* it ended while all ranks were being ended */
    double started_at;
    uint64_t waiting; /* deliver.c: bit n: send signal n when the rank is ready for it */
    double waiting_since, blocked_since;
    bool said_waiting;
};

struct lks__attempt {
    struct lks__job *job;
    int number;       /* TORCHELASTIC_RESTART_COUNT */
    int nproc;        /* its local ranks */
    int first_global; /* RANK of local rank 0 */
    int world_size;
    int first_in_role, role_size; /* ROLE_RANK of local rank 0, ROLE_WORLD_SIZE */
    int group_rank, n_groups;     /* numbers of nodes */
    int master_port;
    lks__segment *segment;
    char **folders;                  /* [nproc] folders of log files; NULL without log files */
    struct lks__rank_process *ranks; /* [nproc] */
    int n_started, n_running, n_ended;
    long oom_kills; /* the kernel's count at the start of the attempt */
    pid_t guard;
    int guard_fd; /* our end of the guard's socket; -1 without a guard */
};

/* --- attempt.c ---------------------------------------------------------------------------- */

/* Allocate memory, the ranks' segment and their streams, once job, number, sizes and port are set.
 * lks__attempt_close() closes everything that is open, after a failure, too. */
lks_status lks__attempt_open(struct lks__attempt *a);
void lks__attempt_close(struct lks__attempt *a);

/* "rank 1 (pid 12, host a) was killed by signal 9 (SIGKILL) at step 3, phase backward" */
void lks__describe_end(const struct lks__attempt *a, int rank, char text[LKS__LAUNCH_MESSAGE]);
bool lks__rank_failed(const struct lks__rank_process *p); /* of a rank that has ended */
/* Number of processes that the kernel has killed for lack of memory; 0 if not known. */
long lks__oom_kills(void);

/* --- start.c ------------------------------------------------------------------------------ */

/* Start local rank `rank`. *exec_errno_p is 0, or the error if the program can't be executed (then
 * nothing runs). A status other than OK if no process could be made. */
lks_status lks__start_rank(struct lks__attempt *a, int rank, int *exec_errno_p);

/* --- deliver.c ---------------------------------------------------------------------------- */

/* Send a user's signal to the groups of all ranks, to each once it is ready for the signal. */
void lks__deliver(struct lks__attempt *a, int sig);
void lks__deliver_due(struct lks__attempt *a);          /* send the signals that are due */
double lks__deliver_next(const struct lks__attempt *a); /* when to call it; 0: no signal waits */

/* --- files.c ------------------------------------------------------------------------------ */

/* Open attempt_N/LOCAL_RANK/ for each rank, and the streams. */
lks_status lks__files_attempt(struct lks__attempt *a);
void lks__files_close(struct lks__attempt *a);

/* --- guard.c ------------------------------------------------------------------------------ */

/* Start a process that waits for the launcher's end, and then kills the ranks' process groups. The
 * ranks themselves end with the launcher (PR_SET_PDEATHSIG), but their children don't. */
void lks__guard_start(struct lks__attempt *a);
void lks__guard_add(const struct lks__attempt *a, pid_t group); /* called by the rank itself */
void lks__guard_stop(struct lks__attempt *a);

/* --- descendants.c ------------------------------------------------------------------------ */

/* Send `sig` to the groups of all running ranks except rank `spared` (-1: none) and to the
 * processes that ended ranks have left (we are their subreaper, so orphans are our children).
 * Returns the number of processes or groups. */
int lks__signal_all(const struct lks__attempt *a, int sig, int spared);
