/* ddp/library/params.c - lockstep/ddp.h: the caller's own loop drives the reducer. */
#include "ddp/library/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "base/number/stream.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "ddp/library/params_check.h"
#include "ddp/verify.h"

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
    LKS__TRY(check_open(d, "lks_ddp_broadcast"));
    LKS__CALLED_ON(DDP_BROADCAST, d->number);
    for (size_t i = 0; i < d->n_params; i++) {
        const lks_param *p = &d->params[i].p;
        LKS__TRY(lks_comm_broadcast(d->comm, p->value, p->count, LKS_FLOAT32, 0));
    }
    return LKS_OK;
}

lks_status lks_ddp_verify(lks_ddp *d)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_open(d, "lks_ddp_verify"));
    LKS__CALLED_ON(DDP_VERIFY, d->number);
    lks__named_floats *values = malloc(d->n_params * sizeof *values);
    if (values == NULL)
        return lks__comm_fail_call(d->comm, lks__no_memory("to compare parameters"));
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
            "%s: out of turn: lks_ddp_accumulate() is due, at the end of micro-step %d of virtual "
            "rank %d (both counted from 0)",
            call, d->m, d->v);
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

static struct lks__ddp_tally *tally_of(const lks_ddp *d, int v)
{
    return (struct lks__ddp_tally *)d->exchange + (v - d->first);
}

/* True if the gradients are too large to stay in the caches between two passes over them. */
static bool exceeds_caches(const lks_ddp *d)
{
    return d->table.count * sizeof(float) >= 32 << 20;
}

/* to = from * scale, or zeros if `from` is NULL. */
static void stream_scaled(const lks_ddp *d, float *to, const float *from, float scale, size_t n)
{
    enum { PIECE = 1024 }; /* stays in the first-level cache */
    float piece[PIECE] = {0};
    if (from != NULL && scale == 1) {
        lks__stream(to, from, n);
        lks__stream_end();
        return;
    }
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t some = n - at < PIECE ? n - at : PIECE;
        if (from != NULL) {
            memcpy(piece, from + at, some * sizeof(float));
            d->ex.k->scale(piece, scale, some);
        }
        lks__stream(to + at, piece, some);
    }
    lks__stream_end();
}

static void clear_gradient(const lks_ddp *d, const struct lks__ddp_param *p)
{
    if (exceeds_caches(d))
        stream_scaled(d, p->p.grad, NULL, 0, p->p.count);
    else
        memset(p->p.grad, 0, p->p.count * sizeof(float));
}

lks_status lks_ddp_begin(lks_ddp *d, int v)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_begin"));
    if (d->begun || v != d->v || v == d->end)
        return out_of_turn(d, "lks_ddp_begin");
    lks_comm_beat(d->comm);
    if (v == d->first) {
        d->norm = -1;
        lks__comm_note_for(d->comm, d->steps, "gradients");
        lks__reducer_begin(d->inner);
        memset(d->used, 0, d->n_params + 1);
    }
    for (size_t i = 0; i < d->n_params; i++) {
        if (d->params[i].tensor < 0)
            continue;
        if (!d->overwrites)
            clear_gradient(d, &d->params[i]);
        else if (d->early != NULL)
            lks__unstored_fill(&d->params[i].p);
    }
    *tally_of(d, v) = (struct lks__ddp_tally){0, 0};
    d->leaf = lks__reducer_leaf(d->inner);
    d->begun = true;
    d->m = 0;
    begin_micro(d);
    return LKS_OK;
}

static void copy_gradient(lks_ddp *d, const struct lks__ddp_param *p)
{
    float *leaf = d->leaf + d->table.tensors[p->tensor].offset;
    if (leaf != p->p.grad)
        memcpy(leaf, p->p.grad, p->p.count * sizeof(float));
}

/* Announce groups in order, whatever the order of the marks, so that all ranks start the same
 * reductions. */
