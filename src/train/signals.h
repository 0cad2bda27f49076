/* train/signals.h - signals that ask a process of ours for an orderly stop or for a checkpoint. */
#ifndef LKS_TRAIN_SIGNALS_H
#define LKS_TRAIN_SIGNALS_H

#include <signal.h>

/* SIGTERM, SIGINT and SIGHUP ask for an orderly stop, and so does `stop_signal` (the setting's
 * words): lks__stop_requested is the signal's number. SIGUSR1 and SIGUSR2 ask for a checkpoint. A
 * signal that is ignored stays ignored, and those that came early (base/early.h) arrive now. */
extern volatile sig_atomic_t lks__stop_requested, lks__save_requested;
void lks__signals_install(const char *stop_signal);

#endif
