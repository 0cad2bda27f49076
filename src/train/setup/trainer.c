#include "train/setup/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/system/memory.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "comm/liveness.h"
#include "ddp/verify.h"
#include "model/table/freeze.h"
#include "plan/gradients.h"
#include "report/record/job.h"
#include "report/record/outdir.h"
#include "session/signals.h"
#include "settings/family.h"
#include "train/checkpoint.h"
#include "train/checks/agree.h"
#include "train/checks/divergence.h"
#include "train/checks/recheck.h"
#include "train/procedure/procedure.h"
#include "train/setup/continue.h"
#include "train/setup/fit.h"
#include "train/setup/remember.h"
#include "weights/choice/given.h"
#include "weights/choice/same_checkpoint.h"

/* --- on one rank ----------------------------------------------------------------------------- */

static lks_status open_buffers(lks__trainer *t)
{
    int W = t->ses.world.world_size;
    size_t BT = (size_t)(t->run.s.batch_size * t->run.s.block_size);
    t->work.exchange = calloc((size_t)W + 1, lks__step_message_bytes(t->run.V, t->run.A, W));
    LKS__MEMORY(t->work.exchange, "for the notes of %d ranks", W);
    LKS__TRY(lks__batch_open(t->ses.device, BT, &t->work.batch));
    return lks__mirror_open(t->ses.device, (size_t)t->run.N * sizeof(float), &t->work.losses);
}

/* zero=1 must divide all of the state: a run must not silently need more memory. */
static lks_status check_zero(const lks__run *run, const lks_world *w)
{
    if (run->s.zero == 0)
        return LKS_OK;
    if (!lks__optimizer_divides(lks__optimizer_of(&run->s)))
        return lks__fail(LKS_ERR_CONFIG,
                         "zero=1 divides the optimizer's state block by block, but optimizer=%s "
                         "updates whole matrices: leave --zero out, or use another --optimizer",
                         lks__optimizer_of(&run->s)->name);
    if (!run->shared)
        return lks__fail(LKS_ERR_CONFIG,
                         "zero=1 divides the state over hosts, which have one replica each: "
                         "it needs --replicas=shared");
    if (w->local_world_size == w->world_size)
        return lks__fail(LKS_ERR_CONFIG,
                         "zero=1 divides the state over hosts, but all ranks are on one host and "
                         "share one copy of it already: leave --zero out");
    return LKS_OK;
}

/* Refuse a weight_decay that was given if the optimizer applies none. */
static lks_status check_decay(const lks__settings *s)
{
    if (s->from[LKS__SETTING_weight_decay] < LKS__FROM_FILE || s->weight_decay == 0.0 ||
        lks__optimizer_of(s)->decays)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "weight_decay=%g was given, but optimizer=%s applies no decay: leave it out, "
                     "give --weight_decay=0, or use another --optimizer%s",
                     s->weight_decay, lks__optimizer_of(s)->name,
                     lks__optimizer_of(s) == &lks__optimizer_muon
                         ? "; --muon_weight_decay is the decay of muon's matrices"
                         : "");
}

/* A run that began with weights keeps its recorded tokenizer, if its data have none. */
static lks_status restore_tokenizer(lks__run *run, const lks__ckpt *resume)
{
    lks__meta kept;
    if (run->init_hash[0] == '\0' || run->meta.chars != NULL || run->meta.is_bpe ||
        run->meta.is_bytes)
        return LKS_OK;
    LKS__TRY(lks__state_meta(resume, &kept));
    lks__meta_free(&run->meta);
    run->meta = kept;
    snprintf(run->vocabulary, sizeof run->vocabulary, "%s", run->s.out_dir);
    return LKS_OK;
}

/* Open the weights of init_from. They set the model's settings. */
static lks_status open_weights(lks__run *run)
{
    LKS__TRY(lks__weights_open_init(&run->s, &run->weights));
    LKS__TRY(lks__given_elsewhere(run->weights, run->s.out_dir));
    return lks__settings_begin(&run->s, &run->weights->model, run->weights->shown);
}

