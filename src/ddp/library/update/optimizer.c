#include "ddp/library/update/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/cpu.h"
#include "base/status.h"
#include "comm/backend.h"
#include "comm/samelist.h"
#include "ddp/library/checkpoint_files.h"

static lks_status check_open(const lks_optimizer *o, const char *call)
{
    if (o == NULL)
        return lks__fail(LKS_ERR_ARG, "%s: the optimizer is NULL: lks_optimizer_open() gives one",
                         call);
    return o->comm != NULL ? lks__comm_check_open(o->comm, call) : LKS_OK;
}

static lks_status check_rates(const lks_rates *r)
{
    const struct {
        const char *name;
        double value;
        double below;
    } rates[] = {
        {"learning_rate", r->learning_rate, INFINITY},
        {"weight_decay", r->weight_decay, INFINITY},
        {"beta1", r->beta1, 1},
        {"beta2", r->beta2, 1},
        {"epsilon", r->epsilon, INFINITY},
        {"matrix_rate", r->matrix_rate, INFINITY},
        {"matrix_momentum", r->matrix_momentum, 1},
        {"matrix_decay", r->matrix_decay, INFINITY},
    };
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        if (!(rates[i].value >= 0 && (float)rates[i].value < rates[i].below))
            return lks__fail(LKS_ERR_ARG, "lks_optimizer_step: %s is %g: it must be %s",
                             rates[i].name, rates[i].value,
                             rates[i].below == 1 ? "at least 0 and below 1"
                                                 : "a finite number of at least 0");
    if (r->matrix_steps < 0 || r->matrix_steps > 100)
        return lks__fail(LKS_ERR_ARG,
                         "lks_optimizer_step: matrix_steps is %d: 0 to 100 are possible",
                         r->matrix_steps);
    return LKS_OK;
}

/* 0 means 0, so rates that the caller has left out must not pass for a choice. */
static lks_status check_chosen(const lks_optimizer *o, const lks_rates *r)
{
    const bool muon = o->optim.optimizer == &lks__optimizer_muon;
    bool moments = false, matrices = false; /* which kinds of updates this optimizer has */
    for (size_t i = 0; i < o->table.n_tensors; i++)
        *(muon && o->params[i].kind == LKS_PARAM_MATRIX ? &matrices : &moments) = true;
    moments &= o->optim.optimizer != &lks__optimizer_sgd;
    if (r->weight_decay != 0 && !o->optim.optimizer->decays)
        return lks__fail(LKS_ERR_ARG,
                         "lks_optimizer_step: weight_decay is %g, but Muon doesn't apply it: "
                         "matrix_decay is the decay of its matrices, and other parameters don't "
                         "decay",
                         r->weight_decay);
    if (moments && ((float)r->epsilon == 0 || r->beta2 == 0))
        return lks__fail(
            LKS_ERR_ARG,
            "lks_optimizer_step: %s: Adam can't use that, and 0 doesn't mean a default. "
            "Usual values are beta1 = 0.9, beta2 = 0.95 and epsilon = 1e-8",
            (float)r->epsilon == 0 ? "epsilon is 0 as a float" : "beta2 is 0");
    if (matrices && r->matrix_steps == 0)
        return lks__fail(
            LKS_ERR_ARG,
            "lks_optimizer_step: matrix_steps is 0: Muon needs iterations, and 0 doesn't mean "
            "a default. Usual values are matrix_rate = 0.02, matrix_momentum = 0.95 and "
            "matrix_steps = 5");
    return LKS_OK;
}

struct inputs {
    const lks_optimizer *o;
    const lks_rates *rates;
};

/* Entry 0: the rates; then each parameter's value and gradient. */
static uint64_t hash_input(const void *ctx, uint64_t i)
{
    const struct inputs *in = ctx;
    const lks_rates *r = in->rates;
    const double rates[] = {r->learning_rate, r->weight_decay,    r->beta1,
                            r->beta2,         r->epsilon,         r->matrix_rate,
                            r->matrix_decay,  r->matrix_momentum, r->matrix_steps};
    if (i == 0)
        return XXH3_64bits(rates, sizeof rates);
    const lks_optimizer_param *p = &in->o->params[(i - 1) / 2];
    return XXH3_64bits(i % 2 == 1 ? p->value : p->grad, p->rows * p->cols * sizeof(float));
}

