#include "train/loop/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "compute/peak/peak_device.h"
#include "data/text/bpe/bpe.h"
#include "files/checkpoint/name.h"
#include "model/table/freeze.h"
#include "plan/gradients.h"
#include "report/record/job.h"
#include "report/record/metrics/evals.h"
#include "report/record/outdir.h"
#include "session/signals.h"
#include "settings/settings_table.h"
#include "train/guard/nonfinite.h"
#include "train/loop/run.h"
#include "train/procedure/procedure.h"
#include "train/setup/trainer.h"

enum {
    MFU_AFTER = 5,      /* iterations until times have settled, as in nanoGPT */
    ESTIMATE_AFTER = 3, /* iterations until the whole time is estimated */
    PEAK_BURSTS = 4,
};

/* Seconds. */
static const double ESTIMATE_FROM_S = 180.0; /* shorter runs need no estimate */
static const double SLOW_BATCH_S = 3.0;
static const double SLOW_RUN_S = 2.0 * 86400.0;

/* --- facts about all ranks ------------------------------------------------------------------- */

static lks_status measure_own(void *ctx, double *own_p)
{
    const lks__trainer *t = ctx;
    const lks__session *ses = &t->ses;
    if (ses->device->ops->host_memory)
        return lks__session_peak(ses, ses->threads, PEAK_BURSTS, own_p);
    size_t bytes;
    void *scratch = lks__model_scratch(t->work.model, &bytes);
    return lks__peak_of_device(ses->device, ses->ex.bf16, scratch, bytes, own_p);
}

/* FLOP/s of all ranks, measured at the same time. */
static lks_status measure_peak(lks__trainer *t, lks__peak *peak)
{
    int W = t->ses.world.world_size;
    *peak = (lks__peak){.measure = measure_own, .ctx = t};
    double *all = calloc((size_t)W, sizeof *all);
    lks_status st = LKS_OK;
    if (all == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", W);
    if (st == LKS_OK)
        st = lks_comm_barrier(t->ses.comm);
    if (st == LKS_OK)
        st = measure_own(t, &peak->own);
    if (st == LKS_OK)
        st = lks_comm_all_gather(t->ses.comm, &peak->own, all, sizeof peak->own, LKS_UINT8);
    for (int r = 0; r < W && st == LKS_OK; r++)
        peak->flops += all[r];
    free(all);
    return st;
}

/* --- progress -------------------------------------------------------------------------------- */

/* Format a time for people. */
static void say_time(char out[32], double s)
{
    if (s < 9.95)
        snprintf(out, 32, "%.1f s", s);
    else if (s < 90.0)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 5400.0)
        snprintf(out, 32, "%.0f min", s / 60.0);
    else if (s < 172800.0)
        snprintf(out, 32, "%.1f h", s / 3600.0);
    else
        snprintf(out, 32, "%.0f days", s / 86400.0);
}

static void on_progress(void *ctx, size_t done, size_t n)
{
    lks__report *r = ctx;
    char line[160], left[32];
    const double took = lks__sys_now() - r->work_began;
    say_time(left, took / (double)done * (double)(n - done));
    snprintf(line, sizeof line, "%s %" PRIu64 ": %zu of %zu %s, %s left", r->work, r->work_iter,
             done, n, strcmp(r->work, "iter") == 0 ? "micro-batches" : "batches", left);
    lks__log_status(&r->log, line);
    lks__report_alive(r, line);
}

/* At least the seconds of so many tokens of the whole run: all ranks compute at their peak. */
static double least_seconds(const lks__report *r, double tokens)
{
    return r->peak.flops > 0.0 ? tokens * r->flops_a_token / r->peak.flops : 0.0;
}

/* Its progress can't be seen before the first batch is done: announce that, if it takes long. */
static void announce(lks__report *r, const lks__run *run, const lks__session *ses)
{
    const bool step = strcmp(r->work, "iter") == 0;
    const double batch = (double)(run->s.batch_size * run->s.block_size) * ses->world.world_size;
    const double least = least_seconds(r, step ? batch : batch / 3.0); /* without backward */
    char line[160], text[32];
    if (strcmp(r->work, "evaluation") == 0 && strcmp(run->procedure->length, "max_iters") == 0) {
        /* nanoGPT's: eval_iters batches of each split. Ranks share them. */
        const double n = 2.0 * (double)run->s.eval_iters;
        const double tokens = (double)(run->s.batch_size * run->s.block_size);
        const double whole = least_seconds(r, n * tokens / 3.0);
        if (whole < SLOW_BATCH_S)
            return;
        say_time(text, whole);
        snprintf(line, sizeof line,
                 "evaluation %" PRIu64 " begins: %.0f batches take over %s; a smaller --eval_iters "
                 "takes less",
                 r->work_iter, n, text);
        r->log.status_at = 0.0;
        lks__log_status(&r->log, line);
        return;
    }
    if (least < SLOW_BATCH_S)
        return;
    say_time(text, least);
    snprintf(line, sizeof line, "%s %" PRIu64 " begins: each %sbatch takes over %s", r->work,
             r->work_iter, step ? "micro-" : "", text);
    r->log.status_at = 0.0;
    lks__log_status(&r->log, line);
}