/* Copy 16 hex digits of a file; other text gives "". */
static void copy_hash(const char *text, char out[17])
{
    const bool valid = text != NULL && strspn(text, "0123456789abcdef") == 16 && text[16] == '\0';
    snprintf(out, 17, "%s", valid ? text : "");
}

/* Complete the settings without other ranks. `resume` is NULL for a run from scratch. */
static lks_status open_settings(lks__run *run, const lks__session *ses, const lks__ckpt *resume)
{
    if (resume != NULL) {
        copy_hash(lks__json_str(resume->state, "params_hash"), run->resumed_hash);
        copy_hash(lks__json_str(resume->state, "init_hash"), run->init_hash);
        copy_hash(lks__st_metadata(resume->model, "kernels"), run->resumed_fingerprint);
        run->resumed = true;
        run->resumed_asked = lks__asked_of(resume->state);
        lks__settings_defaults(&run->resumed_from);
        LKS__TRY(lks__state_settings(resume, &run->resumed_from));
        lks__choose_optimizer(&run->resumed_from);
        LKS__TRY(lks__settings_resume(&run->s, &run->resumed_from, lks__shown(resume->path, 512)));
    } else if (lks__settings_init(&run->s) == LKS__INIT_WEIGHTS) {
        LKS__TRY(open_weights(run));
    } else if (lks__settings_init(&run->s) == LKS__INIT_RESUME) {
        LKS__TRY(lks__continue_open(run));
    }
    lks__state_choose_dtype(&run->s, ses->device);
    return LKS_OK;
}

/* Open data and table. */
static lks_status open_data(lks__run *run, const lks__session *ses, const lks__ckpt *resume)
{
    const int W = ses->world.world_size, rank = ses->world.rank;
    LKS__TRY(lks__settings_complete(&run->s, W));
    run->begins_segment = run->resumed && !lks__settings_same_batch(&run->s, &run->resumed_from);
    run->shared = run->s.replicas == LKS__replicas_shared;
    run->procedure = lks__procedure_of(&run->s);
    lks__choose_optimizer(&run->s);
    LKS__TRY(check_zero(run, &ses->world));
    LKS__TRY(check_decay(&run->s));
    run->V = (int)run->s.virtual_ranks;
    run->N = (int)run->s.gradient_accumulation_steps;
    run->A = run->N / run->V;
    run->first_v = lks__first_leaf(run->V, W, rank);
    run->end_v = lks__first_leaf(run->V, W, rank + 1);
    LKS__TRY(run->procedure->open_data(run));
    if (resume != NULL)
        LKS__TRY(restore_tokenizer(run, resume));
    lks__escape(run->shown_out_dir, sizeof run->shown_out_dir, run->s.out_dir,
                strlen(run->s.out_dir));
    lks__escape(run->shown_data_dir, sizeof run->shown_data_dir, run->data_dir,
                strlen(run->data_dir));
    run->model_config = lks__state_model_config(&run->s, (uint32_t)run->s.vocab_size);
    LKS__TRY(lks__model_table(&run->model_config, &run->table));
    LKS__TRY(lks__table_freeze(&run->table, run->s.freeze));
    run->trained_params = run->table.trained_params;
    if (run->s.eval_only)
        LKS__TRY(lks__table_freeze_all(&run->table));
    if (resume != NULL)
        LKS__TRY(lks__state_check_params(resume->model, resume->path, &run->table));
    return LKS_OK;
}

/* Open everything that allocates device memory. */
static lks_status open_on_device(lks__trainer *t)
{
    LKS__TRY(lks__model_open(&t->run.model_config, &t->run.table, (int)t->run.s.batch_size,
                             t->ses.device, &t->work.model));
    LKS__TRY(t->run.procedure->open_rest(&t->run, &t->state));
    LKS__TRY(lks__divergence_open(&t->run, &t->checks));
    return open_buffers(t);
}

/* --- with other ranks ------------------------------------------------------------------------ */

