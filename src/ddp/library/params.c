/* ddp/library/params.c - lockstep/ddp.h: the caller's own loop drives the reducer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/cpu.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/samelist.h"
#include "compute/cpu/device.h"
#include "ddp/library/params_check.h"
#include "ddp/reducer.h"
#include "ddp/verify.h"
#include "lockstep/ddp.h"

struct param {
    lks_param p; /* with our copy of its name */
    int tensor;  /* index in the table of trained parameters; -1: frozen */
    bool ready;  /* marked in this micro-step */
};

/* Sums over the micro-batches of one virtual rank. */
struct tally {
    double weight, loss;
};

struct lks_ddp {
    lks_comm *comm;
    /* All virtual ranks, and micro-steps of each; this rank's virtual ranks are [first, end). */
    int V, A, first, end;
    struct param *params;
    size_t n_params;
    int *param_of; /* [n_tensors] */
    lks__table table;
    lks__kernels kernels;
    lks__exec ex;
    lks__device device;
    lks__reducer *inner;

    uint64_t steps;    /* completed, for messages */
    int v, m;          /* next in turn: micro-step m of virtual rank v */
    bool begun;        /* v has begun */
    lks_status failed; /* a step failed for the reason in why[] */
    char why[512];
    float *leaf;                   /* sum of v's gradients */
    int next_group;                /* next to announce in the last micro-step */
    unsigned char *exchange, *all; /* buffers of gather() */
    unsigned char *used;     /* [n_params] in the current step; used[n_params]: any was marked */
    unsigned char *was_used; /* `used` of the last step, over all ranks */
};

/* --- the same parameters everywhere ----------------------------------------------------------- */

static uint64_t hash_param(const void *ctx, uint64_t i)
{
    const lks_param *p = &((const lks_ddp *)ctx)->params[i].p;
    uint64_t parts[3] = {XXH3_64bits(p->name, strlen(p->name)), p->count, p->grad == NULL};
    return XXH3_64bits(parts, sizeof parts);
}

static void show_param(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const lks_param *p = &((const lks_ddp *)ctx)->params[i].p;
    char name[64];
    snprintf(out, LKS__LIST_TEXT, "%s with %zu elements%s",
             lks__escape(name, sizeof name, p->name, strlen(p->name)), p->count,
             p->grad == NULL ? ", frozen" : "");
}

