#include "ddp/library/params_check.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

enum { MAX_VIRTUAL_RANKS = 1024, MAX_MICRO_STEPS = 1 << 20 };

/* More gradients, or a larger parameter, than this machine's memory must be a mistake. */
static size_t most_floats(void)
{
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / sizeof(float);
}

static lks_status check_params(const lks_param *params, size_t n, bool own)
{
    size_t total = 0, trained = 0, most = most_floats();
    for (size_t i = 0; i < n; i++) {
        const lks_param *p = &params[i];
        if (p->name == NULL || p->name[0] == '\0' || p->value == NULL || p->count == 0)
            return lks__fail(LKS_ERR_ARG, "lks_ddp_open: parameter %zu: its %s", i,
                             p->name == NULL      ? "name is NULL"
                             : p->name[0] == '\0' ? "name is empty"
                             : p->value == NULL   ? "value is NULL"
                                                  : "count is 0");
        if (((uintptr_t)p->value | (uintptr_t)p->grad) % sizeof(float) != 0)
            return lks__fail(LKS_ERR_ARG,
                             "lks_ddp_open: values or gradient of parameter %zu are not aligned as "
                             "floats are",
                             i);
        const size_t gradients = p->grad != NULL || own ? p->count : 0;
        if (p->count > most || __builtin_add_overflow(total, gradients, &total) || total > most)
            return lks__fail(LKS_ERR_ARG,
                             "lks_ddp_open: the parameters up to number %zu, with %zu elements, "
                             "are more than the %zu floats that fit into this machine's memory: "
                             "are the counts right?",
                             i, p->count, most);
        if (own && p->grad != NULL)
            return lks__fail(LKS_ERR_ARG,
                             "lks_ddp_open: parameter %zu has a gradient: with own_gradients set "
                             "grad to NULL, and use the one that lks_ddp_gradient() returns",
                             i);
        trained += p->grad != NULL;
    }
    if (trained == 0 && !own)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: no parameter has a gradient");
    return LKS_OK;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct lks__range *)a)->from;
    uintptr_t y = (uintptr_t)((const struct lks__range *)b)->from;
    return (x > y) - (x < y);
}

lks_status lks__check_apart(const char *call, const char *what, const char *advice,
                            struct lks__range *ranges, size_t n)
{
    qsort(ranges, n, sizeof *ranges, by_address);
    for (size_t i = 1; i < n; i++)
        if ((uintptr_t)ranges[i].from < (uintptr_t)ranges[i - 1].end)
            return lks__fail(LKS_ERR_ARG, "%s: memory of %s %zu overlaps memory of %s %zu: %s",
                             call, what, ranges[i].i, what, ranges[i - 1].i, advice);
    return LKS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

lks_status lks__check_unique(const char *call, const char **names, size_t n)
{
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return lks__fail(LKS_ERR_ARG, "%s: the name %s is in the list twice", call,
                             lks__shown(names[i], 128));
    return LKS_OK;
}

static lks_status check_memory(const lks_param *params, size_t n)
{
    struct lks__range *ranges = calloc(2 * n, sizeof *ranges);
    size_t n_ranges = 0;
    LKS__MEMORY(ranges, "to compare %zu parameters", n);
    for (size_t i = 0; i < n; i++) {
        const lks_param *p = &params[i];
        ranges[n_ranges++] = (struct lks__range){p->value, p->value + p->count, i};
        if (p->grad != NULL)
            ranges[n_ranges++] = (struct lks__range){p->grad, p->grad + p->count, i};
    }
    lks_status st =
        lks__check_apart("lks_ddp_open", "parameter", LKS__TIED_ADVICE, ranges, n_ranges);
    free(ranges);
    return st;
}

lks_status lks__params_check_list(const lks_param *params, size_t n, bool own)
{
    LKS__TRY(check_params(params, n, own));
    return check_memory(params, n);
}

lks_status lks__params_check_numbers(int V, int W, int A, double mb)
{
    if (V < 1 || V > MAX_VIRTUAL_RANKS)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: %d virtual ranks: 1 to %d are possible", V,
                         MAX_VIRTUAL_RANKS);
    if (V < W)
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_open: %d virtual rank%s for the %d ranks of this group: set "
                         "virtual_ranks to at least %d, or use a group of at most %d rank%s",
                         V, V == 1 ? "" : "s", W, W, V, V == 1 ? "" : "s");
    if (A < 1 || A > MAX_MICRO_STEPS)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: %d micro-steps: 1 to %d are possible", A,
                         MAX_MICRO_STEPS);
    if (!(mb > 0 && mb <= 1e6))
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_open: buckets of %g MB: more than 0 and at most 1e6 MB are "
                         "possible",
                         mb);
    return LKS_OK;
}

lks_status lks__params_check_weight(const char *call, double weight)
{
    float scale = (float)(1.0 / weight);
    if (weight == 0 || (scale > 0 && isfinite(scale)))
        return LKS_OK;
    return lks__fail(LKS_ERR_ARG,
                     "%s: the weights of a step's micro-steps add up to %g, by which no float can "
                     "be divided: they are numbers of samples",
                     call, weight);
}