static lks_status open_arenas(lks__trainer *t)
{
    lks__reducer_config config = lks__chosen_ddp(&t->run.s);
    if (lks__chosen_may_join(&t->run.s))
        LKS__TRY(lks__session_join(&t->ses, lks__chosen_must_join(&t->run.s)));
    int *owners = calloc(t->run.table.n_tensors, sizeof *owners);
    lks_status st = LKS_OK;
    if (owners == NULL)
        st = lks__no_memory("to divide %zu tensors", t->run.table.n_tensors);
    LKS__THEN(st, lks__optim_assign(lks__optimizer_of(&t->run.s), &t->run.table,
                                    t->ses.world.world_size, owners));
    config.owners = owners;
    st = lks__session_agree(&t->ses, st);
    if (st == LKS_OK)
        st =
            lks__reducer_open(&config, t->ses.comm, &t->run.table, t->ses.device, &t->work.reducer);
    free(owners);
    LKS__TRY(st);
    t->state.memory = lks__reducer_memory(t->work.reducer);
    return lks__memory_open_replica(t->state.memory, lks__optimizer_of(&t->run.s), t->run.shared);
}

/* Activations get memory page by page during the first step; if none is left then, the kernel kills
 * the process. So check them after all shared memory has been reserved, once for all ranks of a
 * host. */
static lks_status check_activations(const lks__run *run, const lks__session *ses,
                                    const lks__memory *memory)
{
    size_t bytes;
    if (ses->world.local_rank != 0 || !lks__memory_on_host(memory))
        return LKS_OK;
    LKS__TRY(lks__model_activation_bytes(&run->model_config, (int)run->s.batch_size,
                                         ses->device->layers, &bytes));
    const uint64_t room = lks__memory_available();
    const double need = (double)bytes * ses->world.local_world_size;
    if (need <= (double)room)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_NOMEM,
        "the activations of %d rank%s here take %s: only %s are available to "
        "this machine or container; use --recompute=block, a smaller model or batch, fewer ranks, "
        "or a higher memory limit",
        ses->world.local_world_size, ses->world.local_world_size == 1 ? "" : "s",
        lks__units_memory(need), lks__units_memory((double)room));
}

static lks_status open_optimizer(lks__trainer *t)
{
    size_t bytes;
    void *scratch = lks__model_scratch(t->work.model, &bytes);
    LKS__TRY(lks__memory_open_optimizer(t->state.memory, lks__optimizer_of(&t->run.s), scratch,
                                        bytes, &t->work.optim));
    t->work.optim.beat = lks__comm_beats(t->ses.comm);
    return LKS_OK;
}

/* As in nanoGPT, an evaluation that is due is made again with the new batch, if it draws batches.
 */
static lks_status load_state(lks__trainer *t, lks__ckpt *resume)
{
    LKS__TRY(lks__state_load(t, resume));
    const bool done = t->state.eval_done;
    if (t->run.begins_segment && t->run.procedure->draws)
        t->state.eval_done = false;
    if (!t->run.procedure->evaluation_due(&t->run, &t->state))
        t->state.eval_done = done;
    return LKS_OK;
}

static lks_status start_state(lks__trainer *t, lks__ckpt *resume)
{
    if (resume != NULL)
        return load_state(t, resume);
    if (t->run.continued)
        return lks__continue_load(t);
    if (t->run.shared && t->ses.world.local_rank != 0)
        return LKS_OK;
    if (t->run.weights == NULL) {
        lks__mt g;
        lks__mt_seed(&g, (uint64_t)t->run.s.seed);
        lks__model_init(&t->run.model_config, &t->run.table, &g, t->state.memory->params.host);
        return LKS_OK;
    }
    LKS__TRY(lks__weights_read(t->run.weights, &t->run.model_config, &t->run.table,
                               (uint64_t)t->run.s.seed, t->state.memory->params.host));
    return lks__state_params_hash(t, t->run.init_hash);
}

lks_status lks__trainer_agree(lks__trainer *t, bool loaded)
{
    LKS__TRY(lks__agree_state(t, loaded));
    if (loaded && (!t->run.shared || t->ses.world.local_rank == 0))
        lks__memory_fetched(t->state.memory);
    if (t->run.shared)
        LKS__TRY(lks_comm_barrier(t->ses.comm));
    else
        LKS__TRY(lks__params_verify(t->ses.comm, &t->run.table, t->state.memory->params.host));
    return lks__memory_upload(t->state.memory, loaded);
}

