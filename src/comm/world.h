/* comm/world.h - the place that a launcher has given this process, beside lks_world_from_env(). */
#ifndef LKS_COMM_WORLD_H
#define LKS_COMM_WORLD_H

#include <stdbool.h>

#include "base/status.h"
#include "lockstep/comm.h"

/* Where another launcher than torchrun or ours has made this process one of several ranks, say so
 * in torchrun's variables, which is what the rest of a program looks at. Before threads. */
lks_status lks__world_adopt(void);

/* `st` where its numbers contradict each other. */
lks_status lks__world_check(lks_status st, const lks_world *w);

/* Is a variable there, and not empty? */
bool lks__env_set(const char *name);

/* Its value, a whole number from 0 to `most`; false, and *value_p as it was, where it is none. */
bool lks__env_int(const char *name, int most, int *value_p);

/* Before threads. */
void lks__env_put(const char *name, int value);

#endif
