/* ddp/library/params_check.h - checks the arguments of params.c. */
#pragma once

#include "lockstep/ddp.h"

/* Memory of a program: that of number `i` in a list. */
struct lks__range {
    const void *from, *end;
    size_t i;
};
/* ERR_ARG if two ranges overlap, as with a tied parameter that is listed twice: it would be summed
 * and updated twice. Sorts them. `what` is in the list, and `advice` ends the message. */
lks_status lks__check_apart(const char *call, const char *what, const char *advice,
                            struct lks__range *ranges, size_t n);
#define LKS__TIED_ADVICE                                                                           \
    "give a tied parameter once, and apart from its gradient; count elements, not bytes"
/* ERR_ARG if two names are equal. Sorts them. */
lks_status lks__check_unique(const char *call, const char **names, size_t n);

/* ERR_ARG for a parameter that isn't valid, or that shares memory with another one. ERR_NOMEM.
 * `own`: the library allocates the gradients. */
lks_status lks__params_check_list(const lks_param *params, size_t n, bool own);
/* `mb`: megabytes per bucket. ERR_ARG. */
lks_status lks__params_check_numbers(int V, int W, int A, double mb);
/* `weight`: the sum of a step's weights, to divide by. ERR_ARG. */
lks_status lks__params_check_weight(const char *call, double weight);
