/* model/optim/muon.c - Muon (Jordan et al., 2024) for the layers' matrices, Adam without decay for
 * the rest, as parameter-golf's train_gpt.py groups them. The matrices may decay before the update.
 * A rank updates whole matrices. */
#include "model/optim/optimizer.h"

double lks__muon_flops(size_t rows, size_t cols, int steps)
{
    double n = (double)(rows < cols ? rows : cols), size = (double)rows * (double)cols;
    return steps * (3.0 * n * size + n * n * n);
}

static double cost(const lks__table_tensor *t)
{
    return lks__muon_flops(t->shape[0], t->shape[1], 1);
}

static size_t work_bytes(const lks__device *device, const lks__table_tensor *t)
{
    return device->layers->update_muon_bytes(device->ex, t->shape[0], t->shape[1]);
}

static void update_matrices(const lks__optim *o, const lks__rates *r, const lks__optim_arenas *a)
{
    lks__muon_list list = {.lr = r->orthogonal_lr,
                           .momentum = r->momentum,
                           .clip = r->clip,
                           .ns_steps = r->ns_steps,
                           .work = o->work,
                           .work_bytes = o->work_bytes,
                           .beat = o->beat};
    size_t next = 0, of[LKS__UPDATE_PIECES];
    while ((list.n_pieces = lks__optim_next(o, LKS__PARAM_MATRIX, &next, of)) > 0) {
        for (size_t p = 0; p < list.n_pieces; p++) {
            const lks__piece *piece = &o->pieces[of[p]];
            const lks__table_tensor *t = &o->table->tensors[piece->tensor];
            const lks__optim_place at = lks__optim_place_of(o, a, of[p]);
            list.piece[p].rows = t->shape[0];
            list.piece[p].cols = t->shape[1];
            list.piece[p].params = at.params;
            list.piece[p].momentum = a->state[0] + piece->state[0];
            list.piece[p].grads = at.grads;
        }
        o->device->layers->update_muon(o->device->ex, &list);
    }
}

static void update(const lks__optim *o, const lks__rates *r, const lks__optim_arenas *a)
{
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        if (kind != LKS__PARAM_MATRIX)
            lks__adamw_update(o, r, a, (lks__param_kind)kind, 0.0);
    if (r->orthogonal_decay != 0.0)
        lks__optim_blend(o, a, LKS__PARAM_MATRIX, 1.0 - r->orthogonal_lr * r->orthogonal_decay,
                         LKS__PARAMS, 0.0, LKS__MOMENTUM);
    update_matrices(o, r, a);
}

const lks__optimizer lks__optimizer_muon = {
    .name = "muon",
    .about = "Muon for the matrices of the layers, Adam for the rest",
    .state = {[LKS__PARAM_EMBED] = {".exp_avg", ".exp_avg_sq"},
              [LKS__PARAM_HEAD] = {".exp_avg", ".exp_avg_sq"},
              [LKS__PARAM_SCALAR] = {".exp_avg", ".exp_avg_sq"},
              [LKS__PARAM_MATRIX] = {".momentum"}},
    .whole = {[LKS__PARAM_MATRIX] = true},
    .cost = cost,
    .work_bytes = work_bytes,
    .adam = true,
    .update = update,
};