static lks_status same_options(const lks_ddp *d, size_t bucket_bytes)
{
    int W = lks_comm_world_size(d->comm);
    uint64_t mine[3] = {(uint64_t)d->V, (uint64_t)d->A, bucket_bytes};
    static const char *const names[3] = {"virtual_ranks", "micro_steps", "bytes of a bucket"};
    uint64_t *all = calloc((size_t)W, sizeof mine);
    if (all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the options of %d ranks", W);
    lks_status st = lks_comm_all_gather(d->comm, mine, all, sizeof mine, LKS_UINT8);
    for (int i = 0; i < 3 * W && st == LKS_OK; i++)
        if (all[i] != all[i % 3])
            st =
                lks__fail(LKS_ERR_DIVERGED, "%s: %llu on rank %d, and %llu on rank 0", names[i % 3],
                          (unsigned long long)all[i], i / 3, (unsigned long long)all[i % 3]);
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
        return lks__fail(LKS_ERR_NOMEM, "no memory for a list of %zu parameters", n);
    d->was_used = d->used + n + 1;
    d->n_params = n;
    for (size_t i = 0; i < n; i++) {
        d->params[i].p = params[i];
        d->params[i].p.name = strdup(params[i].name);
        if (d->params[i].p.name == NULL)
            return lks__fail(LKS_ERR_NOMEM, "no memory for the name of parameter %zu", i);
    }
    return LKS_OK;
}

/* Make a group of each trained parameter. The last parameter is group 0: backward finishes it
 * first. */
static lks_status lay_out(lks_ddp *d)
{
    lks__table *t = &d->table;
    for (size_t i = 0; i < d->n_params; i++) {
        struct param *p = &d->params[i];
        p->tensor = p->p.grad == NULL ? -1 : (int)t->n_tensors;
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

static size_t exchange_bytes(const lks_ddp *d)
{
    int W = lks_comm_world_size(d->comm);
    size_t most = (size_t)((d->V + W - 1) / W);
    return most * sizeof(struct tally) + d->n_params + 1;
}

static lks_status open_inner(lks_ddp *d, size_t bucket_bytes)
{
    LKS__CALLED_BY(DDP_OPEN);
    int W = lks_comm_world_size(d->comm);
    d->exchange = calloc((size_t)W + 1, exchange_bytes(d));
    if (d->exchange == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to compare the parameters of %d ranks", W);
    d->all = d->exchange + exchange_bytes(d);
    const lks__list list = {d, d->n_params, hash_param, show_param};
    LKS__TRY(lks__list_compare(d->comm, "ranks were given different parameters", &list, false));
    LKS__TRY(same_options(d, bucket_bytes));
    LKS__TRY(lks__kernels_open(LKS__CPU_PLAIN, &d->kernels));
    d->ex.k = &d->kernels;
    lks__reducer_config config = {.V = d->V, .A = d->A, .bucket_bytes = bucket_bytes, .sums = true};
    d->device = lks__device_cpu(&d->ex);
    return lks__reducer_open(&config, d->comm, &d->table, &d->device, &d->inner);
}

lks_status lks_ddp_open(lks_comm *comm, const lks_param *params, size_t n_params,
                        const lks_ddp_options *options, lks_ddp **ddp_p)
{
    LKS__FLOAT_MODE();
    static const lks_ddp_options defaults;
    if (comm == NULL || params == NULL || ddp_p == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: an argument is NULL");
    if (n_params == 0 || n_params > INT32_MAX)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_open: %zu parameters: 1 to %d are possible",
                         n_params, INT32_MAX);
    if (options == NULL)
        options = &defaults;
    int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    int V = options->virtual_ranks == 0 ? W : options->virtual_ranks;
    int A = options->micro_steps == 0 ? 1 : options->micro_steps;
    double mb = options->bucket_mb == 0 ? 25 : options->bucket_mb;
    LKS__TRY(lks__params_check_numbers(V, W, A, mb));
    LKS__TRY(lks__params_check_list(params, n_params));
    lks_ddp *d = calloc(1, sizeof *d);
    if (d == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for data-parallel state");
    d->comm = comm;
    d->V = V;
    d->A = A;
    d->first = d->v = lks__first_leaf(V, W, rank);
    d->end = lks__first_leaf(V, W, rank + 1);
    lks_status st = copy_params(d, params, n_params);
    if (st == LKS_OK)
        st = lay_out(d);
    if (st == LKS_OK)
        st = open_inner(d, (size_t)(mb * 1048576.0));
    if (st != LKS_OK) {
        lks_ddp_close(d);
        return st;
    }
    *ddp_p = d;
    return LKS_OK;
}

void lks_ddp_close(lks_ddp *d)
{
    LKS__FLOAT_MODE();
    if (d == NULL)
        return;
    lks__reducer_close(d->inner);
    for (size_t i = 0; i < d->n_params; i++)
        free((char *)d->params[i].p.name);
    lks__table_free(&d->table);
    free(d->params);
    free(d->param_of);
    free(d->used);
    free(d->exchange);
    free(d);
}

int lks_ddp_first(const lks_ddp *d)
{
    return d != NULL ? d->first : 0;
}

int lks_ddp_end(const lks_ddp *d)
{
    return d != NULL ? d->end : 0;
}

static lks_status check_open(const lks_ddp *d, const char *call)
{
    if (d == NULL)
        return lks__fail(LKS_ERR_ARG, "%s: ddp is NULL: lks_ddp_open() gives one", call);
    LKS__TRY(lks__comm_check_fork(d->comm, call));
    if (lks__comm_is_closed(d->comm))
        return lks__fail(LKS_ERR_ARG,
                         "%s: its group was closed already: call lks_ddp_close() first, and "
                         "lks_comm_close() last",
                         call);
    return LKS_OK;
}

/* check_open(), and no step may have failed. */
static lks_status check_whole(const lks_ddp *d, const char *call)
{
    LKS__TRY(check_open(d, call));
    if (d->failed != LKS_OK)
        return lks__fail(d->failed,
                         "%s: a step of this lks_ddp failed before, and lks_ddp_close() is due: %s",
                         call, d->why);
    return LKS_OK;
}

/* Let later calls fail for the recorded reason, because buckets are missing or the group has
 * failed. */
static lks_status give_up(lks_ddp *d, lks_status st)
{
    d->failed = st;
    snprintf(d->why, sizeof d->why, "%s", lks_last_error());
    return st;
}

/* --- values ----------------------------------------------------------------------------------- */

lks_status lks_ddp_broadcast(lks_ddp *d)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(DDP_BROADCAST);
    LKS__TRY(check_open(d, "lks_ddp_broadcast"));
    for (size_t i = 0; i < d->n_params; i++) {
        const lks_param *p = &d->params[i].p;
        LKS__TRY(lks_comm_broadcast(d->comm, p->value, p->count, LKS_FLOAT32, 0));
    }
    return LKS_OK;
}

lks_status lks_ddp_verify(lks_ddp *d)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(DDP_VERIFY);
    LKS__TRY(check_open(d, "lks_ddp_verify"));
    lks__named_floats *values = malloc(d->n_params * sizeof *values);
    if (values == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to compare parameters");
    for (size_t i = 0; i < d->n_params; i++) {
        const lks_param *p = &d->params[i].p;
        values[i] = (lks__named_floats){p->name, p->value, p->count};
    }
    lks_status st = lks__named_floats_verify(d->comm, values, d->n_params);
    free(values);
    return st;
}

/* --- the step --------------------------------------------------------------------------------- */

static bool in_last(const lks_ddp *d)
{
    return d->v == d->end - 1 && d->m == d->A - 1;
}

static lks_status out_of_turn(const lks_ddp *d, const char *call)
{
    if (d->begun)
        return lks__fail(
            LKS_ERR_ARG,
            "%s: out of turn: micro-step %d of %d of virtual rank %d is under way, and "
            "lks_ddp_accumulate() ends it",
            call, d->m + 1, d->A, d->v);
    if (d->v == d->end)
        return lks__fail(LKS_ERR_ARG,
                         "%s: out of turn: all virtual ranks of this rank are done, and "
                         "lks_ddp_step() is due",
                         call);
    return lks__fail(LKS_ERR_ARG, "%s: out of turn: lks_ddp_begin() of virtual rank %d is due",
                     call, d->v);
}

static void begin_micro(lks_ddp *d)
{
    for (size_t i = 0; i < d->n_params; i++)
        d->params[i].ready = false;
    d->next_group = 0;
    if (in_last(d))
        lks__reducer_last(d->inner);
}

static struct tally *tally_of(const lks_ddp *d, int v)
{
    return (struct tally *)d->exchange + (v - d->first);
}

lks_status lks_ddp_begin(lks_ddp *d, int v)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_begin"));
    if (d->begun || v != d->v || v == d->end)
        return out_of_turn(d, "lks_ddp_begin");
    if (v == d->first) {
        lks__comm_note_for(d->comm, d->steps, "gradients");
        lks__reducer_begin(d->inner);
        memset(d->used, 0, d->n_params + 1);
    }
    for (size_t i = 0; i < d->n_params; i++)
        if (d->params[i].tensor >= 0)
            memset(d->params[i].p.grad, 0, d->params[i].p.count * sizeof(float));
    *tally_of(d, v) = (struct tally){0, 0};
    d->leaf = lks__reducer_leaf(d->inner);
    d->begun = true;
    d->m = 0;
    begin_micro(d);
    return LKS_OK;
}

static void copy_gradient(lks_ddp *d, const struct param *p)
{
    memcpy(d->leaf + d->table.tensors[p->tensor].offset, p->p.grad, p->p.count * sizeof(float));
}

/* Announce groups in order, whatever the order of the marks, so that all ranks start the same
 * reductions. */
static void announce(lks_ddp *d, bool all)
{
    for (; d->next_group < d->table.n_groups; d->next_group++) {
        const struct param *p = &d->params[d->param_of[d->table.n_groups - 1 - d->next_group]];
        if (!p->ready && !all)
            return;
        if (!p->ready)
            copy_gradient(d, p);
        lks__reducer_group_done(d->inner, d->next_group);
    }
}

lks_status lks_ddp_mark_ready(lks_ddp *d, size_t param)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_mark_ready"));
    if (!d->begun)
        return out_of_turn(d, "lks_ddp_mark_ready");
    if (param >= d->n_params)
        return lks__fail(LKS_ERR_ARG, "lks_ddp_mark_ready: parameter %zu of %zu", param,
                         d->n_params);
    struct param *p = &d->params[param];
    if (p->ready)
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_mark_ready: %s was marked twice in micro-step %d of virtual rank "
                         "%d: mark a shared parameter when its last use is done",
                         p->p.name, d->m + 1, d->v);
    p->ready = true;
    d->used[param] = d->used[d->n_params] = 1;
    if (p->tensor >= 0 && in_last(d)) {
        copy_gradient(d, p);
        announce(d, false);
    }
    return LKS_OK;
}

lks_status lks_ddp_add_loss(lks_ddp *d, double loss)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_add_loss"));
    if (!d->begun)
        return out_of_turn(d, "lks_ddp_add_loss");
    tally_of(d, d->v)->loss += loss;
    return LKS_OK;
}