void lks__report_work(lks__report *r, const lks__run *run, lks__session *ses,
                      const lks__state *state, const char *work)
{
    if (!r->on)
        return;
    r->work = work;
    r->work_iter = state->iter;
    r->work_began = lks__sys_now();
    lks__log_work(&r->log);
    lks__report_alive(r, NULL);
    announce(r, run, ses);
    ses->on_progress = on_progress;
    ses->on_progress_ctx = r;
}

/* Evaluations between t->state.iter and the end. */
static double n_evaluations(const lks__run *run, const lks__state *state, uint64_t n_steps)
{
    const uint64_t every = (uint64_t)run->s.eval_interval;
    return every == 0 ? 0.0 : (double)((n_steps - 1) / every - (state->iter - 1) / every) + 1.0;
}

/* Before the first step, if it can't be a matter of hours. */
static void warn_of_slow_run(lks__report *r, const lks__run *run, const lks__state *state)
{
    const uint64_t n_steps = run->procedure->n_steps(&run->s);
    const double steps = n_steps > state->iter ? (double)(n_steps - state->iter) : 0.0;
    const double least = least_seconds(r, steps * r->tokens_a_step);
    const bool limited =
        run->procedure->time_limit != NULL && run->procedure->time_limit(&run->s) > 0.0;
    char text[32];
    if (least < SLOW_RUN_S || limited || run->s.eval_only)
        return;
    say_time(text, least);
    lks__log_message(&r->log, "the run takes over %s, even at the peak speed of these ranks", text);
}

/* How long the whole run will take, once, if it is long. The first step is left out: memory is
 * touched there for the first time. */
static void estimate(lks__report *r, const lks__run *run, const lks__state *state, double step_s)
{
    const uint64_t n_steps = run->procedure->n_steps(&run->s);
    if (r->estimated || state->iter - r->first_iter < ESTIMATE_AFTER || n_steps <= state->iter)
        return;
    r->estimated = true;
    const double steps_s = step_s * (double)(n_steps - state->iter);
    const double evals_s = n_evaluations(run, state, n_steps) * r->eval_s;
    const double limit =
        run->procedure->time_limit != NULL ? run->procedure->time_limit(&run->s) : 0.0;
    char step[32], whole[32], eval[32], with[80] = "", end[80] = "";
    if (steps_s + evals_s < ESTIMATE_FROM_S)
        return;
    say_time(step, step_s);
    say_time(whole, steps_s + evals_s);
    if (evals_s > 0.0) {
        say_time(eval, r->eval_s);
        snprintf(with, sizeof with, " with evaluations of %s", eval);
    }
    if (limit > 0.0 && steps_s > limit - state->elapsed_s)
        snprintf(end, sizeof end, ", but %s=%g ends it before", "max_wallclock_seconds", limit);
    lks__log_message(&r->log,
                     "a step takes %s, so the %" PRIu64 " steps to come take about %s%s%s; Ctrl-C "
                     "stops the run with a checkpoint",
                     step, n_steps - state->iter, whole, with, end);
}

/* --- lines ----------------------------------------------------------------------------------- */

static lks_status config_line(lks__report *r, const lks__run *run)
{
    char digest[17];
    snprintf(digest, sizeof digest, "%016" PRIx64, run->data_digest);
    lks__jsonw *w = lks__metrics_begin(r->metrics, "config");
    lks__jsonw_str(w, "version", LKS_VERSION);
    lks__settings_write(&run->s, LKS__CMD_TRAIN, LKS__SETTING_CONFIG, NULL, w);
    lks__jsonw_u64(w, "parameters", run->table.n_params);
    lks__jsonw_u64(w, "trained_parameters", run->table.trained_params);
    lks__jsonw_str(w, "data_digest", digest);
    if (run->init_hash[0] != '\0')
        lks__jsonw_str(w, "init_hash", run->init_hash);
    return lks__metrics_end(r->metrics);
}

/* The parts of the fingerprint: if two runs' fingerprints differ, they show the reason. */
static void write_parts(lks__jsonw *w, const lks__session *s)
{
    const lks__device_part *parts = s->device->parts;
    char text[17 + LKS__DEVICE_PART_TEXT];
    lks__jsonw_object(w, "fingerprint_parts");
    snprintf(text, sizeof text, "%016" PRIx64, lks__kernels_fingerprint(&s->kernels, s->ex.bf16));
    lks__jsonw_str(w, "the CPU's kernels", text);
    for (int i = 0; i < LKS__DEVICE_PARTS && parts[i].name != NULL; i++) {
        snprintf(text, sizeof text, "%016" PRIx64 " %s", parts[i].value, parts[i].text);
        lks__jsonw_str(w, parts[i].name, text);
    }
    lks__jsonw_end(w);
}

