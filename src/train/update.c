/* train/update.c - the update of the parameters. */
#include "model/optim/schedule.h"
#include "train/procedure/procedure.h"
#include "train/step.h"

lks_status lks__train_update(const lks__trainer *t, lks__step_result *r)
{
    const lks__settings *s = &t->run.s;
    lks__rates rates = {
        .weight_decay = s->weight_decay,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .momentum = lks__muon_momentum(s->muon_momentum_warmup_start, s->muon_momentum,
                                       s->muon_momentum_warmup_steps, (int64_t)t->state.iter),
        .orthogonal_decay = s->muon_weight_decay,
        .ns_steps = (int)s->muon_backend_steps,
        .t = t->state.iter + 1,
        .clip = lks__clip_factor(r->grad_norm, s->grad_clip),
    };
    const lks__optim_arenas arenas = {
        .params = t->state.memory->params.dev,
        .state = {t->state.memory->moments[0].dev, t->state.memory->moments[1].dev},
        .grads = lks__memory_begin_update(t->state.memory, r->grads),
    };
    r->lr = t->run.procedure->rates(&t->run, &t->state, &rates);
    lks__optim_update(&t->work.optim, &rates, &arenas);
    return lks__memory_end_update(t->state.memory);
}
