/* model/optim/adamw.c - AdamW (Loshchilov and Hutter, 2019), with the formula and order of
 * operations of torch.optim.AdamW, which nanoGPT uses. Vectors, gains and scales don't decay. */
#include "model/optim/optimizer.h"

void lks__adamw_update(const lks__optim *o, const lks__rates *r, const lks__optim_arenas *a,
                       lks__param_kind kind, double weight_decay)
{
    lks__adamw_list list = {.lr = r->lr[kind],
                            .beta1 = r->beta1,
                            .beta2 = r->beta2,
                            .eps = r->eps,
                            .weight_decay = weight_decay,
                            .t = r->t,
                            .clip = r->clip};
    size_t next = 0, of[LKS__UPDATE_PIECES];
    while ((list.n_pieces = lks__optim_next(o, kind, &next, of)) > 0) {
        for (size_t p = 0; p < list.n_pieces; p++) {
            const lks__piece *piece = &o->pieces[of[p]];
            const lks__optim_place at = lks__optim_place_of(o, a, of[p]);
            list.piece[p].params = at.params;
            list.piece[p].exp_avg = a->state[0] + piece->state[0];
            list.piece[p].exp_avg_sq = a->state[1] + piece->state[1];
            list.piece[p].grads = at.grads;
            list.piece[p].n = piece->count;
        }
        o->device->layers->update_adamw(o->device->ex, &list);
    }
}

static void update(const lks__optim *o, const lks__rates *r, const lks__optim_arenas *a)
{
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        lks__adamw_update(o, r, a, (lks__param_kind)kind,
                          kind == LKS__PARAM_SCALAR ? 0.0 : r->weight_decay);
}

const lks__optimizer lks__optimizer_adamw = {
    .name = "adamw",
    .about = "AdamW",
    .state = {[LKS__PARAM_EMBED] = {".exp_avg", ".exp_avg_sq"},
              [LKS__PARAM_HEAD] = {".exp_avg", ".exp_avg_sq"},
              [LKS__PARAM_SCALAR] = {".exp_avg", ".exp_avg_sq"},
              [LKS__PARAM_MATRIX] = {".exp_avg", ".exp_avg_sq"}},
    .decays = true,
    .adam = true,
    .update = update,
};