static lks__jsonw *begin_host(lks__report *r, const lks__run *run, const lks__session *ses,
                              const lks__state *state)
{
    char *absolute = realpath(run->data_dir, NULL);
    lks__jsonw *w = lks__metrics_begin(r->metrics, "host");
    lks__report_host(w);
    lks__jsonw_int(w, "world_size", ses->world.world_size);
    lks__jsonw_int(w, "threads", ses->threads);
    lks__jsonw_str(w, "backend", lks_comm_backend(ses->comm));
    lks__jsonw_str(w, "replicas", lks__setting_word(&run->s, LKS__SETTING_replicas));
    lks__jsonw_str(w, "device", ses->device->ops->name);
    const char *exchange = lks__memory_exchange(state->memory, lks__chosen_must_join(&run->s));
    if (exchange != NULL)
        lks__jsonw_str(w, "exchange", exchange);
    lks__jsonw_str(w, "cpu", lks__cpu_model());
    lks__jsonw_str(w, "kernels", lks__cpu_level_name(ses->kernels.level));
    lks__jsonw_str(w, "gemm", lks__kernels_gemm_library(&ses->kernels));
    lks__jsonw_str(w, "fingerprint", ses->fingerprint);
    if (ses->device->fingerprint != 0)
        write_parts(w, ses);
    lks__jsonw_float(w, "peak_gflops", r->peak.flops * 1e-9);
    lks__jsonw_object(w, "paths");
    lks__jsonw_str(w, "dataset", run->data_dir);
    lks__jsonw_str(w, "dataset_absolute", absolute != NULL ? absolute : run->data_dir);
    lks__jsonw_str(w, "out_dir", run->s.out_dir);
    lks__jsonw_end(w);
    lks__jsonw_object(w, "settings");
    lks__settings_write(&run->s, LKS__CMD_TRAIN, LKS__SETTING_KEPT, NULL, w);
    lks__jsonw_end(w);
    free(absolute);
    return w;
}

static lks_status host_line(lks__report *r, const lks__run *run, const lks__session *ses,
                            const lks__state *state)
{
    lks__jsonw *w = begin_host(r, run, ses, state);
    if (run->resumed) {
        lks__jsonw_u64(w, "resumed_iter", state->iter);
        lks__jsonw_object(w, "changed");
        lks__settings_write(&run->s, LKS__CMD_TRAIN, LKS__SETTING_CONFIG, &run->resumed_from, w);
        lks__jsonw_end(w);
    }
    return lks__metrics_end(r->metrics);
}

static void describe_frozen(lks__log *log, const lks__table *table)
{
    char text[LKS__FROZEN_TEXT];
    for (size_t next = 0; lks__frozen_next(table, &next, text);)
        lks__log_line(log, "frozen: %s", text);
    if (table->trained_params < table->n_params)
        lks__log_line(log, "parameters that are trained: %zu of %zu", table->trained_params,
                      table->n_params);
}

/* Describe how the run is divided over ranks; the first lines are those of nanoGPT's script. */
static void describe(lks__report *r, const lks__run *run, const lks__session *ses,
                     const lks__state *state)
{
    lks__log *log = &r->log;
    run->procedure->head_lines(run, ses, log);
    if (run->fit_room > 0.0)
        lks__log_line(log,
                      "batch_size=auto: %" PRId64 " samples in each of %d micro-batches, the most "
                      "that fit (%s may use %.0f MB)",
                      run->s.batch_size, run->N,
                      ses->device->ops->memory == NULL ? "this host" : "a rank on its GPU",
                      run->fit_room / 1e6);
    describe_frozen(log, &run->table);
    if (run->resumed && run->s.eval_only)
        lks__log_line(log, "Evaluating checkpoint %" PRIu64 " of %s", state->iter,
                      run->shown_out_dir);
    else if (run->resumed)
        lks__log_line(log, "Resuming training from %s at iteration %" PRIu64, run->shown_out_dir,
                      state->iter);
    else if (run->continued)
        lks__log_line(log, "Resuming training from %s of nanoGPT at iteration %" PRIu64,
                      run->weights->shown, state->iter);
    else if (run->weights != NULL)
        lks__log_line(log, "Initializing from the weights in %s (%s), hash %s", run->weights->shown,
                      run->weights->took, run->init_hash);
    else
        lks__log_line(log, "Initializing a new model from scratch");
    if (run->weights != NULL && run->weights->note[0] != '\0')
        lks__log_line(log, "%s", run->weights->note);
    char how[80];
    if (ses->device->ops->memory == NULL)
        snprintf(how, sizeof how, "kernels %s", lks__cpu_level_name(ses->kernels.level));
    else
        snprintf(how, sizeof how, "%s on %s", lks__setting_word(&run->s, LKS__SETTING_dtype),
                 ses->device->ops->name);
    lks__log_line(log,
                  "%d rank%s x %d thread%s, %d virtual rank%s, %d micro-batch%s per step, %s, "
                  "peak %.0f GFLOP/s",
                  ses->world.world_size, ses->world.world_size == 1 ? "" : "s", ses->threads,
                  ses->threads == 1 ? "" : "s", run->V, run->V == 1 ? "" : "s", run->N,
                  run->N == 1 ? "" : "es", how, r->peak.flops * 1e-9);
}

