/* base/system/early.h - signals that arrive before a program has installed its handlers, and
 * threads that receive none. */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* Call it first in main(): blocks SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 until
 * lks__early_release(), which is called once handlers are installed. */
void lks__early_hold(void);
void lks__early_release(void); /* does nothing without a hold */

/* Remove from `mask` the signals that the hold added: the result is the mask for other programs
 * that we start. */
void lks__early_subtract(sigset_t *mask);

/* Add SIGUSR1 and SIGUSR2 to `mask` if they are in `blocked`. A launcher whose ranks have ended
 * keeps them blocked until it exits, because a request for a checkpoint must not end a job that has
 * succeeded. */
void lks__late_add(const sigset_t *blocked, sigset_t *mask);

/* Seconds: signals so close are one request. A terminal that closes may send one signal twice. */
#define LKS__SAME_CAUSE_S 0.3

/* True if the signal is ignored now. A signal that was ignored when the program started (under
 * nohup, or as a background job of a shell without job control) has to stay ignored. */
bool lks__signal_is_ignored(int sig);

/* "TERM" of SIGTERM; "?" for a signal without a name. */
const char *lks__signal_name(int sig);

/* Start a thread with all signals blocked: only the program's own threads handle signals. Returns
 * 0, or the error's number. */
int lks__thread_start(pthread_t *thread, void *(*run)(void *), void *ctx);
