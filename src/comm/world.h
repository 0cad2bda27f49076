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

#endif
