/* ddp/library/params_check.h - checks the arguments of params.c. */
#ifndef LKS_DDP_LIBRARY_PARAMS_CHECK_H
#define LKS_DDP_LIBRARY_PARAMS_CHECK_H

#include "lockstep/ddp.h"

/* ERR_ARG for a parameter that isn't valid, or that shares memory with another one. ERR_NOMEM.
 * `own`: the library allocates the gradients. */
lks_status lks__params_check_list(const lks_param *params, size_t n, bool own);
/* `mb`: megabytes per bucket. ERR_ARG. */
lks_status lks__params_check_numbers(int V, int W, int A, double mb);
/* `weight`: the sum of all weights, by which lks_ddp_step() divides. ERR_ARG. */
lks_status lks__params_check_weight(const char *call, double weight);

#endif
