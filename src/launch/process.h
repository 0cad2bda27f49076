/* launch/process.h - the processes of a launch: ranks, their descendants, and the guard. */
#ifndef LKS_LAUNCH_PROCESS_H
#define LKS_LAUNCH_PROCESS_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"
#include "comm/shm/segment.h"
#include "launch/launch.h"
#include "net/store.h"

enum { LKS__LAUNCH_MESSAGE = 2048 };

/* One rank: the leader of its own process group. */
struct lks__rank_process {
    pid_t pid;
    bool running;
    bool by_signal;
    int code;  /* exit code, or the signal's number */
    int order; /* 0 for the first rank that was seen to end, and so on */
    bool late; /* it ended while all were being ended */
    double started_at;
    uint64_t waiting; /* deliver.c: bit n: send signal n when the rank is ready for it */
    double waiting_since, blocked_since;
    bool said_waiting;
};

/* A job's ranks on this host, in one of its attempts. */
struct lks__launch {
    const lks__launch_options *options;
    int signals;       /* signalfd */
    unsigned early;    /* bit n: signal n (SIGUSR1, SIGUSR2) came while no rank ran */
    sigset_t old_mask; /* the mask for ranks */
    struct sigaction old_pipe, old_child;
    char host[64]; /* this machine's name, safe on a terminal */

    /* Fields of the whole job: */
    char run_id[64];
    char job[LKS__TOKEN_BYTES]; /* LOCKSTEP_JOB */
    char token[256];            /* of the store */
    char log_dir[4096];         /* of this job; "" without files */
    lks__store_server *store;   /* if this node serves it */
    char store_host[256];       /* ... and its address */
    int store_port;
    char master_addr[256];
    char local_address[64];   /* this host's address, as the others see it */
    const char *given_id;     /* --rdzv-id */
    struct lks__nodes *nodes; /* NULL if the job has only one node */

    /* Fields of the attempt: */
    int attempt;      /* TORCHELASTIC_RESTART_COUNT */
    int nproc;        /* number of local ranks */
    int first_global; /* RANK of local rank 0 */
    int world_size;
    int group_rank, n_groups; /* of nodes */
    int master_port;
    lks__segment *segment;
    lks__output *output;
    lks__consoles *consoles;         /* of the launch */
    char **folders;                  /* [nproc] of log files; NULL without them */
    struct lks__rank_process *ranks; /* [nproc] */
    int n_started, n_running, n_ended;
    long oom_kills; /* the kernel's count at the start of the attempt */
    pid_t guard;
    int guard_fd; /* our end of the guard's socket; -1 without a guard */
    struct pollfd *polls;

    bool failed;                 /* a rank has failed; the others are being ended */
    bool killed;                 /* SIGKILL has been sent */
    bool cut;                    /* the lifeline has ended */
    bool ended_by_others;        /* ... because another node's ranks have ended */
    int passed_on;               /* the SIGUSR1 or SIGUSR2 that was passed on last, or 0 */
    bool stood_still;            /* all ranks stood still, and were ended for it (still.c) */
    double look_from, looked_at; /* of still.c */
    int user_signal;             /* the first signal that asks to stop, or 0 */
    double user_signal_at;       /* ... and the time of the newest one */
    bool held_back;              /* a second one has not ended the ranks, because they save */
    double kill_at;              /* when to send SIGKILL; 0: never */
    bool first_by_rank;          /* the group had a failure before we recorded one */
    int first_rank;              /* ... and the rank that it names, -1 for none */
    char first_text[1100];       /* ... and its text */
};

/* --- launch.c ----------------------------------------------------------------------------- */