/* With different exchanges ranks would start different operations. */
static lks_status agree_on_exchange(const lks__run *run, lks__session *ses)
{
    if (ses->device->ops->exchange == NULL)
        return LKS_OK;
    return lks__session_same_word(ses, "exchange",
                                  lks__chosen_may_join(&run->s) ? "nccl" : "staged");
}

static lks_status open_state(lks__trainer *t, lks__ckpt *resume)
{
    LKS__TRY(agree_on_exchange(&t->run, &t->ses));
    if (t->run.model_config.bf16)
        LKS__TRY(lks__session_products(&t->ses, true));
    LKS__TRY(open_arenas(t));
    LKS__TRY(lks__recheck_open(t, resume));
    lks_status st = check_activations(&t->run, &t->ses, t->state.memory);
    LKS__THEN(st, open_optimizer(t));
    LKS__THEN(st, start_state(t, resume));
    LKS__TRY(lks__session_agree(&t->ses, st));
    LKS__TRY(lks__train_rehearse(t, resume));
    return lks__trainer_agree(t, resume != NULL || t->run.continued);
}

/* Open the run, and compare settings and data of all ranks before memory is reserved. */
static lks_status open_and_compare(lks__run *run, lks__session *ses, const lks__ckpt *resume)
{
    lks__run_lines *given = calloc(2, sizeof *given); /* and the lines of the result */
    lks_status st = LKS_OK;
    if (given == NULL)
        st = lks__no_memory("for the list of settings");
    else
        st = lks__agree_lines(run, false, given);
    st = lks__session_agree(ses, st);
    if (st == LKS_OK) {
        st = open_data(run, ses, resume);
        LKS__THEN(st, lks__agree_lines(run, true, given + 1));
        st = lks__agree_run(ses, st, given, given + 1);
    }
    free(given);
    return st;
}

/* A run that is restarted after a failure continues from its newest valid checkpoint, or begins
 * again if it has none. A resume in a folder without checkpoints continues nanoGPT's run, if there
 * is a ckpt.pt: then *resume_p stays NULL. */
static lks_status open_checkpoint(const lks__settings *s, const char *run, int rank,
                                  lks__ckpt *ckpt, lks__ckpt **resume_p)
{
    bool restarted = lks__job_restarted(run);
    bool resumes = lks__settings_init(s) == LKS__INIT_RESUME;
    const char *from = restarted ? run : s->out_dir; /* out_dir may name a checkpoint */
    if (rank == 0)
        LKS__TRY(lks__outdir_free(run, s->lock == LKS__lock_on));
    lks_status st = lks__ckpt_open(from, LKS__CKPT_ALL, ckpt);
    if (restarted && st == LKS_ERR_FORMAT)
        st = lks__ckpt_open_newest(from, NULL, LKS__CKPT_ALL, ckpt);
    if (st == LKS_OK) {
        *resume_p = ckpt;
        return lks__outdir_continues(from, ckpt);
    }
    const bool begins_again = restarted && !resumes && (st == LKS_ERR_IO || st == LKS_ERR_FORMAT);
    const bool of_nanogpt = resumes && st == LKS_ERR_IO && lks__continue_can(s->out_dir);
    return begins_again || of_nanogpt ? LKS_OK : st;
}

/* Restore the dataset's path, and settings that checkpoints lack. */
static lks_status restore_settings(lks__settings *s, lks__session *ses, const char *run,
                                   const lks__ckpt *resume)
{
    if (resume == NULL)
        return LKS_OK;
    snprintf(s->out_dir, sizeof s->out_dir, "%s", run);
    const json_t *family = json_object_get(json_object_get(resume->state, "settings"), "family");
    LKS__TRY(lks__remember_data(ses, s->out_dir, json_string_value(family), s));
    return lks__remember_settings(ses, s->out_dir, s);
}

static lks_status open_session(const lks__settings *s, lks__session *ses)
{
    LKS__TRY(
        lks__session_open(s->backend, s->timeout, (int)s->threads, (enum lks__bind)s->bind, ses));
    lks_status st = lks__session_device(ses, s->device, s->share_gpu);
    if (st != LKS_OK)
        lks__session_close(ses);
    return st;
}

