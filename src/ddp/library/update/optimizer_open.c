#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/cpu.h"
#include "base/status.h"
#include "comm/backend.h"
#include "comm/hier/pieces.h"
#include "comm/liveness.h"
#include "comm/samelist.h"
#include "ddp/library/checkpoint_files.h"
#include "ddp/library/early_mark.h"
#include "ddp/library/params_check.h"
#include "ddp/library/update/optimizer.h"

static const lks__optimizer *const rules[] = {
    [LKS_ADAMW] = &lks__optimizer_adamw,
    [LKS_SGD] = &lks__optimizer_sgd,
    [LKS_MUON] = &lks__optimizer_muon,
};

static const lks__param_kind kinds[] = {
    [LKS_PARAM_VECTOR] = LKS__PARAM_SCALAR,
    [LKS_PARAM_MATRIX] = LKS__PARAM_MATRIX,
    [LKS_PARAM_EMBED] = LKS__PARAM_EMBED,
};

/* --- arguments -------------------------------------------------------------------------------- */

static const char *fault_of(const lks_optimizer_param *p)
{
    size_t count;
    if (p->name == NULL || p->name[0] == '\0')
        return "it has no name";
    if (p->value == NULL)
        return "its value is NULL";
    if (p->grad == NULL)
        return "its grad is NULL";
    if (p->kind < LKS_PARAM_VECTOR || p->kind > LKS_PARAM_EMBED)
        return "its kind is none of LKS_PARAM_VECTOR, LKS_PARAM_MATRIX and LKS_PARAM_EMBED";
    if (__builtin_mul_overflow(p->rows, p->cols, &count) || count == 0 ||
        count > SIZE_MAX / (4 * sizeof(float)))
        return "its rows or columns are 0, or more than memory can address";
    if (((uintptr_t)p->value | (uintptr_t)p->grad) % sizeof(float) != 0)
        return "its values or its gradient aren't aligned as floats are";
    return NULL;
}

/* Names are those of moments in checkpoints. */
static lks_status check_apart(const lks_optimizer_param *params, size_t n)
{
    struct lks__range *ranges = malloc(2 * n * sizeof *ranges);
    const char **names = malloc(n * sizeof *names);
    lks_status st = LKS_OK;
    if (ranges == NULL || names == NULL)
        st = lks__no_memory("to compare %zu parameters", n);
    for (size_t i = 0; i < n && st == LKS_OK; i++) {
        const lks_optimizer_param *p = &params[i];
        names[i] = p->name;
        ranges[2 * i] = (struct lks__range){p->value, p->value + p->rows * p->cols, i};
        ranges[2 * i + 1] = (struct lks__range){p->grad, p->grad + p->rows * p->cols, i};
    }
    LKS__THEN(st,
              lks__check_apart("lks_optimizer_open", "parameter", LKS__TIED_ADVICE, ranges, 2 * n));
    LKS__THEN(st, lks__check_unique("lks_optimizer_open", names, n));
    free(ranges);
    free(names);
    return st;
}

static lks_status check_params(const lks_optimizer_param *params, size_t n)
{
    char shown[64];
    if (n == 0 || n > INT32_MAX)
        return lks__fail(LKS_ERR_ARG, "lks_optimizer_open: %zu parameters: 1 to %d are possible", n,
                         INT32_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *why = fault_of(&params[i]), *name = params[i].name;
        if (why != NULL)
            return lks__fail(LKS_ERR_ARG, "lks_optimizer_open: parameter %zu (%s): %s", i,
                             lks__escape(shown, sizeof shown, name != NULL ? name : "",
                                         name != NULL ? strlen(name) : 0),
                             why);
    }
    return check_apart(params, n);
}

static uint64_t hash_param(const void *ctx, uint64_t i)
{
    const lks_optimizer *o = ctx;
    const lks_optimizer_param *p = &o->params[i];
    uint64_t parts[6] = {XXH3_64bits(p->name, strlen(p->name)),
                         p->kind,
                         p->rows,
                         p->cols,
                         o->checks,
                         XXH3_64bits(o->optim.optimizer->name, strlen(o->optim.optimizer->name))};
    return XXH3_64bits(parts, sizeof parts);
}

static void show_param(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const lks_optimizer *o = ctx;
    const lks_optimizer_param *p = &o->params[i];
    static const char *const words[] = {[LKS_PARAM_VECTOR] = "vector",
                                        [LKS_PARAM_MATRIX] = "matrix",
                                        [LKS_PARAM_EMBED] = "embedding"};
    snprintf(out, LKS__LIST_TEXT, "%s, %s of %zu x %zu, for %s%s", lks__shown(p->name, 64),
             words[p->kind], p->rows, p->cols, o->optim.optimizer->name,
             o->checks ? ", with LOCKSTEP_CHECK=1" : "");
}

