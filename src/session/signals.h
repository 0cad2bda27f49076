/* session/signals.h - signals that ask a process of ours for an orderly stop or for a checkpoint.
 */
#ifndef LKS_SESSION_SIGNALS_H
#define LKS_SESSION_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

/* SIGTERM, SIGINT and SIGHUP ask for an orderly stop, and so does `stop_signal` (the setting's
 * words): lks__stop_requested is the signal's number. SIGUSR1 and SIGUSR2 ask for a checkpoint. A
 * signal that is ignored stays ignored, and those that came early (base/early.h) arrive now.
 *
 * A second signal to stop ends the process at once, but not while lks__signals_hold(true) says that
 * it saves: then the third does. Signals within 0.3 s of each other are one: a terminal that closes
 * sends two, and so does timeout(1). */
extern volatile sig_atomic_t lks__stop_requested, lks__save_requested;
void lks__signals_install(const char *stop_signal);
void lks__signals_hold(bool hold);

/* Call fn(ctx, signo), in the handler, for the first signal that asks to stop, or at once if there
 * was one. NULL: don't any more. */
void lks__signals_on_stop(void (*fn)(void *ctx, int signo), void *ctx);

#endif
