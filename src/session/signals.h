/* session/signals.h - signals that ask this process for an orderly stop or for a checkpoint. */
#pragma once

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

/* SIGTERM, SIGINT, SIGHUP and `stop_signal` (the setting's text) ask for an orderly stop:
 * lks__stop_requested is the signal's number. SIGUSR1 and SIGUSR2 ask for a checkpoint. A signal
 * that was ignored stays ignored; signals that arrived early (base/system/early.h) are delivered
 * now.
 *
 * A second signal to stop ends the process at once. While lks__signals_hold(true) is in effect,
 * because the process is saving, only a third does. Signals within 0.3 s of each other count as
 * one: a closing terminal sends two, and so does timeout(1). */
extern atomic_int lks__stop_requested; /* other threads may read it */
extern volatile sig_atomic_t lks__save_requested;
void lks__signals_install(const char *stop_signal);
void lks__signals_hold(bool hold);

/* Call fn(ctx, signo), in the handler, for the first signal that asks to stop, or at once if that
 * signal has already arrived. NULL: call nothing. */
void lks__signals_on_stop(void (*fn)(void *ctx, int signo), void *ctx);

/* In the handler, for the first signal that asks to stop, write `text`, which must stay valid, to
 * standard error: the current work may take minutes. NULL: write nothing. */
void lks__signals_answer(const char *text);

/* The request to stop has been answered: the next signal counts as the first again. */
void lks__signals_rearm(void);