/* The setting that ends the run where it is. */
static const char *ended_by(const lks__run *run, const lks__guard *guard)
{
    return guard->out_of_time ? "max_wallclock_seconds" : run->procedure->length;
}

/* A learning rate that was given for a run without further steps would be ignored in silence. */
static void say_unused(lks__log *log, const lks__run *run, const lks__guard *guard)
{
    const char *names[LKS__N_SETTINGS];
    char text[400] = "";
    size_t at = 0;
    const int n =
        lks__settings_diff(&run->s, &run->resumed_from, LKS__CMD_TRAIN, LKS__SETTING_CONFIG, names);
    for (int i = 0; i < n && at < sizeof text; i++)
        if (strcmp(names[i], run->procedure->length) != 0 &&
            strcmp(names[i], ended_by(run, guard)) != 0)
            at +=
                (size_t)snprintf(text + at, sizeof text - at, "%s%s", at > 0 ? ", " : "", names[i]);
    if (at > 0)
        lks__log_message(log, "there is no further step, so these have no effect on training: %s",
                         text);
}

/* Say that nothing is left to do, because a silent end would look like a failed resume. */
static void say_complete(lks__report *r, const lks__run *run, const lks__state *state,
                         const lks__guard *guard)
{
    if (!run->resumed || run->s.eval_only ||
        (state->iter < run->procedure->n_steps(&run->s) && !guard->out_of_time))
        return;
    lks__log_message(&r->log, "the run is complete; with a larger %s it continues from here",
                     ended_by(run, guard));
    say_unused(&r->log, run, guard);
}

void lks__report_nothing(const lks__run *run, const lks__state *state, const lks__guard *guard)
{
    lks__log log;
    char value[LKS__SETTING_STR];
    lks__settings_text(&run->s, lks__setting_find(ended_by(run, guard)), value);
    lks__log_open(&log, "lockstep train", stdout, stderr);
    lks__log_message(&log,
                     "with %s=%s there is no step to train after checkpoint %" PRIu64
                     ", so %s stays unchanged; a larger %s continues from that checkpoint",
                     ended_by(run, guard), value, state->iter, run->shown_out_dir,
                     ended_by(run, guard));
    say_unused(&log, run, guard);
    lks__log_close(&log);
}

/* A run that is longer than the schedule of its recipe, or of the run that it continues, ends with
 * many steps at the lowest rate. Values that were given together are a choice. */
static void note_short_decay(lks__report *r, const lks__run *run, const lks__state *state)
{
    const lks__settings *s = &run->s;
    const bool chosen = s->from[LKS__SETTING_max_iters] == s->from[LKS__SETTING_lr_decay_iters];
    const uint64_t end = (uint64_t)s->max_iters, decay = (uint64_t)s->lr_decay_iters;
    if (strcmp(run->procedure->length, "max_iters") != 0 || !s->decay_lr || s->eval_only ||
        chosen || decay >= end || end - decay <= end / 10 || state->iter > end)
        return;
    char min_lr[LKS__NUMBER_TEXT];
    lks__log_message(&r->log,
                     "the learning rate stays at min_lr=%s after iteration %" PRIu64
                     ", as lr_decay_iters=%" PRIu64 " and max_iters=%" PRIu64
                     "; --lr_decay_iters=%" PRIu64 " lets it fall over the whole run",
                     lks__number_text(s->min_lr, false, min_lr), decay, decay, end, end);
}

static void warn_of_own_products(lks__report *r, const lks__session *ses)
{
    const char *warning = lks__kernels_warning(&ses->kernels);
    if (warning != NULL)
        lks__log_message(&r->log, "warning: %s", warning);
}

static void note_device(lks__report *r, const lks__session *ses)
{
    const char *note = lks__session_device_note(ses);
    if (note != NULL)
        lks__log_message(&r->log, "%s", note);
}

/* If other kernels made the checkpoint, the run goes on with other bits. */
static void warn_of_other_kernels(lks__report *r, const lks__run *run, const lks__session *ses)
{
    if (run->resumed_fingerprint[0] != '\0' && run->resumed_from.dtype == run->s.dtype &&
        strcmp(run->resumed_fingerprint, ses->fingerprint) != 0)
        lks__log_message(
            &r->log,
            "warning: the checkpoint was made with kernels of fingerprint %s, here it is "
            "%s: the run continues, but its bits will differ from a run on that machine",
            run->resumed_fingerprint, ses->fingerprint);
}

