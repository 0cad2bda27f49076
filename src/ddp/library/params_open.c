#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/cpu.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/samelist.h"
#include "ddp/library/params.h"
#include "ddp/library/params_check.h"

/* --- the same parameters everywhere ----------------------------------------------------------- */

static uint64_t hash_param(const void *ctx, uint64_t i)
{
    const struct lks__ddp_param *param = &((const lks_ddp *)ctx)->params[i];
    const lks_param *p = &param->p;
    uint64_t parts[3] = {XXH3_64bits(p->name, strlen(p->name)), p->count, param->tensor < 0};
    return XXH3_64bits(parts, sizeof parts);
}

static void show_param(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const struct lks__ddp_param *param = &((const lks_ddp *)ctx)->params[i];
    const lks_param *p = &param->p;
    snprintf(out, LKS__LIST_TEXT, "%s with %zu elements%s", lks__shown(p->name, 64), p->count,
             param->tensor < 0 ? ", frozen" : "");
}

enum { OPTIONS = 7 };

static lks_status same_options(const lks_ddp *d, const lks__reducer_config *config, bool checks)
{
    int W = lks_comm_world_size(d->comm);
    double mine[OPTIONS] = {
        d->V, d->A, (double)config->bucket_bytes, config->wire, d->weight, d->overwrites, checks};
    static const char *const names[OPTIONS] = {"virtual_ranks", "micro_steps", "bytes of a bucket",
                                               "wire",          "weight",      "overwrites",
                                               "LOCKSTEP_CHECK"};
    double *all = calloc((size_t)W, sizeof mine);
    if (all == NULL)
        return lks__comm_fail_call(d->comm, lks__no_memory("for the options of %d ranks", W));
    lks_status st = lks_comm_all_gather(d->comm, mine, all, sizeof mine, LKS_UINT8);
    for (int i = 0; i < OPTIONS * W && st == LKS_OK; i++)
        if (all[i] != all[i % OPTIONS])
            st = lks__fail(LKS_ERR_DIVERGED, "%s: %.17g on rank %d, and %.17g on rank 0",
                           names[i % OPTIONS], all[i], i / OPTIONS, all[i % OPTIONS]);
    free(all);
    return st;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static lks_status copy_params(lks_ddp *d, const lks_param *params, size_t n)
{
    d->params = calloc(n, sizeof *d->params);
    d->param_of = calloc(n, sizeof *d->param_of);
    d->used = calloc(2 * (n + 1), 1);
    d->table.tensors = calloc(n, sizeof *d->table.tensors);
    if (d->params == NULL || d->param_of == NULL || d->used == NULL || d->table.tensors == NULL)
        return lks__no_memory("for a list of %zu parameters", n);
    d->was_used = d->used + n + 1;
    d->n_params = n;
    for (size_t i = 0; i < n; i++) {
        d->params[i].p = params[i];
        d->params[i].p.name = strdup(params[i].name);
        LKS__MEMORY(d->params[i].p.name, "for the name of parameter %zu", i);
    }
    return LKS_OK;
}

/* Make a group of each trained parameter. The last parameter is group 0: backward finishes it
 * first. */
static lks_status lay_out(lks_ddp *d)
{
    lks__table *t = &d->table;
    for (size_t i = 0; i < d->n_params; i++) {
        struct lks__ddp_param *p = &d->params[i];
        p->tensor = p->p.grad == NULL && !d->own ? -1 : (int)t->n_tensors;
        if (p->tensor < 0)
            continue;
        lks__table_tensor *tensor = &t->tensors[p->tensor];
        snprintf(tensor->name, sizeof tensor->name, "%s", p->p.name);
        tensor->n_dims = 1;
        tensor->shape[0] = tensor->count = p->p.count;
        d->param_of[t->n_tensors++] = (int)i;
    }
    t->n_groups = (int)t->n_tensors;
    for (int i = 0; i < t->n_groups; i++)
        t->tensors[i].group = t->n_groups - 1 - i;
    return lks__table_lay_out(t);
}

size_t lks__ddp_tally_bytes(const lks_ddp *d)
{
    int W = lks_comm_world_size(d->comm);
    size_t most = (size_t)((d->V + W - 1) / W);
    return most * sizeof(struct lks__ddp_tally) + d->n_params + 1;
}

/* The gradients are in the last arena. A leaf is in an earlier one if the rank has other nodes to
 * hold, and is copied there (copy_gradient() in params.c). */
static void own_gradients(lks_ddp *d)
{
    const lks__memory *m = lks__reducer_memory(d->inner);
    for (size_t i = 0; i < d->table.n_tensors; i++)
        d->params[d->param_of[i]].p.grad =
            m->arena[m->config.n_arenas - 1] + d->table.tensors[i].offset;
}

/* The sum of a step's weights, in the order of gather() in params.c; 1: they aren't known. */
static double sum_of_weights(int V, int A, double weight)
{
    double leaf = 0, sum = 0;
    for (int m = 0; m < A; m++)
        leaf += weight;
    for (int v = 0; v < V; v++)
        sum += leaf;
    return weight > 0 ? sum : 1;
}

/* This rank's memory. */
static lks_status open_own(lks_ddp *d, const lks_param *params, size_t n, bool checks)
{
    int W = lks_comm_world_size(d->comm);
    LKS__TRY(copy_params(d, params, n));
    LKS__TRY(lay_out(d));
    d->exchange = calloc((size_t)W + 1, lks__ddp_tally_bytes(d));
    LKS__MEMORY(d->exchange, "to compare the parameters of %d ranks", W);
    d->all = d->exchange + lks__ddp_tally_bytes(d);
    if (checks) {
        d->early = calloc(n, sizeof *d->early);
        LKS__MEMORY(d->early, "to check the marks of %zu parameters", n);
    }
    return LKS_OK;
}

static lks_status open_inner(lks_ddp *d, const lks__reducer_config *config, bool checks)
{
    LKS__CALLED_BY(DDP_OPEN);
    const lks__list list = {d, d->n_params, hash_param, show_param};
    LKS__TRY(lks__list_compare(d->comm, "ranks were given different parameters", &list, false));
    LKS__TRY(same_options(d, config, checks));
    d->ex.k = d->comm->exec.k;
    d->device = lks__device_cpu(&d->ex);
    LKS__TRY(lks__reducer_open(config, d->comm, &d->table, &d->device, &d->inner));
    if (d->own)
        own_gradients(d);
    return LKS_OK;
}

/* Check the arguments of lks_ddp_open(), and fill in the reducer's config from them. */
static lks_status read_options(const lks_comm *comm, const lks_param *params, size_t n_params,
                               const lks_ddp_options *options, lks__reducer_config *config)
{
    if (n_params == 0 || n_params > INT32_MAX)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: %zu parameters: 1 to %d are possible",
                         n_params, INT32_MAX);
    const int W = lks_comm_world_size(comm);
    const int V = options->virtual_ranks == 0 ? W : options->virtual_ranks;
    const int A = options->micro_steps == 0 ? 1 : options->micro_steps;
    const double mb = options->bucket_mb == 0 ? 25 : options->bucket_mb;
    LKS__TRY(lks__params_check_numbers(V, W, A, mb));
    LKS__TRY(lks__params_check_list(params, n_params, options->own_gradients));
    if (options->wire != LKS_WIRE_FLOAT32 && options->wire != LKS_WIRE_BFLOAT16)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: there is no wire format %d",
                         (int)options->wire);
    if (!(options->weight >= 0 && isfinite(options->weight)))
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_open: the weight is %g: it is the number of samples of each "
                         "micro-step, or 0 if they differ",
                         options->weight);
    *config = (lks__reducer_config){.V = V,
                                    .A = A,
                                    .bucket_bytes = (size_t)(mb * 1048576.0),
                                    .first_bytes = 1 << 20,
                                    .divisor = sum_of_weights(V, A, options->weight),
                                    .wire = options->wire};
    return lks__params_check_weight("lks_ddp_open", config->divisor);
}

