/* runs.h - how a test of the device runs itself again on the stand-ins, in other processes. */
#pragma once

#include "lockstep/status.h"

enum { RUNS_SAYS = 700 };

/* `PROGRAM use` in a process of its own, with an environment variable more: its status, and what it
 * says. */
lks_status runs_use(const char *env, char says[RUNS_SAYS]);

/* What `PROGRAM use` prints for runs_use(). */
void runs_print(lks_status status);

/* `PROGRAM seed` for each of the stand-ins' orders; returns main()'s exit code. */
int runs_of_seeds(const char *program, int n_seeds);
