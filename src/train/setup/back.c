/* train/setup/back.c - go back to a checkpoint after a loss or gradient that isn't finite. */
#include <string.h>

#include "train/checkpoint.h"
#include "train/procedure/procedure.h"
#include "train/setup/trainer.h"
#include "weights/choice/same_checkpoint.h"

/* Load the checkpoint that rank 0 goes back to into the existing arenas. */
static lks_status load_target(lks__trainer *t, uint64_t bad_iter)
{
    lks__ckpt ckpt;
    memset(&ckpt, 0, sizeof ckpt);
    lks_status st = lks__same_target(&t->ses, t->run.s.out_dir, bad_iter, &ckpt);
    LKS__THEN(st, lks__session_agree(&t->ses, lks__state_load(t, &ckpt)));
    lks__ckpt_close(&ckpt);
    return st;
}

lks_status lks__trainer_go_back(lks__trainer *t)
{
    const lks__state before = t->state;
    const lks__checks checks = t->checks;
    const uint64_t bad_iter = before.iter - 1;
    t->checks.divergence.recorded = false;
    lks_comm_note(t->ses.comm, bad_iter, "going back");
    /* Only the model goes back; data and time continue. The sampler's generators have drawn the bad
     * batch, and the batches of evaluations before it. */
    lks__batch_sampler_mark(t->state.sampler);
    LKS__TRY(load_target(t, bad_iter));
    lks__batch_sampler_back(t->state.sampler);
    lks_status st = LKS_OK;
    if (t->ses.world.rank == 0)
        st = lks__ckpt_went_back(t->run.s.out_dir, t->state.iter);
    LKS__TRY(lks__session_agree(&t->ses, st));
    t->state.data_shift = before.data_shift + bad_iter + 1 - t->state.iter;
    t->state.segment.data = before.segment.data;
    t->run.procedure->start_data(&t->run, &t->state);
    t->state.nonfinite = before.nonfinite;
    t->state.elapsed_s = before.elapsed_s;
    t->state.elapsed_from = before.elapsed_from;
    t->checks.out_of_time = checks.out_of_time;
    return lks__trainer_agree(t, true);
}
