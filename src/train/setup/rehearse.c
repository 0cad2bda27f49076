#include "train/procedure/procedure.h"
#include "train/setup/trainer.h"

/* Every operation of a step and of an evaluation, without data. The parameters' memory stands for
 * all arenas, because nothing is computed. */
static lks_status rehearse(void *ctx)
{
    lks__trainer *t = ctx;
    const lks__run *run = &t->run;
    float *memory = t->state.memory->params.dev;
    const lks__micro_batch batch = {.B = (int)run->s.batch_size, .T = (int)run->s.block_size};
    const lks__backward backward = {.grads = memory};
    const lks__rates rates = {.ns_steps = (int)run->s.muon_backend_steps, .t = 1, .clip = 1.0};
    lks__model_train(t->work.model, memory, &batch, &backward, t->work.losses.dev);
    if (run->procedure->rehearse_evaluation != NULL)
        LKS__TRY(run->procedure->rehearse_evaluation(t));
    return lks__optim_rehearse(&t->work.optim, &rates, memory);
}

lks_status lks__train_rehearse(lks__trainer *t, const lks__ckpt *resume)
{
    const json_t *kept = resume != NULL ? json_object_get(resume->state, "algorithms") : NULL;
    return lks__session_rehearse(&t->ses, json_string_value(kept), rehearse, t);
}
