/* comm/world.h - the rank and world that a launcher has assigned to this process; see also
 * lks_world_from_env(). */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"
#include "lockstep/comm.h"

/* If a launcher other than torchrun or lockstep has made this process one of several ranks, set
 * torchrun's variables, which the rest of the program reads. Call it before starting threads. */
lks_status lks__world_adopt(void);

/* True if a launcher other than lockstep's (mpirun, srun, torchrun) has started this process, or
 * the launcher that started it. */
bool lks__world_foreign(void);

/* True if the launcher (mpirun, srun, torchrun) that lks__world_adopt() found was killed since. No
 * other process ends its ranks then. */
bool lks__world_orphaned(void);

/* The launcher (mpirun, srun, torchrun) that started this process, if its ranks would live on after
 * it is killed, and lks__world_orphaned() doesn't watch it; else 0. */
pid_t lks__world_launcher(void);

/* Returns `st` if the numbers contradict each other. */
lks_status lks__world_check(lks_status st, const lks_world *w);

/* True if the variable is set and not empty. */
bool lks__env_set(const char *name);

/* Read the variable, an integer from 0 to `most`. False, and *value_p unchanged, if it isn't
 * one. */
bool lks__env_int(const char *name, int most, int *value_p);

/* Set the variable. Call it before starting threads. */
void lks__env_put(const char *name, int value);