static void show_input(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT])
{
    const struct inputs *in = ctx;
    const lks_rates *r = in->rates;
    if (i == 0) {
        snprintf(out, LKS__LIST_TEXT, "rates %g %g %g %g %g %g %g %g %d, in lks_rates' order,",
                 r->learning_rate, r->weight_decay, r->beta1, r->beta2, r->epsilon, r->matrix_rate,
                 r->matrix_momentum, r->matrix_decay, r->matrix_steps);
        return;
    }
    const lks_optimizer_param *p = &in->o->params[(i - 1) / 2];
    snprintf(out, LKS__LIST_TEXT, "%s of %s with hash %016" PRIx64,
             i % 2 == 1 ? "values" : "gradient", lks__shown(p->name, 64), hash_input(ctx, i));
}

static lks_status compare_inputs(const lks_optimizer *o, const lks_rates *r)
{
    const struct inputs in = {o, r};
    const lks__list list = {&in, 1 + 2 * (uint64_t)o->table.n_tensors, hash_input, show_input};
    return lks__list_compare(o->comm, "lks_optimizer_step: ranks have different inputs", &list,
                             true);
}

/* Continue from the number that a load has stored in the list. */
static lks_status take_steps(lks_optimizer *o, const char *call)
{
    if (o->listed_steps == lks__stale_steps(o))
        return LKS_OK;
    if (o->listed_steps < 0 || o->listed_steps == INT64_MAX)
        return lks__fail(LKS_ERR_ARG,
                         "%s: " LKS__STEPS_NAME " is %" PRIi64
                         ": the checkpoint was saved without its latest moments. Load another "
                         "one, and call lks_optimizer_state() before each save",
                         call, o->listed_steps);
    o->steps = o->listed_steps;
    return LKS_OK;
}

lks_status lks_optimizer_step(lks_optimizer *o, const lks_rates *r)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_open(o, "lks_optimizer_step"));
    LKS__CALLED_ON(OPTIMIZER_STEP, o->number);
    if (r == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_optimizer_step: rates is NULL");
    LKS__TRY(check_rates(r));
    LKS__TRY(check_chosen(o, r));
    LKS__TRY(take_steps(o, "lks_optimizer_step"));
    if (o->comm != NULL && o->checks)
        LKS__TRY(compare_inputs(o, r));
    lks__rates rates = {.orthogonal_lr = r->matrix_rate,
                        .weight_decay = r->weight_decay,
                        .beta1 = r->beta1,
                        .beta2 = r->beta2,
                        .eps = r->epsilon,
                        .momentum = r->matrix_momentum,
                        .orthogonal_decay = r->matrix_decay,
                        .ns_steps = r->matrix_steps,
                        .t = (uint64_t)++o->steps,
                        .clip = 1};
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        rates.lr[kind] = r->learning_rate;
    const lks__optim_arenas arenas = {.state = {o->state[0], o->state[1]}, .places = o->places};
    lks__optim_update(&o->optim, &rates, &arenas);
    if (o->W > 1 && o->listed_steps >= 0)
        lks__exchange_drop(o);
    o->listed_steps = o->comm != NULL ? lks__stale_steps(o) : o->steps;
    return lks__exchange_pieces(o, -1);
}

lks_status lks_optimizer_state(lks_optimizer *o, const lks_tensor **tensors_p, size_t *n_p)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_open(o, "lks_optimizer_state"));
    LKS__CALLED_ON(OPTIMIZER_STATE, o->number);
    LKS__NEED("lks_optimizer_state", tensors_p);
    LKS__NEED("lks_optimizer_state", n_p);
    LKS__TRY(take_steps(o, "lks_optimizer_state"));
    for (int s = 0; s < LKS__OPTIM_STATES; s++)
        LKS__TRY(lks__exchange_pieces(o, s));
    o->listed_steps = o->steps;
    *tensors_p = o->tensors;
    *n_p = o->n_tensors;
    return LKS_OK;
}