static void announce(lks_ddp *d, bool all)
{
    for (; d->next_group < d->table.n_groups; d->next_group++) {
        const struct lks__ddp_param *p =
            &d->params[d->param_of[d->table.n_groups - 1 - d->next_group]];
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
    LKS__CALLED_ON(DDP_STEP, d->number);
    if (!d->begun)
        return out_of_turn(d, "lks_ddp_mark_ready");
    lks_comm_beat(d->comm);
    if (param >= d->n_params)
        return lks__fail(
            LKS_ERR_ARG,
            "lks_ddp_mark_ready: there is no parameter %zu: the list has %zu, from 0 to %zu", param,
            d->n_params, d->n_params - 1);
    struct lks__ddp_param *p = &d->params[param];
    if (p->ready)
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_mark_ready: %s was marked twice in micro-step %d of virtual rank "
                         "%d (both counted from 0): mark a shared parameter when its last use is "
                         "done",
                         lks__shown(p->p.name, 128), d->m, d->v);
    p->ready = true;
    lks__early_mark_note(d->early, param, &p->p);
    d->used[param] = d->used[d->n_params] = 1;
    if (p->tensor >= 0 && in_last(d)) {
        copy_gradient(d, p);
        if (d->early == NULL) /* else when the marks are checked: a sum may replace the gradient */
            announce(d, false);
    }
    const lks_status st = lks__reducer_failed(d->inner); /* its text is this thread's */
    return st == LKS_OK ? LKS_OK : give_up(d, st);
}

lks_status lks_ddp_add_loss(lks_ddp *d, double loss)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_add_loss"));
    if (!d->begun)
        return out_of_turn(d, "lks_ddp_add_loss");
    lks_comm_beat(d->comm);
    tally_of(d, d->v)->loss += loss;
    return LKS_OK;
}

/* Without samples, backward stores no gradient. */
static void clear_unmarked(const lks_ddp *d)
{
    for (size_t i = 0; i < d->n_params; i++)
        if (d->params[i].tensor >= 0 && !d->params[i].ready)
            clear_gradient(d, &d->params[i]);
}

static lks_status check_gradient(const lks_ddp *d, size_t i)
{
    const struct lks__ddp_param *p = &d->params[i];
    if (d->overwrites && d->m == 0 && p->tensor >= 0)
        LKS__TRY(lks__unstored_find(&p->p, d->v));
    return p->ready ? lks__early_mark_compare(d->early[i], &p->p, d->v, d->m) : LKS_OK;
}

/* A wrong gradient may have been sent, so the step can't be completed. The other ranks needn't wait
 * for it. */
static lks_status refuse_gradient(lks_ddp *d)
{
    return lks__comm_fail_call(d->comm, give_up(d, LKS_ERR_ARG));
}

static lks_status check_gradients(lks_ddp *d)
{
    for (size_t i = 0; d->early != NULL && i < d->n_params; i++) {
        if (check_gradient(d, i) != LKS_OK)
            return refuse_gradient(d);
        if (in_last(d) && !d->own && !d->params[i].ready) /* for check_settled() */
            lks__early_mark_note(d->early, i, &d->params[i].p);
    }
    return LKS_OK;
}

/* Other ranks may have added to the library's own gradients since. */
static lks_status check_settled(lks_ddp *d)
{
    for (size_t i = 0; d->early != NULL && !d->own && i < d->n_params; i++)
        if (lks__settled_compare(d->early[i], &d->params[i].p) != LKS_OK)
            return refuse_gradient(d);
    return LKS_OK;
}

lks_status lks_ddp_accumulate(lks_ddp *d, double weight)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_accumulate"));
    LKS__CALLED_ON(DDP_STEP, d->number); /* to which the sums that begin here belong */
    if (!d->begun)
        return out_of_turn(d, "lks_ddp_accumulate");
    if (!(weight >= 0 && isfinite(weight)))
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_accumulate: the weight is %g: it is the number of samples, "
                         "finite and at least 0",
                         weight);
    if (d->weight > 0 && weight != d->weight)
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_accumulate: the weight is %.9g, and lks_ddp_open() was given "
                         "%.9g as that of every micro-step: leave that option 0 if weights differ",
                         weight, d->weight);
    if (d->overwrites && d->m == 0 && weight == 0)
        clear_unmarked(d);
    LKS__TRY(check_gradients(d));
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
static lks_status gather(lks_ddp *d, struct lks__ddp_tally *sum)
{
    int W = lks_comm_world_size(d->comm);
    size_t bytes = lks__ddp_tally_bytes(d), used_at = bytes - d->n_params - 1;
    memcpy(d->exchange + used_at, d->used, d->n_params + 1);
    LKS__TRY(lks_comm_all_gather(d->comm, d->exchange, d->all, bytes, LKS_UINT8));
    *sum = (struct lks__ddp_tally){0, 0};
    memset(d->was_used, 0, d->n_params + 1);
    for (int r = 0; r < W; r++) {
        const unsigned char *theirs = d->all + (size_t)r * bytes;
        int n = lks__first_leaf(d->V, W, r + 1) - lks__first_leaf(d->V, W, r);
        for (int i = 0; i < n; i++) {
            struct lks__ddp_tally one;
            memcpy(&one, theirs + (size_t)i * sizeof one, sizeof one);
            sum->weight += one.weight;
            sum->loss += one.loss;
        }
        for (size_t i = 0; i <= d->n_params; i++)
            d->was_used[i] |= theirs[used_at + i];
    }
    return LKS_OK;
}