/* Find the checkpoint that the run begins with, the same on all ranks. *resume_p stays NULL if
 * there is none. */
static lks_status find_start(lks__settings *s, lks__session *ses, lks__ckpt *ckpt,
                             lks__ckpt **resume_p)
{
    const bool resumes = lks__settings_init(s) == LKS__INIT_RESUME;
    lks_status st = LKS_OK;
    char run[LKS__SETTING_STR];
    /* These settings decide which collective operations set-up starts. */
    LKS__TRY(lks__agree_init(ses, s));
    LKS__TRY(lks__session_same_word(ses, "batch_size", s->auto_batch != 0 ? "auto" : "a number"));
    snprintf(run, sizeof run, "%s", s->out_dir);
    if (resumes)
        lks__outdir_of(s->out_dir, run, sizeof run);
    if (resumes || lks__job_restarted(run))
        st = open_checkpoint(s, run, ses->world.rank, ckpt, resume_p);
    LKS__TRY(lks__same_checkpoint(ses, st, *resume_p, s->out_dir));
    return restore_settings(s, ses, run, *resume_p);
}

/* Each step succeeds on all ranks, or no rank begins the next one. */
static lks_status open_run(lks__trainer *t, lks__ckpt *resume)
{
    LKS__TRY(lks__session_agree(&t->ses, open_settings(&t->run, &t->ses, resume)));
    if (t->run.s.auto_batch != 0)
        LKS__TRY(lks__train_fit(&t->run, &t->ses));
    LKS__TRY(open_and_compare(&t->run, &t->ses, resume));
    lks_status st = lks__train_check_device(&t->run, &t->ses);
    LKS__THEN(st, lks__train_check_fits(&t->run, &t->ses));
    LKS__TRY(lks__session_agree(&t->ses, st));
    LKS__TRY(lks__session_agree(&t->ses, open_on_device(t)));
    return open_state(t, resume);
}

lks_status lks__trainer_open(const lks__settings *s, lks__trainer *t, int *stopped_p)
{
    lks__ckpt ckpt, *resume = NULL;
    *stopped_p = 0;
    memset(t, 0, sizeof *t);
    memset(&ckpt, 0, sizeof ckpt);
    t->run.s = *s;
    t->state.best_val_loss = LKS__NO_VAL_LOSS;
    LKS__TRY(lks__trace_file_start(&t->trace, t->run.s.trace));
    lks__trace_begin(LKS__SPAN_SET_UP, -1);
    lks_status st = open_session(s, &t->ses);
    if (st != LKS_OK) {
        *stopped_p = lks__stop_requested;
        return st;
    }
    lks_comm_note(t->ses.comm, 0, "set-up");
    lks__session_stoppable(&t->ses, true);
    st = find_start(&t->run.s, &t->ses, &ckpt, &resume);
    LKS__THEN(st, open_run(t, resume));
    if (resume != NULL)
        lks__ckpt_close(&ckpt);
    lks__session_stoppable(&t->ses, false);
    if (st == LKS_OK) /* later stops leave a checkpoint */
        st = lks__session_agree(&t->ses, lks__session_check_stop(&t->ses));
    LKS__THEN(st, lks__trace_file_open(&t->trace, &t->ses));
    if (st != LKS_OK) {
        *stopped_p = lks__session_asked_stop(&t->ses);
        return lks__session_fail(&t->ses, st);
    }
    t->checks.saved_at = lks__sys_now();
    lks__trace_end();
    return LKS_OK;
}

void lks__trainer_close(lks__trainer *t)
{
    lks__trace_file_close(&t->trace);
    lks__weights_close(t->run.weights);
    lks__reducer_close(t->work.reducer);
    lks__model_close(t->work.model);
    if (t->run.procedure != NULL)
        t->run.procedure->close(&t->run, &t->state);
    lks__meta_free(&t->run.meta);
    lks__table_free(&t->run.table);
    lks__batch_close(&t->work.batch);
    lks__mirror_close(&t->work.losses);
    free(t->work.exchange);
    lks__divergence_close(&t->checks);
    lks__recheck_close(&t->checks);
    lks__optim_close(&t->work.optim);
    lks__session_close(&t->ses);
    memset(t, 0, sizeof *t);
}
