#include "optim/golf.h"

#include "optim/adamw.h"

void lks__golf_update(const lks__device *device, const lks__table *table, lks__muon *muon,
                      size_t first, size_t end, const lks__golf_step *s, float *params,
                      float *exp_avg, float *exp_avg_sq, const float *grads)
{
    lks__adam_step adam = {
        .lr = {[LKS__PARAM_EMBED] = s->embed_lr * s->lr_scale,
               [LKS__PARAM_HEAD] = s->head_lr * s->lr_scale,
               [LKS__PARAM_SCALAR] = s->scalar_lr * s->lr_scale},
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->eps,
        .t = s->t,
        .clip = s->clip,
    };
    lks__muon_step step = {.lr = s->matrix_lr * s->lr_scale,
                           .momentum = s->momentum,
                           .clip = s->clip,
                           .ns_steps = s->ns_steps};
    lks__adam_update(device, table, first, end, &adam, params, exp_avg, exp_avg_sq, grads);
    lks__muon_update(muon, &step, params, exp_avg, grads);
}