static void store_means(lks_ddp *d, const float *sums, float scale)
{
    for (int t = 0; t < d->table.n_groups; t++) {
        const lks_param *p = &d->params[d->param_of[t]].p;
        const float *from = sums + d->table.tensors[t].offset;
        if (from == p->grad && scale == 1)
            continue;
        if (from == p->grad)
            d->ex.k->scale(p->grad, scale, p->count);
        else if (exceeds_caches(d))
            stream_scaled(d, p->grad, from, scale, p->count);
        else
            d->ex.k->sum_scaled(p->grad, from, NULL, scale, NULL, p->count);
    }
}

/* Turns a sum over all samples into their mean; 0 if there were none. */
static double mean_factor(double weight)
{
    return weight > 0 ? 1.0 / weight : 0.0;
}

static lks_status finish(lks_ddp *d, struct lks__ddp_tally *sum, double *norm_p)
{
    const float *sums;
    LKS__TRY(lks__reducer_finish(d->inner, &sums, norm_p));
    LKS__TRY(gather(d, sum)); /* after it no rank waits for sums, which are made of all gradients */
    /* With the same weight everywhere, the reducer has divided already. */
    const double factor = d->weight > 0 ? 1.0 : mean_factor(sum->weight);
    *norm_p *= (float)factor; /* as the gradients are */
    /* Only one rank of a host has the sum where its gradients are. The others read it there. */
    const bool in_place = sums + d->table.tensors[0].offset == d->params[d->param_of[0]].p.grad;
    if (!in_place)
        store_means(d, sums, (float)factor);
    LKS__TRY(lks__memory_release(lks__reducer_memory(d->inner)));
    if (in_place)
        store_means(d, sums, (float)factor);
    return LKS_OK;
}

lks_status lks_ddp_step(lks_ddp *d, lks_ddp_result *result)
{
    LKS__FLOAT_MODE();
    double norm;
    struct lks__ddp_tally sum;
    LKS__TRY(check_whole(d, "lks_ddp_step"));
    LKS__CALLED_ON(DDP_STEP, d->number);
    if (d->begun || d->v != d->end)
        return out_of_turn(d, "lks_ddp_step");
    LKS__TRY(check_settled(d));
    lks__comm_note_for(d->comm, d->steps, "lks_ddp_step");
    lks_status st = d->early != NULL ? lks__ddp_check_step(d) : LKS_OK;
    LKS__THEN(st, finish(d, &sum, &norm));
    if (st != LKS_OK)
        return give_up(d, st);
    d->v = d->first;
    lks__comm_note_for(d->comm, ++d->steps, "between steps");
    LKS__TRY(lks__params_check_weight("lks_ddp_step", sum.weight)); /* the same on all ranks */
    d->norm = norm;
    if (result != NULL)
        *result = (lks_ddp_result){sum.weight, sum.weight > 0 ? sum.loss / sum.weight : 0, norm};
    return LKS_OK;
}

float *lks_ddp_gradient(const lks_ddp *d, size_t param)
{
    return d != NULL && param < d->n_params ? d->params[param].p.grad : NULL;
}

lks_status lks_ddp_clip(lks_ddp *d, double max_norm, double *factor_p)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_whole(d, "lks_ddp_clip"));
    if (!(max_norm > 0))
        return lks__fail(LKS_ERR_ARG, "lks_ddp_clip: max_norm is %g: it must be more than 0",
                         max_norm);
    if (d->norm == -1)
        return lks__fail(LKS_ERR_ARG,
                         "lks_ddp_clip: out of turn: call it once after lks_ddp_step(), "
                         "before the next lks_ddp_begin()");
    if (!isfinite(d->norm))
        return lks__fail(
            LKS_ERR_NAN,
            "lks_ddp_clip: the norm of the gradient is %g: skip this update, or end with an error",
            d->norm);
    const double factor = lks__clip_factor(d->norm, max_norm);
    for (size_t i = 0; i < d->n_params && factor < 1; i++)
        if (d->params[i].tensor >= 0)
            d->ex.k->scale(d->params[i].p.grad, (float)factor, d->params[i].p.count);
    d->norm = -1;
    if (factor_p != NULL)
        *factor_p = factor;
    return LKS_OK;
}

bool lks_ddp_used(const lks_ddp *d, size_t param)
{
    return d != NULL && param < d->n_params && d->params[param].tensor >= 0 &&
           (d->was_used[param] || !d->was_used[d->n_params]);
}