lks_status lks_ddp_open(lks_comm *comm, const lks_param *params, size_t n_params,
                        const lks_ddp_options *options, lks_ddp **ddp_p)
{
    LKS__FLOAT_MODE();
    static const lks_ddp_options defaults;
    lks__reducer_config config;
    bool checks;
    LKS__NEED("lks_ddp_open", ddp_p);
    *ddp_p = NULL;
    LKS__NEED("lks_ddp_open", comm);
    LKS__NEED("lks_ddp_open", params);
    if (options == NULL)
        options = &defaults;
    LKS__TRY(lks__comm_fail_alone(comm, read_options(comm, params, n_params, options, &config)));
    LKS__TRY(lks__comm_check_open(comm, "lks_ddp_open"));
    LKS__TRY(lks__comm_fail_alone(comm, lks__check_is_on(&checks)));
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    lks_ddp *d = calloc(1, sizeof *d);
    if (d == NULL)
        return lks__comm_fail_call(comm, lks__no_memory("for data-parallel state"));
    d->comm = comm;
    d->norm = -1;
    d->V = config.V;
    d->A = config.A;
    d->own = options->own_gradients;
    d->overwrites = options->overwrites;
    d->weight = options->weight;
    d->first = d->v = lks__first_leaf(d->V, W, rank);
    d->end = lks__first_leaf(d->V, W, rank + 1);
    lks_status st = lks__comm_fail_alone(comm, open_own(d, params, n_params, checks));
    LKS__THEN(st, open_inner(d, &config, checks));
    if (st != LKS_OK) {
        lks_ddp_close(d);
        return st;
    }
    d->number = ++comm->n_ddps;
    *ddp_p = d;
    return LKS_OK;
}

void lks_ddp_close(lks_ddp *d)
{
    LKS__FLOAT_MODE();
    if (d == NULL)
        return;
    lks__reducer_close(d->inner);
    free(d->early);
    for (size_t i = 0; i < d->n_params; i++)
        free((char *)d->params[i].p.name);
    lks__table_free(&d->table);
    free(d->params);
    free(d->param_of);
    free(d->used);
    free(d->exchange);
    free(d);
}
