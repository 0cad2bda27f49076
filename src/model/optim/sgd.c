/* model/optim/sgd.c - stochastic gradient descent with momentum, like torch.optim.SGD without
 * dampening and Nesterov; the decay is added to the gradient (coupled). For each element:
 *   g = clip * gradient + weight_decay * p;  momentum = beta1 * momentum + g;
 *   p -= lr * momentum.
 * Vectors, gains and scales don't decay. */
#include "model/optim/optimizer.h"

enum operand { PARAMS, GRADS, MOMENTUM };

static const float *part(const lks__optim_arenas *arenas, enum operand which, const lks__piece *p)
{
    return which == PARAMS  ? arenas->params + p->first
           : which == GRADS ? arenas->grads + p->first
                            : arenas->state[0] + p->state[0];
}

/* y = a y + b x on the pieces of one kind; y is PARAMS or MOMENTUM. */
static void blend(const lks__optim *o, const lks__optim_arenas *arenas, lks__param_kind kind,
                  double a, enum operand y, double b, enum operand x)
{
    lks__blend list = {.a = (float)a, .b = (float)b};
    for (size_t i = 0; i < o->n_pieces; i++) {
        const lks__piece *piece = &o->pieces[i];
        if (o->table->tensors[piece->tensor].kind != kind)
            continue;
        if (list.n_pieces == LKS__UPDATE_PIECES) {
            o->device->layers->update_blend(o->device->ex, &list);
            list.n_pieces = 0;
        }
        size_t p = list.n_pieces++;
        list.piece[p].y =
            y == PARAMS ? arenas->params + piece->first : arenas->state[0] + piece->state[0];
        list.piece[p].x = part(arenas, x, piece);
        list.piece[p].n = piece->count;
    }
    if (list.n_pieces > 0)
        o->device->layers->update_blend(o->device->ex, &list);
}

static void update(const lks__optim *o, const lks__rates *r, const lks__optim_arenas *a)
{
    for (int k = 0; k < LKS__N_PARAM_KINDS; k++) {
        const lks__param_kind kind = (lks__param_kind)k;
        blend(o, a, kind, r->beta1, MOMENTUM, r->clip, GRADS);
        if (kind != LKS__PARAM_SCALAR && r->weight_decay != 0.0)
            blend(o, a, kind, 1.0, MOMENTUM, r->weight_decay, PARAMS);
        blend(o, a, kind, 1.0, PARAMS, -r->lr[kind], MOMENTUM);
    }
}

const lks__optimizer lks__optimizer_sgd = {
    .name = "sgd",
    .about = "SGD with momentum beta1",
    .state = {[LKS__PARAM_EMBED] = {".momentum"},
              [LKS__PARAM_HEAD] = {".momentum"},
              [LKS__PARAM_SCALAR] = {".momentum"},
              [LKS__PARAM_MATRIX] = {".momentum"}},
    .decays = true,
    .update = update,
};
