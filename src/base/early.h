/* base/early.h - signals that come before a program is ready for them wait until it is. */
#ifndef LKS_BASE_EARLY_H
#define LKS_BASE_EARLY_H

#include <signal.h>
#include <stdbool.h>

/* For main() to begin with: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are blocked until
 * lks__early_release(), which whoever has installed handlers calls. */
void lks__early_hold(void);
void lks__early_release(void); /* fine without a hold */

/* Take from `mask` what the hold has added to it: the mask for programs of others. */
void lks__early_subtract(sigset_t *mask);

/* Is the signal ignored now? What was ignored when a program was started (by nohup, or since it is
 * a background job of a shell without job control) has to stay ignored. */
bool lks__signal_is_ignored(int sig);

#endif