/* Print "lockstep run: text\n" on stderr, after what ranks have written before; never waits. */
void lks__say(const struct lks__launch *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void lks__show(const struct lks__launch *l, const char *text); /* without a prefix */

/* Ranks must end, or have ended: limit the wait for a slow reader. */
void lks__hurry(const struct lks__launch *l);
void lks__hurry_most(const struct lks__launch *l); /* the user has sent another signal */

/* --- front.c ------------------------------------------------------------------------------ */

/* Signal to the launcher when the process in front of it has ended: kill everything at once. */
#define LKS__FRONT_GONE SIGRTMIN

/* Fork; the call returns in the child, which goes on as the launcher. The calling process stays
 * in front of it, passes the signals of `mask` on, which are blocked, and ends as the launcher
 * does. */
lks_status lks__front_fork(const char *self, const sigset_t *mask, const sigset_t *old_mask);

/* --- start.c ------------------------------------------------------------------------------ */

/* A TCP port at that address of this host on which no program listens now. */
int lks__free_port(const char *host);

/* Start local rank `rank`. *exec_errno_p is 0, or the reason why the program can't be executed
 * (then nothing runs). A status other than OK if no process could be made. */
lks_status lks__start_rank(struct lks__launch *l, int rank, int *exec_errno_p);

/* --- supervise.c -------------------------------------------------------------------------- */

/* Watch the ranks until all have ended, and end the processes that they leave behind. */
void lks__supervise(struct lks__launch *l);

/* Another node's ranks have failed: end ours, if there are any. */
void lks__end_with_others(struct lks__launch *l);

/* Pass on the user's signal to stop, which came here or on another node. */
void lks__pass_on(struct lks__launch *l, int sig);

/* A signal from the lifeline, if there is one, or 0; SIGHUP, once, at its end. */
int lks__lifeline_fd(const struct lks__launch *l); /* to poll; -1: none */
int lks__lifeline_signal(struct lks__launch *l);

/* End everything that has been started, at once. */
void lks__end_all(struct lks__launch *l);

/* The same, and end ourselves without a message: the front was killed (LKS__FRONT_GONE). */
_Noreturn void lks__front_is_gone(struct lks__launch *l);

/* --- deliver.c ---------------------------------------------------------------------------- */

/* Send a signal of the user to the groups of all ranks, to each when it is ready for it. */
void lks__deliver(struct lks__launch *l, int sig);
void lks__deliver_due(struct lks__launch *l);          /* send signals whose time has come */
double lks__deliver_next(const struct lks__launch *l); /* when to call it; 0: no signal waits */

/* --- verdict.c ---------------------------------------------------------------------------- */

bool lks__rank_failed(const struct lks__rank_process *p); /* of a rank that has ended */

/* How many processes the kernel has killed for lack of memory; 0 if not known. */
long lks__oom_kills(void);

/* "rank 1 (pid 12, host a) was killed by signal 9 (SIGKILL) at step 3, phase backward" */
void lks__describe_end(const struct lks__launch *l, int rank, char text[LKS__LAUNCH_MESSAGE]);

/* After all have ended: the local rank that failed first by itself, or -1; one sentence about it;
 * and the exit code of the launch. */
struct lks__verdict {
    int culprit;
    int exit_code;
    char text[LKS__LAUNCH_MESSAGE];
};
void lks__verdict(const struct lks__launch *l, struct lks__verdict *v);

/* --- files.c ------------------------------------------------------------------------------ */

/* Make the job's folder for log files, if some are requested; prints its path if the user didn't
 * choose it. */
lks_status lks__files_open(struct lks__launch *l);
/* Open attempt_N/LOCAL_RANK/ for each rank, and the streams. */
lks_status lks__files_attempt(struct lks__launch *l);
void lks__files_close(struct lks__launch *l); /* of the attempt */
/* Write error.json for each rank that failed and hasn't written one itself. */
void lks__files_errors(const struct lks__launch *l, const struct lks__verdict *v);

/* --- guard.c ------------------------------------------------------------------------------ */

/* Start a process that waits for the launcher's end, and then kills the ranks' process groups. The
 * ranks themselves end with the launcher (PR_SET_PDEATHSIG), but their children don't. */
void lks__guard_start(struct lks__launch *l);
void lks__guard_add(const struct lks__launch *l, pid_t group); /* called by the rank itself */
void lks__guard_stop(struct lks__launch *l);

/* --- descendants.c ------------------------------------------------------------------------ */

/* Send `sig` to the groups of all running ranks but rank `spared` (-1: none), and to processes that
 * ended ranks have left behind (they are our children, because we are their subreaper). Returns the
 * number of processes or groups. */
int lks__signal_all(const struct lks__launch *l, int sig, int spared);

/* --- still.c ------------------------------------------------------------------------------ */

/* When to check whether all ranks stand still; 0: never. */
double lks__still_next(const struct lks__launch *l);
/* True, once, if they do: their state has been recorded, and they must be ended. */
bool lks__still_look(struct lks__launch *l);

#endif