/* Check now what a save needs, and not at the first save, which may be hours away. */
static lks_status probe_names(lks__report *r, const lks__run *run)
{
    bool links;
    int err;
    LKS__TRY(lks__name_probe(run->s.out_dir, &links, &err));
    if (!links)
        lks__log_message(
            &r->log,
            "no symbolic links can be made in %s (%s): latest and best are small files "
            "with the checkpoint's name",
            run->shown_out_dir, strerror(err));
    return LKS_OK;
}

/* The run keeps the vocabulary of its tokens: its data may be gone when somebody samples. */
static lks_status keep_vocabulary(const lks__run *run)
{
    char to[LKS__SETTING_STR + 32], from[LKS__CKPT_PATH + 32], *text = NULL;
    size_t bytes;
    uint64_t hash;
    lks__bpe *bpe = NULL;
    lks_status st;
    if (!run->meta.is_bpe)
        return LKS_OK;
    snprintf(to, sizeof to, "%s/" LKS__BPE_FILE, run->s.out_dir);
    snprintf(from, sizeof from, "%s/" LKS__BPE_FILE, run->vocabulary);
    if (access(from, F_OK) == 0) { /* whole: without the memory that its tokens would take */
        st = lks__sys_read_file(from, LKS__BPE_MAX_FILE, &text, &bytes);
    } else {
        LKS__TRY(lks__bpe_open(run->vocabulary, &bpe));
        st = lks__bpe_text(bpe, &text, &bytes, &hash);
    }
    if (st == LKS_OK)
        st = lks__sys_write_file(to, text, bytes);
    free(text);
    lks__bpe_close(bpe);
    return st;
}

static bool has_run(const lks__run *run)
{
    char path[LKS__SETTING_STR + 16];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run->s.out_dir);
    return access(path, F_OK) == 0;
}

static lks_status open_files(lks__report *r, const lks__trainer *t)
{
    char log_path[LKS__SETTING_STR + 16], moved[4200] = "", shown[4200];
    bool empty = true, has_line = false;
    const lks__metrics_cut cut = {t->state.iter, t->state.eval_done,
                                  !lks__train_saves_again(&t->run, &t->state, &t->guard)};
    bool goes_on = lks__job_goes_on(t->run.s.out_dir); /* must be read before we take the lock */
    LKS__TRY(lks__outdir_lock(t->run.s.out_dir, t->run.s.lock == LKS__lock_on, &r->out_lock));
    if (t->run.resumed) {
        LKS__TRY(lks__outdir_back(t->run.s.out_dir, t->state.iter, moved));
        LKS__TRY(lks__metrics_resume(t->run.s.out_dir, &cut, &empty, &has_line, &r->metrics));
    } else {
        if (!goes_on) /* or these are files of this very run, which has no checkpoint yet */
            LKS__TRY(lks__outdir_start(t->run.s.out_dir, t->run.data_dir, moved));
        LKS__TRY(lks__metrics_create(t->run.s.out_dir, &r->metrics));
        LKS__TRY(keep_vocabulary(&t->run));
    }
    if (t->run.s.tensorboard)
        LKS__TRY(lks__report_events_open(r, &t->run, &t->state));
    LKS__TRY(lks__job_mark(t->run.s.out_dir));
    snprintf(log_path, sizeof log_path, "%s/train.log", t->run.s.out_dir);
    LKS__TRY(lks__log_to_file(&r->log, log_path));
    if (t->run.procedure->log_path != NULL) {
        LKS__TRY(t->run.procedure->log_path(&t->run, log_path));
        if (log_path[0] != '\0')
            LKS__TRY(lks__log_copy_to(&r->log, log_path));
    }
    LKS__TRY(probe_names(r, &t->run));
    if (moved[0] != '\0')
        lks__log_line(&r->log, "%s was moved to %s",
                      t->run.resumed ? "the part of the run after this checkpoint"
                                     : "an earlier run",
                      lks__escape(shown, sizeof shown, moved, strlen(moved)));
    if (empty)
        LKS__TRY(config_line(r, &t->run));
    if (t->run.resumed && cut.own_line &&
        !has_line) { /* the checkpoint was saved, but the run died before it wrote this line */
        char name[32];
        snprintf(name, sizeof name, "ckpt-%08" PRIu64, t->state.iter);
        LKS__TRY(
            lks__report_checkpoint(r, &t->state, t->run.resumed_asked, name, t->run.resumed_hash));
    }
    if (!t->run.resumed)
        LKS__TRY(lks__best_clear(t->run.s.out_dir, &r->best));
    else if (empty)
        LKS__TRY(lks__best_keep(t->run.s.out_dir, t->state.iter, t->state.best_val_loss, &r->best));
    else
        LKS__TRY(lks__best_decide(t->run.s.out_dir, t->state.iter, &r->best));
    return host_line(r, &t->run, &t->ses, &t->state);
}

