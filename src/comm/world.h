/* comm/world.h - the rank and world that a launcher has assigned to this process; see also
 * lks_world_from_env(). */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "lockstep/comm.h"

/* If a launcher other than torchrun or lockstep has made this process one of several ranks, set
 * torchrun's variables, which the rest of the program reads. Call it before starting threads. */
lks_status lks__world_adopt(void);

/* True if a launcher other than lockstep's (mpirun, srun, torchrun) has started this process, or
 * the launcher that started it. */
bool lks__world_foreign(void);

/* True if the launcher that had started us at lks__world_adopt() (torchrun, mpirun, srun) was
 * killed since. Nobody else ends its ranks then. */
bool lks__world_orphaned(void);

/* Returns `st` if the numbers contradict each other. */
lks_status lks__world_check(lks_status st, const lks_world *w);

/* True if the variable is set and not empty. */
bool lks__env_set(const char *name);

/* Read the variable, an integer from 0 to `most`. False, and *value_p unchanged, if it isn't
 * one. */
bool lks__env_int(const char *name, int most, int *value_p);

/* Set the variable. Call it before starting threads. */
void lks__env_put(const char *name, int value);
