/* model/optim/sgd.c - stochastic gradient descent with momentum, like torch.optim.SGD without
 * dampening and Nesterov; the decay is added to the gradient (coupled). For each element:
 *   g = clip * gradient + weight_decay * p;  momentum = beta1 * momentum + g;
 *   p -= lr * momentum.
 * Vectors, gains and scales don't decay. */
#include "model/optim/optimizer.h"

static const float *part(const lks__optim *o, const lks__optim_arenas *arenas, lks__operand which,
                         size_t piece)
{
    const lks__optim_place at = lks__optim_place_of(o, arenas, piece);
    return which == LKS__PARAMS  ? at.params
           : which == LKS__GRADS ? at.grads
                                 : arenas->state[0] + o->pieces[piece].state[0];
}

void lks__optim_blend(const lks__optim *o, const lks__optim_arenas *arenas, lks__param_kind kind,
                      double a, lks__operand y, double b, lks__operand x)
{
    lks__blend list = {.a = (float)a, .b = (float)b};
    size_t next = 0, of[LKS__UPDATE_PIECES];
    while ((list.n_pieces = lks__optim_next(o, kind, &next, of)) > 0) {
        for (size_t p = 0; p < list.n_pieces; p++) {
            const lks__piece *piece = &o->pieces[of[p]];
            list.piece[p].y = y == LKS__PARAMS ? lks__optim_place_of(o, arenas, of[p]).params
                                               : arenas->state[0] + piece->state[0];
            list.piece[p].x = part(o, arenas, x, of[p]);
            list.piece[p].n = piece->count;
        }
        o->device->layers->update_blend(o->device->ex, &list);
    }
}

static void update(const lks__optim *o, const lks__rates *r, const lks__optim_arenas *a)
{
    for (int k = 0; k < LKS__N_PARAM_KINDS; k++) {
        const lks__param_kind kind = (lks__param_kind)k;
        lks__optim_blend(o, a, kind, r->beta1, LKS__MOMENTUM, r->clip, LKS__GRADS);
        if (kind != LKS__PARAM_SCALAR && r->weight_decay != 0.0)
            lks__optim_blend(o, a, kind, 1.0, LKS__MOMENTUM, r->weight_decay, LKS__PARAMS);
        lks__optim_blend(o, a, kind, 1.0, LKS__PARAMS, -r->lr[kind], LKS__MOMENTUM);
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