/* The terminal or pipe isn't read. Other ranks must not give this one up for that, and once all are
 * to stop, the trained state must not be lost. */
static bool on_wait(void *comm)
{
    lks_comm_beat(comm);
    return lks__stop_requested == 0;
}

/* A launcher's ranks are several processes, and the first that gets the signal need not be this
 * one; the launcher's own messages follow. A live line is cleared first. */
static void answer_signals(const lks__report *r, const lks__session *ses)
{
#define ANSWER                                                                                     \
    "lockstep train: stopping once the batch under way is done; a second signal ends the run at "  \
    "once, and a third while it saves\n"
    if (ses->world.world_size == 1)
        lks__signals_answer(r->log.err_moves ? LKS__CLEAR_LINE ANSWER : ANSWER);
}

lks_status lks__report_open(lks__report *r, lks__trainer *t)
{
    memset(r, 0, sizeof *r);
    r->out_lock = -1;
    r->notify.fd = -1;
    LKS__TRY(measure_peak(t, &r->peak));
    r->on = t->ses.world.rank == 0;
    r->started = lks__sys_now();
    r->first_iter = t->state.iter;
    r->mfu = -1.0;
    r->newest = (lks__newest){NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    r->tokens_a_step = (double)t->run.N * (double)t->run.s.batch_size * (double)t->run.s.block_size;
    r->flops_a_token = lks__model_flops_per_token(&t->run.model_config, &t->run.table);
    if (!r->on)
        return LKS_OK;
    lks__log_open(&r->log, "lockstep train", stdout, stderr);
    lks__log_live(&r->log,
                  !lks__session_foreign()); /* mpirun gives a rank a terminal, and logs it */
    lks__log_on_wait(&r->log, on_wait, t->ses.comm);
    const bool reads_only = t->run.s.eval_only && (t->run.resumed || has_run(&t->run));
    lks_status st = LKS_OK;
    if (!reads_only && t->run.s.sample_tokens > 0)
        st = lks__samples_open(&t->run, &t->ses, &t->state, &r->samples);
    if (st == LKS_OK && !reads_only)
        st = open_files(r, t);
    if (st == LKS_OK) {
        describe(r, &t->run, &t->ses, &t->state);
        if (reads_only && !t->run.resumed)
            lks__log_message(&r->log,
                             "%s contains an earlier run, so this evaluation is only printed: "
                             "--init_from=resume evaluates that run",
                             t->run.shown_out_dir);
        warn_of_own_products(r, &t->ses);
        note_device(r, &t->ses);
        warn_of_other_kernels(r, &t->run, &t->ses);
        warn_of_slow_run(r, &t->run, &t->state);
        note_short_decay(r, &t->run, &t->state);
        say_complete(r, &t->run, &t->state, &t->guard);
        st = lks__report_others_open(r, &t->run);
        answer_signals(r, &t->ses);
    }
    return st;
}

/* Report an iteration without an update: "skip", or "rollback" if the run went back from it. After
 * a skip the iteration is t->state.iter - 1; on the way back `t` has already loaded the checkpoint.
 */
static lks_status report_nonfinite(lks__report *r, const lks__run *run, const lks__session *ses,
                                   const lks__state *state, const lks__work *work,
                                   const lks__step_result *step)
{
    const lks__nonfinite *bad = &step->bad;
    const bool back = step->outcome == LKS__STEP_BACK;
    char text[320];
    lks__nonfinite_text(run, ses, work, step, text);
    lks__jsonw *w = lks__metrics_begin(r->metrics, back ? "rollback" : "skip");
    lks__jsonw_u64(w, "iter", step->iter);
    if (bad->index >= 0) {
        lks__jsonw_int(w, "virtual_rank", bad->index / run->A);
        lks__jsonw_int(w, "micro_batch", bad->index % run->A);
    }
    lks__jsonw_str(w, "what", bad->index < 0 ? "sum" : bad->in_loss ? "loss" : "gradient");
    lks__jsonw_str(w, "place", bad->place);
    if (back) {
        lks__jsonw_u64(w, "to", state->iter);
        lks__jsonw_u64(w, "data_shift", state->data_shift);
    }
    LKS__TRY(lks__metrics_end(r->metrics));
    if (back)
        LKS__TRY(lks__report_events_back(r, state));
    if (back)
        lks__log_message(&r->log,
                         "iteration %" PRIu64 ": %s; back to checkpoint %" PRIu64
                         ", and on with the data after it (%d of at most %" PRId64 " times)",
                         step->iter, text, state->iter, state->nonfinite, run->s.on_nan_limit);
    else
        lks__log_message(&r->log, "iteration %" PRIu64 ": %s; there is no update", step->iter,
                         text);
    return LKS_OK;
}

lks_status lks__report_train(lks__report *r, const lks__run *run, const lks__session *ses,
                             const lks__state *state, const lks__work *work,
                             const lks__guard *guard, const lks__step_result *step)
{
    lks__report_ranks_add(r, step);
    if (!r->on)
        return LKS_OK;
    if (step->outcome != LKS__STEP_DONE)
        return report_nonfinite(r, run, ses, state, work, step);
    /* The step has already been counted. */
    uint64_t iter = state->iter - 1, done = state->iter - r->first_iter;
    double now = lks__sys_now(), dt = step->seconds;
    double rate = r->tokens_a_step / dt;
    double mfu = lks__peak_share(&r->peak, rate * r->flops_a_token);
    if (done > MFU_AFTER)
        r->mfu = r->mfu < 0.0 ? mfu : 0.9 * r->mfu + 0.1 * mfu;

    lks__jsonw *w = lks__metrics_begin(r->metrics, "train");
    lks__jsonw_u64(w, "iter", iter);
    lks__jsonw_float(w, "loss", step->loss);
    lks__jsonw_double(w, "lr", step->lr);
    lks__jsonw_double(w, "grad_norm", step->grad_norm);
    lks__jsonw_u64(w, "tokens", (uint64_t)r->tokens_a_step * state->iter);
    lks__jsonw_float(w, "ms", dt * 1e3);
    lks__jsonw_float(w, "tok_per_s", rate);
    lks__jsonw_float(w, "mfu", mfu);
    lks__jsonw_float(w, "comm_exposed_ms", step->exposed_s * 1e3);
    LKS__TRY(lks__metrics_end(r->metrics));
    LKS__TRY(lks__report_events_train(r, step, rate, mfu));
    r->newest = (lks__newest){.loss = step->loss,
                              .lr = step->lr,
                              .grad_norm = step->grad_norm,
                              .tok_per_s = rate,
                              .mfu = mfu,
                              .wait_s = step->exposed_s,
                              .val_loss = r->newest.val_loss};
    lks__report_prometheus(r, run, state, false);

    char line[200], live[240], left[32];
    run->procedure->train_line(run, state, guard, step, r->mfu, line);
    uint64_t n_steps = run->procedure->n_steps(&run->s),
             to_go = n_steps > state->iter ? n_steps - state->iter : 0;
    say_time(left, (now - r->started) / (double)done * (double)to_go);
    snprintf(live, sizeof live,
             "iter %" PRIu64 "/%" PRIu64 "  loss %.4f  %.0f tok/s  mfu %.0f%%  %s left", iter,
             n_steps - 1, step->loss, rate, mfu * 100.0, left);
    lks__log_progress(&r->log, line[0] != '\0' ? line : NULL, live);
    lks__report_alive(r, live);
    estimate(r, run, state, dt);
    return LKS_OK;
}

static void write_losses(lks__jsonw *w, const lks__eval_result *eval)
{
    if (eval->has_train)
        lks__jsonw_float(w, "train_loss", eval->train_loss);
    lks__jsonw_float(w, "val_loss", eval->val_loss);
    if (eval->has_bpb)
        lks__jsonw_float(w, "val_bpb", eval->val_bpb);
}

/* `text`: the sample that was drawn after it, or NULL. */
static lks_status evaluation_line(lks__report *r, const lks__state *state, const char *kind,
                                  const lks__eval_result *eval, const char *text)
{
    if (r->metrics == NULL)
        return LKS_OK;
    lks__jsonw *w = lks__metrics_begin(r->metrics, kind);
    lks__jsonw_u64(w, "iter", state->iter);
    write_losses(w, eval);
    if (text != NULL)
        lks__jsonw_str(w, "sample", text);
    LKS__TRY(lks__metrics_end(r->metrics));
    LKS__TRY(lks__report_events_eval(r, state, kind, eval));
    return text != NULL ? lks__report_events_sample(r, state, text) : LKS_OK;
}

/* NULL if there is none. The run doesn't depend on it. */
static const char *draw_sample(lks__report *r, const lks__run *run, const lks__state *state)
{
    const char *text;
    if (r->samples == NULL)
        return NULL;
    const lks_status st = lks__samples_draw(r->samples, run, &text);
    if (st == LKS_OK)
        return text;
    if (st != LKS_ERR_STOPPED)
        lks__log_message(&r->log, "no sample at iteration %" PRIu64 ": %s; the run continues",
                         state->iter, lks_last_error());
    return NULL;
}

lks_status lks__report_eval(lks__report *r, const lks__run *run, const lks__state *state,
                            const lks__guard *guard, const lks__eval_result *eval)
{
    if (!r->on)
        return LKS_OK;
    LKS__TRY(evaluation_line(r, state, "eval", eval, draw_sample(r, run, state)));
    lks__report_above(r, state->iter, eval->val_loss);
    r->newest.val_loss = eval->val_loss;
    lks__report_prometheus(r, run, state, true);
    char line[200];
    run->procedure->eval_line(run, state, guard, eval, line);
    lks__log_line(&r->log, "%s", line);
    return LKS_OK;
}

lks_status lks__report_eval_only(lks__report *r, const lks__run *run, const lks__state *state,
                                 const lks__guard *guard, const lks__eval_result *eval)
{
    lks__evals evals;
    char why[200];
    LKS__TRY(lks__report_eval(r, run, state, guard, eval));
    if (!r->on || !run->resumed) /* without a checkpoint there is nothing to record it for */
        return LKS_OK;
    lks__jsonw *w = lks__evals_begin(&evals, "eval_only", state->iter, run->resumed_hash);
    lks__jsonw_str(w, "dataset", run->data_dir);
    write_losses(w, eval);
    LKS__TRY(lks__evals_append(&evals, run->s.out_dir, why));
    if (why[0] != '\0')
        lks__log_message(&r->log, "%s", why);
    return LKS_OK;
}

lks_status lks__report_final(lks__report *r, const lks__run *run, const lks__state *state,
                             const lks__eval_result *eval)
{
    if (!r->on)
        return LKS_OK;
    bool best;
    r->newest.val_loss = eval->val_loss;
    LKS__TRY(evaluation_line(r, state, "final", eval, NULL));
    LKS__TRY(lks__metrics_sync(r->metrics)); /* after a power loss `best` must have its line */
    LKS__TRY(lks__best_final(run->s.out_dir, state->iter, eval->val_loss, &r->best, &best));
    lks__report_prometheus(r, run, state, true);
    if (best)
        lks__report_best(r, state);
    return LKS_OK;
}

lks_status lks__report_checkpoint(lks__report *r, const lks__state *state, lks__asked asked,
                                  const char *name, const char *params_hash)
{
    lks__jsonw *w = lks__metrics_begin(r->metrics, "checkpoint");
    lks__jsonw_u64(w, "iter", state->iter);
    lks__jsonw_str(w, "path", name);
    lks__jsonw_str(w, "params_hash", params_hash);
    if (asked != LKS__ASKED_NOT)
        lks__jsonw_str(w, "asked", lks__asked_word(asked));
    return lks__metrics_end(r->metrics);
}

lks_status lks__report_finish(lks__report *r, const lks__run *run, const lks__state *state,
                              const lks__guard *guard, const lks__finish_result *result)
{
    if (!r->on)
        return LKS_OK;
    const lks__eval_result *e = &result->eval;
    lks__jsonw *w = lks__metrics_begin(r->metrics, "artifact");
    lks__jsonw_u64(w, "iter", state->iter);
    lks__jsonw_str(w, "path", result->name);
    lks__jsonw_u64(w, "bytes", result->stats.file_bytes);
    lks__jsonw_u64(w, "payload_bytes", result->stats.int8_payload_bytes);
    lks__jsonw_float(w, "val_loss", e->val_loss);
    if (e->has_bpb)
        lks__jsonw_float(w, "val_bpb", e->val_bpb);
    LKS__TRY(lks__metrics_end(r->metrics));
    run->procedure->finish_lines(run, state, guard, result, &r->log);
    return LKS_OK;
}

lks_status lks__report_close(lks__report *r, const lks__run *run, const lks__session *ses,
                             const lks__state *state, const lks__work *work)
{
    const size_t W = (size_t)ses->world.world_size;
    lks__rank_tally *all = NULL;
    lks_status st = lks__report_ranks(r, run, ses, state, work, &all);
    if (st == LKS_OK && r->metrics != NULL) {
        uint64_t pss = 0;
        lks__jsonw *w = begin_host(r, run, ses, state);
        lks__jsonw_array(w, "micro_batches");
        for (size_t i = 0; i < W; i++)
            lks__jsonw_u64(w, NULL, all[i].micro_batches);
        lks__jsonw_end(w);
        for (size_t i = 0; i < W; i++)
            pss += all[i].pss;
        lks__jsonw_u64(w, "memory_bytes", pss);
        st = lks__metrics_end(r->metrics);
    }
    free(all);
    if (st == LKS_OK && r->on) {
        lks_status closed = lks__metrics_close(r->metrics);
        r->metrics = NULL;
        lks_status events = lks__events_close(r->events);
        r->events = NULL;
        lks__report_others_close(r, ses, state);
        closed = closed == LKS_OK ? events : closed;
        st = closed == LKS_OK ? lks__log_check(&r->log) : closed;
    }
    lks__report_abandon(r);
    return st;
}

void lks__report_abandon(lks__report *r)
{
    if (!r->on)
        return;
    lks__signals_answer(NULL);
    lks__commands_close(r->commands);
    lks__samples_close(r->samples);
    lks__notify_close(&r->notify);
    lks__metrics_close(r->metrics);
    lks__events_close(r->events);
    lks__log_close(&r->log);
    if (r->out_lock >= 0)
        lks__sys_close(r->out_lock);
    r->commands = NULL;
    r->samples = NULL;
    r->metrics = NULL;
    r->events = NULL;
    r->out_lock = -1;
    r->on = false;
}
