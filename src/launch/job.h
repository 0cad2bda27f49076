/* launch/job.h - what stays the same over all attempts of a launch. */
#ifndef LKS_LAUNCH_JOB_H
#define LKS_LAUNCH_JOB_H

#include <signal.h>
#include <stdbool.h>

#include "comm/store/store.h"
#include "launch/launch.h"

struct lks__job {
    const lks__launch_options *options;
    int signals;       /* signalfd */
    unsigned early;    /* bit n: signal n (SIGUSR1, SIGUSR2) came when no rank ran */
    bool cut;          /* the lifeline has ended */
    sigset_t old_mask; /* what the ranks get */
    struct sigaction old_pipe, old_child;
    char host[64]; /* this machine's name, fit for a terminal */

    char run_id[LKS__RUN_ID + 1];
    char id[LKS__TOKEN_BYTES]; /* LOCKSTEP_JOB */
    char token[256];           /* the store's */
    char log_dir[4096];        /* of this job; "" without files */
    lks__store_server *store;  /* if this node serves it */
    char store_host[256];      /* ... and where it is */
    int store_port;
    char master_addr[256];
    char local_address[64]; /* this host's, as the others see it */
    const char *given_id;   /* --rdzv-id */

    lks__consoles *consoles;
    lks__output *output; /* of the attempt that runs (files.c); NULL between attempts */
};

/* Find names and addresses, make the folder for logs, and serve the store if the job has one node.
 * What is open is closed by lks__job_close(), after a failure, too. */
lks_status lks__job_open(struct lks__job *job);
void lks__job_close(struct lks__job *job);

/* Print "lockstep run: text\n" on stderr, after what ranks have written before; never waits. */
void lks__say(const struct lks__job *job, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for facts that only this node knows: also if another node prints for all. */
void lks__say_here(const struct lks__job *job, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void lks__show(const struct lks__job *job, const char *text); /* without a prefix */

/* Ranks must end, or have ended: limit the wait for a slow reader. */
void lks__hurry(const struct lks__job *job);
void lks__hurry_most(const struct lks__job *job); /* the user has sent another signal */

/* A signal from the lifeline, if there is one, or 0; SIGHUP, once, at its end. */
int lks__lifeline_fd(const struct lks__job *job); /* to poll; -1: none */
int lks__lifeline_signal(struct lks__job *job);

/* While no rank runs: a signal to stop that has come, or 0. SIGUSR1 and SIGUSR2 are kept in
 * job->early. Ends the process if the one in front is gone. */
int lks__job_pending_signal(struct lks__job *job);

/* --- front.c ------------------------------------------------------------------------------ */

/* Signal to the launcher when the process in front of it has ended: kill everything at once. */
#define LKS__FRONT_GONE SIGRTMIN

/* Fork; the call returns in the child, which goes on as the launcher. The calling process stays
 * in front of it, passes the signals of `mask` on, which are blocked, and ends as the launcher
 * does. */
lks_status lks__front_fork(const char *self, const sigset_t *mask, const sigset_t *old_mask);

/* --- files.c ------------------------------------------------------------------------------ */

/* Make the job's folder for log files, if some are requested; prints its path if the user didn't
 * choose it. */
lks_status lks__files_open(struct lks__job *job);

/* --- start.c ------------------------------------------------------------------------------ */

/* A TCP port at that address of this host on which no program listens now. */
int lks__free_port(const char *host);

#endif