lks_status lks_ddp_accumulate(lks_ddp *d, double weight)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_accumulate"));
    if (!d->begun)
        return out_of_turn(d, "lks_ddp_accumulate");
    if (!(weight >= 0 && isfinite(tally_of(d, d->v)->weight + weight)))
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_accumulate: the weight is %g: it is the number of samples, "
                         "finite and at least 0",
                         weight);
    tally_of(d, d->v)->weight += weight;
    lks_comm_beat(d->comm);
    if (d->m + 1 < d->A) {
        d->m++;
        begin_micro(d);
        return LKS_OK;
    }
    if (in_last(d))
        announce(d, true);
    else
        for (int i = 0; i < d->table.n_groups; i++)
            copy_gradient(d, &d->params[d->param_of[i]]);
    d->begun = false;
    d->v++;
    lks_status st = lks__reducer_leaf_end(d->inner);
    return st == LKS_OK ? LKS_OK : give_up(d, st);
}

/* Add the weights and losses of all virtual ranks in their order; find out which parameters were
 * used. */
static lks_status gather(lks_ddp *d, struct tally *sum)
{
    int W = lks_comm_world_size(d->comm);
    size_t bytes = exchange_bytes(d), used_at = bytes - d->n_params - 1;
    memcpy(d->exchange + used_at, d->used, d->n_params + 1);
    LKS__TRY(lks_comm_all_gather(d->comm, d->exchange, d->all, bytes, LKS_UINT8));
    *sum = (struct tally){0, 0};
    memset(d->was_used, 0, d->n_params + 1);
    for (int r = 0; r < W; r++) {
        const unsigned char *theirs = d->all + (size_t)r * bytes;
        int n = lks__first_leaf(d->V, W, r + 1) - lks__first_leaf(d->V, W, r);
        for (int i = 0; i < n; i++) {
            struct tally one;
            memcpy(&one, theirs + (size_t)i * sizeof one, sizeof one);
            sum->weight += one.weight;
            sum->loss += one.loss;
        }
        for (size_t i = 0; i <= d->n_params; i++)
            d->was_used[i] |= theirs[used_at + i];
    }
    return LKS_OK;
}

