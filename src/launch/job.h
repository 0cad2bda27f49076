/* launch/job.h - the state of a launch that stays the same over all its attempts. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "comm/store/store.h"
#include "launch/options.h"
#include "launch/output/consoles.h"
#include "launch/output/output.h"

struct lks__job {
    const lks__launch_options *options;
    int signals;       /* signalfd */
    unsigned early;    /* bit n: signal n (SIGUSR1, SIGUSR2) arrived when no rank was running */
    bool cut;          /* the lifeline has ended */
    sigset_t old_mask; /* the ranks' mask */
    struct sigaction old_pipe, old_child;
    char host[64]; /* this machine's name, safe on a terminal */

    char run_id[LKS__RUN_ID + 1];
    char id[LKS__TOKEN_BYTES]; /* LOCKSTEP_JOB */
    char token[256];           /* the store's token */
    char log_dir[4096];        /* folder of this job's logs; "" without log files */
    lks__store_server *store;  /* if this node serves it */
    char store_host[256];      /* ... and the store's host */
    int store_port;
    char master_addr[256];
    char local_address[64]; /* this host's address, as the others see it */
    const char *given_id;   /* --rdzv-id */
    const char *role;       /* ROLE_NAME */

    lks__consoles *consoles;
    lks__output *output; /* of the running attempt (files.c); NULL between attempts */
};

/* Find names and addresses, make the folder for logs, and serve the store if the job has one node.
 * Stop job->store at the end, after a failure, too. */
lks_status lks__job_open(struct lks__job *job);

/* Print "lockstep run: text\n" on stderr, after the ranks' earlier output. Never waits. */
void lks__say(const struct lks__job *job, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* lks__say() for facts that only this node knows: also prints if another node prints for all. */
void lks__say_here(const struct lks__job *job, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void lks__show(const struct lks__job *job, const char *text); /* lks__say() without a prefix */

/* Ranks must end, or have ended: limit the wait for a slow reader. */
void lks__hurry(const struct lks__job *job);
void lks__hurry_most(const struct lks__job *job); /* the user has sent another signal */

/* A signal from the lifeline, if there is one, or 0; SIGHUP, once, when the lifeline ends. */
int lks__lifeline_fd(const struct lks__job *job); /* to poll; -1: none */
int lks__lifeline_signal(struct lks__job *job);

/* The next signal that has arrived, or 0. LKS__FRONT_GONE comes before earlier ones. */
int lks__job_next_signal(const struct lks__job *job);

/* While no rank runs: a signal to stop that has arrived, or 0. SIGUSR1 and SIGUSR2 are kept in
 * job->early. Ends the process if the process in front has ended. */
int lks__job_pending_signal(struct lks__job *job);

/* --- front.c ------------------------------------------------------------------------------ */

/* The launcher gets this signal when the process in front of it has ended: kill everything at
 * once. */
#define LKS__FRONT_GONE SIGRTMIN

/* True if that signal has arrived and isn't read yet. If we were stopped, the kernel then also
 * sends SIGHUP and SIGCONT. This SIGHUP is no request of the user, but it is read first. */
bool lks__front_is_gone(void);

/* Fork. The call returns in the child, which continues as the launcher. The calling process stays
 * in front of it, passes on the signals of `mask`, which are blocked, and ends as the launcher
 * does. */
lks_status lks__front_fork(const char *self, const sigset_t *mask, const sigset_t *old_mask);

/* --- files.c ------------------------------------------------------------------------------ */

/* Make the job's folder for log files, if any are requested. Prints its path if the user didn't
 * choose it. */
lks_status lks__files_open(struct lks__job *job);

/* --- start.c ------------------------------------------------------------------------------ */

/* A TCP port at that address of this host on which no program is listening. */
int lks__free_port(const char *host);
