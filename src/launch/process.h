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

/* One rank: the leader of a process group of its own. */
struct lks__rank_process {
    pid_t pid;
    bool running;
    bool by_signal;
    int code;  /* exit code, or the signal's number */
    int order; /* 0 for the first that was seen to end, and so on */
    bool late; /* it ended when all were being ended */
    double started_at;
    uint64_t waiting; /* deliver.c: bit n: signal n is to be sent when the rank is ready for it */
    double waiting_since, blocked_since;
    bool said_waiting;
};

/* A job's ranks on this host, in one of its attempts. */
struct lks__launch {
    const lks__launch_options *options;
    int signals;       /* signalfd */
    unsigned early;    /* bit n: signal n (SIGUSR1, SIGUSR2) came when no rank ran */
    sigset_t old_mask; /* what the ranks get */
    struct sigaction old_pipe, old_child;
    char host[64]; /* this machine's name, fit for a terminal */

    /* The job's. */
    char run_id[64];
    char job[LKS__TOKEN_BYTES]; /* LOCKSTEP_JOB */
    char token[256];            /* the store's */
    char log_dir[4096];         /* of this job; "" without files */
    lks__store_server *store;   /* where this node serves it */
    char store_host[256];       /* ... and where it is */
    int store_port;
    char master_addr[256];
    char local_address[64];   /* this host's, as the others see it */
    const char *given_id;     /* --rdzv-id */
    struct lks__nodes *nodes; /* NULL where the job has one */

    /* The attempt's. */
    int attempt;      /* TORCHELASTIC_RESTART_COUNT */
    int nproc;        /* local ranks of it */
    int first_global; /* RANK of local rank 0 */
    int world_size;
    int group_rank, n_groups; /* of nodes */
    int master_port;
    lks__segment *segment;
    lks__output *output;
    lks__consoles *consoles;         /* the launch's */
    char **folders;                  /* [nproc] of log files; NULL without */
    struct lks__rank_process *ranks; /* [nproc] */
    int n_started, n_running, n_ended;
    long oom_kills; /* the kernel's count when it began */
    pid_t guard;
    int guard_fd; /* our end of the guard's socket; -1 without a guard */
    struct pollfd *polls;

    bool failed;                 /* a rank has failed; the others are being ended */
    bool killed;                 /* SIGKILL has been sent */
    bool cut;                    /* the lifeline has ended */
    bool ended_by_others;        /* ... since another node's ranks have ended */
    int word;                    /* 0, or the SIGUSR1 or SIGUSR2 that was passed on last */
    bool stood_still;            /* all ranks did, and were ended for it (still.c) */
    double look_from, looked_at; /* still.c's */
    int user_signal;             /* 0, or the first that asks to stop */
    double user_signal_at;       /* ... and when the newest one came */
    bool held_back;              /* a second one has not ended the ranks, since they save */
    double kill_at;              /* when to send SIGKILL; 0: not */
    bool first_by_rank;          /* the group's failure was known before we wrote one */
    int first_rank;              /* ... and whom it blamed, -1 for nobody */
    char first_text[1100];       /* ... and what it said */
};

/* --- launch.c ----------------------------------------------------------------------------- */

/* "lockstep run: text\n" on stderr, behind what ranks have written before; never waits. */
void lks__say(const struct lks__launch *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void lks__show(const struct lks__launch *l, const char *text); /* as it is */

/* Ranks are to end, or have ended: how long a reader who doesn't read is waited for. */
void lks__hurry(const struct lks__launch *l);
void lks__hurry_most(const struct lks__launch *l); /* the user insists */

/* --- front.c ------------------------------------------------------------------------------ */

/* The launcher gets it when the process in front of it is gone: kill all, at once. */
#define LKS__FRONT_GONE SIGRTMIN

/* Fork: the launcher goes on in the child. The process that called stays in front of it, passes the
 * signals of `mask` on, which are blocked, and ends as the launcher does; it doesn't return. */
lks_status lks__front_fork(const char *self, const sigset_t *mask, const sigset_t *old_mask);

/* --- start.c ------------------------------------------------------------------------------ */

/* A TCP port that nobody listens on just now, at that address of this host. */
int lks__free_port(const char *host);

/* Start local rank `rank`. *exec_errno_p is 0, or why the program can't be executed (then nothing
 * runs); a status other than OK where no process could be made. */
lks_status lks__start_rank(struct lks__launch *l, int rank, int *exec_errno_p);

/* --- supervise.c -------------------------------------------------------------------------- */

/* Watch over the ranks until all have ended, and end what they leave behind. */
void lks__supervise(struct lks__launch *l);

/* Another node's ranks have failed: end ours. Fine where there are none. */
void lks__end_with_others(struct lks__launch *l);

/* The user wants the ranks to stop: here, or on another node. */
void lks__pass_on(struct lks__launch *l, int sig);

/* A signal of the lifeline's, where there is one, or 0; SIGHUP, once, for its end. */
int lks__lifeline_fd(const struct lks__launch *l); /* to poll; -1: none */
int lks__lifeline_signal(struct lks__launch *l);

/* End what has been started, at once. */
void lks__end_all(struct lks__launch *l);

/* The same, and ourselves, without another word: we have been killed (LKS__FRONT_GONE). */
_Noreturn void lks__front_is_gone(struct lks__launch *l);

/* --- deliver.c ---------------------------------------------------------------------------- */

/* Send a signal of the user's to the groups of all ranks, to each when it is ready for it. */
void lks__deliver(struct lks__launch *l, int sig);
void lks__deliver_due(struct lks__launch *l);          /* what had to wait, if it is time */
double lks__deliver_next(const struct lks__launch *l); /* when to look; 0: nothing waits */

/* --- verdict.c ---------------------------------------------------------------------------- */

bool lks__rank_failed(const struct lks__rank_process *p); /* of one that has ended */

/* How many processes the kernel has killed for lack of memory; 0 where it doesn't tell. */
long lks__oom_kills(void);

/* "rank 1 (pid 12, host a) was killed by signal 9 (SIGKILL) at step 3, phase backward" */
void lks__describe_end(const struct lks__launch *l, int rank, char text[LKS__LAUNCH_MESSAGE]);

/* After all have ended: which local rank failed first by itself, or -1; one sentence about it; and
 * the exit code that the launch ends with. */
struct lks__verdict {
    int culprit;
    int exit_code;
    char text[LKS__LAUNCH_MESSAGE];
};
void lks__verdict(const struct lks__launch *l, struct lks__verdict *v);

/* --- files.c ------------------------------------------------------------------------------ */

/* The job's folder for log files, where some are asked for; says where where nobody chose it. */
lks_status lks__files_open(struct lks__launch *l);
/* attempt_N/LOCAL_RANK/ for each rank, and the streams. */
lks_status lks__files_attempt(struct lks__launch *l);
void lks__files_close(struct lks__launch *l); /* the attempt's */
/* error.json for each rank that failed and hasn't written one itself. */
void lks__files_errors(const struct lks__launch *l, const struct lks__verdict *v);

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

/* --- still.c ------------------------------------------------------------------------------ */

/* When to look whether all ranks stand still; 0: never. */
double lks__still_next(const struct lks__launch *l);
/* True, once, where they do: what they are doing is on record, and they are to be ended. */
bool lks__still_look(struct lks__launch *l);

#endif