static void store_means(lks_ddp *d, const float *sums, double weight)
{
    float scale = weight > 0 ? (float)(1.0 / weight) : 0.0f;
    for (int t = 0; t < d->table.n_groups; t++) {
        const lks_param *p = &d->params[d->param_of[t]].p;
        const float *sum = sums + d->table.tensors[t].offset;
        for (size_t i = 0; i < p->count; i++)
            p->grad[i] = sum[i] * scale;
    }
}

static lks_status finish(lks_ddp *d, struct tally *sum, double *norm_p)
{
    const float *sums;
    LKS__TRY(lks__reducer_finish(d->inner, &sums, norm_p));
    LKS__TRY(gather(d, sum));
    store_means(d, sums, sum->weight);
    return lks__memory_release(lks__reducer_memory(d->inner));
}

lks_status lks_ddp_step(lks_ddp *d, lks_ddp_result *result)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(DDP_STEP);
    double norm;
    struct tally sum;
    LKS__TRY(check_whole(d, "lks_ddp_step"));
    if (d->begun || d->v != d->end)
        return out_of_turn(d, "lks_ddp_step");
    lks__comm_note_for(d->comm, d->steps, "lks_ddp_step");
    lks_status st = finish(d, &sum, &norm);
    if (st != LKS_OK)
        return give_up(d, st);
    d->v = d->first;
    lks__comm_note_for(d->comm, ++d->steps, "between steps");
    LKS__TRY(lks__params_check_weight(sum.weight)); /* the same sum on all ranks */
    if (result != NULL) {
        double scale = sum.weight > 0 ? 1.0 / sum.weight : 0.0;
        *result = (lks_ddp_result){sum.weight, sum.loss * scale, norm * scale};
    }
    return LKS_OK;
}

bool lks_ddp_used(const lks_ddp *d, size_t param)
{
    return d != NULL && param < d->n_params && (d->was_used[param] || !d->was_used[d->n_params]);
}