/* --- opening ---------------------------------------------------------------------------------- */

static lks_status copy_params(lks_optimizer *o, const lks_optimizer_param *params, size_t n)
{
    o->params = calloc(n, sizeof *o->params);
    o->n_params = n;
    if (o->params == NULL || lks__table_open(&o->table, n, 1) != LKS_OK)
        return lks__no_memory("for a list of %zu parameters", n);
    for (size_t i = 0; i < n; i++) {
        lks__table_tensor *t = &o->table.tensors[o->table.n_tensors++];
        o->params[i] = params[i];
        o->params[i].name = strdup(params[i].name);
        LKS__MEMORY(o->params[i].name, "for the name of parameter %zu", i);
        t->n_dims = params[i].cols == 1 ? 1 : 2;
        t->shape[0] = params[i].rows;
        t->shape[1] = params[i].cols;
        t->count = params[i].rows * params[i].cols;
        t->kind = kinds[params[i].kind];
    }
    return lks__table_lay_out(&o->table);
}

/* The blocks of rank r. */
static lks__optim_share share_of(const lks_optimizer *o, int r, size_t range[1][2])
{
    range[0][0] = lks__share_start(o->table.n_blocks, o->W, r);
    range[0][1] = lks__share_start(o->table.n_blocks, o->W, r + 1);
    return (lks__optim_share){o->W, r, 1, (const size_t(*)[2])range};
}

static lks_status open_pieces(lks_optimizer *o, const lks__optimizer *rule)
{
    size_t range[1][2];
    lks__optim_share share = share_of(o, o->rank, range);
    LKS__TRY(lks__optim_open(rule, &o->device, &o->table, &share, NULL, 0, &o->optim));
    o->optim.beat = lks__comm_beats(o->comm);
    o->places = calloc(o->optim.n_pieces + 1, sizeof *o->places);
    o->shares = calloc((size_t)o->W, sizeof *o->shares);
    if (o->places == NULL || o->shares == NULL)
        return lks__no_memory("for the parts of an optimizer");
    for (size_t i = 0; i < o->optim.n_pieces; i++) {
        const lks__piece *piece = &o->optim.pieces[i];
        const size_t at = piece->first - o->table.tensors[piece->tensor].offset;
        const lks_optimizer_param *p = &o->params[piece->tensor];
        o->places[i] = (lks__optim_place){p->value + at, p->grad + at};
    }
    for (int r = 0; r < o->W; r++) {
        share = share_of(o, r, range);
        LKS__TRY(lks__optim_list(rule, &o->table, &share, &o->shares[r]));
    }
    return o->W > 1 ? lks__exchange_open(o) : LKS_OK;
}

/* A rank touches only the pages of its own pieces. */
static lks_status open_state(lks_optimizer *o)
{
    for (int s = 0; s < LKS__OPTIM_STATES; s++) {
        o->state[s] = calloc(o->optim.state_floats[s] + 1, sizeof(float));
        LKS__MEMORY(o->state[s], "for %zu moments", o->optim.state_floats[s]);
    }
    o->tensors = calloc(LKS__OPTIM_STATES * o->table.n_tensors + 1, sizeof *o->tensors);
    LKS__MEMORY(o->tensors, "for a list of moments");
    o->tensors[o->n_tensors++] =
        (lks_tensor){.name = LKS__STEPS_NAME, .dtype = LKS_INT64, .data = &o->listed_steps};
    o->listed_steps = lks__stale_steps(o);
    for (size_t i = 0; i < o->table.n_tensors; i++)
        for (int s = 0; s < LKS__OPTIM_STATES; s++) {
            const lks__table_tensor *t = &o->table.tensors[i];
            const char *suffix = lks__optimizer_state(o->optim.optimizer, t, s);
            char *name;
            if (suffix == NULL)
                continue;
            if (asprintf(&name, "%s%s", o->params[i].name, suffix) < 0)
                return lks__no_memory("for the names of moments");
            o->tensors[o->n_tensors++] = (lks_tensor){
                name, LKS_FLOAT32, t->n_dims, {t->shape[0], t->shape[1]}, o->state[s] + t->offset};
        }
    return LKS_OK;
}

/* This rank's memory and tables. */
static lks_status open_own(lks_optimizer *o, const lks__optimizer *rule,
                           const lks_optimizer_param *params, size_t n)
{
    lks__cpu_level level;
    LKS__TRY(copy_params(o, params, n));
    LKS__TRY(lks__cpu_level_guest(&level));
    lks__kernels_open_own(level, &o->kernels);
    LKS__TRY(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, NULL, &o->pool));
    o->ex = (lks__exec){.k = &o->kernels, .pool = o->pool};
    o->device = lks__device_cpu(&o->ex);
    LKS__TRY(open_pieces(o, rule));
    LKS__TRY(open_state(o));
    return lks__check_is_on(&o->checks);
}

/* If ranks have failed, all get the status and the sentence of the first of them. */
static lks_status share_failure(lks_optimizer *o, lks_status st)
{
    int32_t first = st == LKS_OK ? o->W : o->rank;
    struct {
        int32_t status;
        char text[400];
    } said = {st, ""};
    if (st != LKS_OK)
        snprintf(said.text, sizeof said.text, "%s", lks_last_error());
    LKS__TRY(lks_comm_all_reduce(o->comm, &first, 1, LKS_INT32, LKS_MIN));
    if (first == o->W)
        return LKS_OK;
    LKS__TRY(lks_comm_broadcast(o->comm, &said, sizeof said, LKS_UINT8, first));
    said.text[sizeof said.text - 1] = '\0';
    return lks__fail((lks_status)said.status, "lks_optimizer_open: rank %d: %s", (int)first,
                     said.text);
}

static lks_status open_optimizer(lks_optimizer *o, const lks__optimizer *rule,
                                 const lks_optimizer_param *params, size_t n)
{
    const lks__list list = {o, n, hash_param, show_param};
    const lks_status st = open_own(o, rule, params, n);
    if (o->comm == NULL)
        return st;
    LKS__TRY(share_failure(o, st));
    return lks__list_compare(o->comm, "ranks were given different parameters", &list, false);
}

lks_status lks_optimizer_open(lks_comm *comm, lks_optimizer_rule rule,
                              const lks_optimizer_param *params, size_t n,
                              lks_optimizer **optimizer_p)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(OPTIMIZER_OPEN);
    LKS__NEED("lks_optimizer_open", optimizer_p);
    *optimizer_p = NULL;
    LKS__NEED("lks_optimizer_open", params);
    if (rule < LKS_ADAMW || rule > LKS_MUON)
        return lks__fail(LKS_ERR_ARG,
                         "lks_optimizer_open: there is no rule %d: use LKS_ADAMW, LKS_SGD or "
                         "LKS_MUON",
                         (int)rule);
    LKS__TRY(lks__comm_fail_alone(comm, check_params(params, n)));
    if (comm != NULL)
        LKS__TRY(lks__comm_check_open(comm, "lks_optimizer_open"));
    lks_optimizer *o = calloc(1, sizeof *o);
    if (o == NULL)
        return lks__comm_fail_call(comm, lks__no_memory("for an optimizer"));
    o->comm = comm;
    o->W = comm != NULL ? lks_comm_world_size(comm) : 1;
    o->rank = comm != NULL ? lks_comm_rank(comm) : 0;
    if (comm != NULL)
        lks__comm_hold(comm);
    lks_status st = open_optimizer(o, rules[rule], params, n);
    if (st != LKS_OK) {
        lks_optimizer_close(o);
        return st;
    }
    o->number = comm != NULL ? ++comm->n_optimizers : 0;
    *optimizer_p = o;
    return LKS_OK;
}

void lks_optimizer_close(lks_optimizer *o)
{
    LKS__FLOAT_MODE();
    if (o == NULL)
        return;
    for (int r = 0; r < o->W && o->shares != NULL; r++)
        lks__optim_close(&o->shares[r]);
    if (o->optim.optimizer != NULL)
        lks__optim_close(&o->optim);
    lks__exchange_close(o->exchange);
    for (size_t i = 1; i < o->n_tensors; i++)
        free((char *)(uintptr_t)o->tensors[i].name);
    for (size_t i = 0; i < o->n_params && o->params != NULL; i++)
        free((char *)(uintptr_t)o->params[i].name);
    for (int s = 0; s < LKS__OPTIM_STATES; s++)
        free(o->state[s]);
    lks__table_free(&o->table);
    lks__pool_close(o->pool);
    if (o->comm != NULL)
        lks__comm_release(o->comm);
    free(o->tensors);
    free(o->shares);
    free(o->places);
    free(o->params);
    free(o);
}
