/* train/loop/report/report_open.c - output of a run before its first step. */
#include "base/number/units.h"
#include "train/loop/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "comm/world.h"
#include "compute/peak/peak_device.h"
#include "data/text/bpe/bpe.h"
#include "files/checkpoint/name.h"
#include "model/table/freeze.h"
#include "report/record/files.h"
#include "report/record/job.h"
#include "report/record/outdir.h"
#include "session/signals.h"
#include "settings/settings_table.h"
#include "train/procedure/procedure.h"
#include "train/setup/continue.h"

enum { PEAK_BURSTS = 4 };

static lks_status measure_own(void *ctx, double *own_p)
{
    const lks__trainer *t = ctx;
    const lks__session *ses = &t->ses;
    if (lks__memory_on_host(t->state.memory))
        return lks__session_peak(ses, ses->threads, PEAK_BURSTS, own_p);
    size_t bytes;
    void *scratch = lks__model_scratch(t->work.model, &bytes);
    return lks__peak_of_device(ses->device, ses->ex.bf16, scratch, bytes, own_p);
}

/* Measure the FLOP/s of all ranks at the same time. */
static lks_status measure_peak(lks__trainer *t, lks__peak *peak)
{
    int W = t->ses.world.world_size;
    *peak = (lks__peak){.measure = measure_own, .ctx = t};
    lks_status st = lks_comm_barrier(t->ses.comm);
    LKS__THEN(st, measure_own(t, &peak->own));
    double *all = lks__session_gather(&t->ses, &peak->own, sizeof peak->own, &st);
    for (int r = 0; r < W && st == LKS_OK; r++)
        peak->flops += all[r];
    free(all);
    return st;
}

static lks_status config_line(lks__report *r, const lks__run *run)
{
    lks__jsonw *w = lks__metrics_begin(r->metrics, "config");
    lks__jsonw_str(w, "version", LKS_VERSION_TEXT);
    lks__settings_write(&run->s, LKS__SETTING_CONFIG, NULL, w);
    lks__jsonw_u64(w, "parameters", run->table.n_params);
    lks__jsonw_u64(w, "trained_parameters", run->trained_params);
    lks__jsonw_str(w, "data_digest", lks__hex(run->data_digest));
    if (run->data_hash[0] != '\0')
        lks__jsonw_str(w, "data_hash", run->data_hash);
    if (run->init_hash[0] != '\0')
        lks__jsonw_str(w, "init_hash", run->init_hash);
    return lks__metrics_end(r->metrics);
}

/* Learn the host of each rank, [W][LKS__HOST_NAME]. Collective. */
static lks_status gather_hosts(const lks__session *ses, char **hosts_p)
{
    char mine[LKS__HOST_NAME];
    lks_status st = LKS_OK;
    lks__session_host(mine);
    *hosts_p = lks__session_gather(ses, mine, sizeof mine, &st);
    return st;
}

/* Write hosts in the order of their ranks, with the number of ranks that follow each other there.
 * The limit keeps a line within its buffer. */
static void write_hosts(lks__jsonw *w, const char *hosts, size_t W)
{
    enum { MOST = 256 };
    lks__jsonw_array(w, "hosts");
    for (size_t r = 0, next, n = 0; r < W && n < MOST; r = next, n++) {
        const char *host = hosts + r * LKS__HOST_NAME;
        for (next = r + 1; next < W; next++)
            if (memcmp(hosts + next * LKS__HOST_NAME, host, LKS__HOST_NAME) != 0)
                break;
        lks__jsonw_object(w, NULL);
        lks__jsonw_str(w, "host", host);
        lks__jsonw_u64(w, "ranks", next - r);
        lks__jsonw_end(w);
    }
    lks__jsonw_end(w);
}

static lks_status host_line(lks__report *r, const lks__trainer *t)
{
    const lks__run *run = &t->run;
    lks__jsonw *w = lks__report_begin_host(r, t);
    write_hosts(w, r->hosts, (size_t)t->ses.world.world_size);
    if (run->resumed) {
        lks__jsonw_u64(w, "resumed_iter", t->state.iter);
        lks__jsonw_object(w, "changed");
        lks__settings_write(&run->s, LKS__SETTING_CONFIG, &run->resumed_from, w);
        lks__jsonw_end(w);
        lks__jsonw_object(w, "config");
        lks__settings_write(&run->s, LKS__SETTING_CONFIG, NULL, w);
        lks__jsonw_end(w);
    }
    return lks__metrics_end(r->metrics);
}

/* Name the settings of the batch that the resume has changed, with both values. */
static void describe_segment(lks__log *log, const lks__run *run)
{
    const char *names[LKS__N_SETTINGS];
    char text[400] = "", was[LKS__SETTING_STR], is[LKS__SETTING_STR];
    const int n = lks__settings_diff(&run->s, &run->resumed_from, LKS__CMD_TRAIN,
                                     LKS__SETTING_SEGMENT, names);
    for (int i = 0; i < n; i++) {
        const int setting = lks__setting_find(names[i]);
        lks__append(text, sizeof text, ", ", "%s %s -> %s", names[i],
                    lks__settings_text(&run->resumed_from, setting, was),
                    lks__settings_text(&run->s, setting, is));
    }
    if (n > 0)
        lks__log_line(log, "A new segment of the run begins: %s", text);
}

static void describe_frozen(lks__log *log, const lks__run *run)
{
    char text[LKS__FROZEN_TEXT];
    const lks__table *table = &run->table;
    if (run->s.eval_only)
        return;
    for (size_t next = 0; lks__frozen_next(table, &next, text);)
        lks__log_line(log, "frozen: %s", text);
    if (table->trained_params < table->n_params)
        lks__log_line(log, "parameters that are trained: %zu of %zu", table->trained_params,
                      table->n_params);
}

/* Describe the run's origin, and how it is divided over ranks. */
static void describe(lks__report *r, const lks__trainer *t)
{
    const lks__run *run = &t->run;
    lks__log *log = &r->log;
    run->procedure->head_lines(run, &t->ses, log);
    if (run->fit_room > 0.0)
        lks__log_line(log,
                      "batch_size=auto: %" PRId64 " samples in each of %d micro-batches, the most "
                      "that fit (%s may use %.0f MB)",
                      run->s.batch_size, run->N,
                      t->ses.device->ops->memory == NULL ? "this host" : "a rank on its GPU",
                      run->fit_room / 1e6);
    describe_frozen(log, run);
    if (run->resumed && run->s.eval_only)
        lks__log_line(log, "Evaluating checkpoint %" PRIu64 " of %s", t->state.iter,
                      run->shown_out_dir);
    else if (run->resumed) {
        lks__log_line(log, "Resuming training from %s at iteration %" PRIu64, run->shown_out_dir,
                      t->state.iter);
        if (t->state.iter < run->procedure->n_steps(&run->s))
            describe_segment(log, run);
    } else if (run->continued)
        lks__log_line(log, "Resuming training from %s of nanoGPT at iteration %" PRIu64,
                      run->weights->shown, t->state.iter);
    else if (run->weights != NULL)
        lks__log_line(log, "Initializing from the weights in %s (%s), hash %s", run->weights->shown,
                      run->weights->origin, run->init_hash);
    else
        lks__log_line(log, "Initializing a new model from scratch");
    if (run->weights != NULL && run->weights->note[0] != '\0')
        lks__log_line(log, "%s", run->weights->note);
    char how[80];
    if (t->ses.device->ops->memory == NULL)
        snprintf(how, sizeof how, "kernels %s", lks__cpu_level_name(t->ses.kernels.level));
    else
        snprintf(how, sizeof how, "%s on %s", lks__setting_word(&run->s, LKS__SETTING_dtype),
                 t->ses.device->ops->name);
    lks__log_line(log,
                  "%d rank%s x %d thread%s, %d virtual rank%s, %d micro-batch%s per step, %s, "
                  "peak %.0f GFLOP/s",
                  t->ses.world.world_size, t->ses.world.world_size == 1 ? "" : "s", t->ses.threads,
                  t->ses.threads == 1 ? "" : "s", run->V, run->V == 1 ? "" : "s", run->N,
                  run->N == 1 ? "" : "es", how, r->peak.flops * 1e-9);
}

/* The setting that ends the run. */
static const char *ended_by(const lks__run *run, const lks__checks *checks)
{
    return checks->out_of_time ? "max_wallclock_seconds" : run->procedure->length;
}

/* Name changed settings that have no effect, such as a new learning rate, because the run has no
 * further step. */
static void say_unused(lks__log *log, const lks__run *run, const lks__checks *checks)
{
    const char *names[LKS__N_SETTINGS];
    char text[400] = "";
    const int n =
        lks__settings_diff(&run->s, &run->resumed_from, LKS__CMD_TRAIN, LKS__SETTING_CONFIG, names);
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], run->procedure->length) != 0 &&
            strcmp(names[i], ended_by(run, checks)) != 0)
            lks__append(text, sizeof text, ", ", "%s", names[i]);
    if (text[0] != '\0')
        lks__log_message(log, "there is no further step, so these have no effect on training: %s",
                         text);
}

/* Say that no step is left, because a silent end would look like a failed resume. */
static void say_complete(lks__report *r, const lks__trainer *t)
{
    if (!t->run.resumed || t->run.s.eval_only ||
        (t->state.iter < t->run.procedure->n_steps(&t->run.s) && !t->checks.out_of_time))
        return;
    lks__log_message(&r->log, "the run is complete; with a larger %s it continues from here",
                     ended_by(&t->run, &t->checks));
    say_unused(&r->log, &t->run, &t->checks);
}

void lks__report_nothing(const lks__trainer *t, bool finished)
{
    const lks__run *run = &t->run;
    const char *limit = ended_by(run, &t->checks);
    lks__log log;
    char value[LKS__SETTING_STR];
    lks__settings_text(&run->s, lks__setting_find(limit), value);
    lks__log_open(&log, "lockstep train", stdout, stderr);
    if (finished)
        lks__log_message(&log,
                         "the run is complete; with a larger %s it continues from here. Its %s is "
                         "whole, so %s stays unchanged",
                         limit, LKS__ARTIFACT_FILE, run->shown_out_dir);
    else
        lks__log_message(&log,
                         "with %s=%s there is no step to train after checkpoint %" PRIu64
                         ", so %s stays unchanged; a larger %s continues from that checkpoint",
                         limit, value, t->state.iter, run->shown_out_dir, limit);
    say_unused(&log, run, &t->checks);
    lks__log_close(&log);
}

/* Warn of a learning rate that rises to a recipe's min_lr, of a run that ends in nanoGPT's long
 * warm-up, and of one that is longer than the decay: many steps then use the lowest rate. Values of
 * the same origin were chosen together. */
static void note_schedule(lks__report *r, const lks__run *run, const lks__state *state)
{
    const lks__settings *s = &run->s;
    const bool chosen = s->from[LKS__SETTING_max_iters] == s->from[LKS__SETTING_lr_decay_iters];
    const uint64_t end = (uint64_t)s->max_iters, decay = (uint64_t)s->lr_decay_iters;
    if (run->procedure != &lks__procedure_nanogpt || !s->decay_lr || s->eval_only ||
        state->iter > end)
        return;
    char rate[LKS__NUMBER_TEXT], min_lr[LKS__NUMBER_TEXT];
    lks__number_text(s->learning_rate, false, rate);
    lks__number_text(s->min_lr, false, min_lr);
    if (s->learning_rate < s->min_lr && (uint64_t)s->warmup_iters < end)
        lks__log_message(&r->log,
                         "the learning rate rises from learning_rate=%s to min_lr=%s after the "
                         "warm-up; --min_lr=%.3g lets it fall",
                         rate, min_lr, s->learning_rate / 10.0);
    if (s->from[LKS__SETTING_warmup_iters] == LKS__FROM_DEFAULT &&
        s->from[LKS__SETTING_max_iters] != LKS__FROM_DEFAULT && end >= 20 &&
        end < (uint64_t)s->warmup_iters)
        lks__log_message(&r->log,
                         "the learning rate rises during the whole run, as warmup_iters=%" PRId64
                         " and max_iters=%" PRIu64 "; --warmup_iters=%" PRIu64
                         " shortens the warm-up",
                         s->warmup_iters, end, end / 20);
    if (chosen || decay >= end || end - decay <= end / 10)
        return;
    lks__log_message(&r->log,
                     "the learning rate stays at min_lr=%s after iteration %" PRIu64
                     ", as lr_decay_iters=%" PRIu64 " and max_iters=%" PRIu64
                     "; --lr_decay_iters=%" PRIu64 " lets it fall over the whole run",
                     min_lr, decay, decay, end, end);
}

/* Warn of passes that leave out more than a twentieth of the samples; suggest a batch that is at
 * most as large. */
static void note_epochs(lks__report *r, const lks__run *run, const lks__state *state)
{
    if (state->sampler == NULL)
        return;
    const int64_t given = run->s.batch_size;
    uint64_t n;
    const uint64_t left = lks__batch_sampler_left_out(state->sampler, (int)given, &n);
    if (left <= n / 20 || given == 1 || run->s.eval_only)
        return;
    int better = (int)given - 1;
    while (better > 1 && lks__batch_sampler_left_out(state->sampler, better, &n) > n / 20)
        better--;
    lks__log_message(&r->log,
                     "each pass over the data leaves out %" PRIu64 " of %" PRIu64
                     " samples, which don't fill a batch of batch_size=%" PRId64
                     " for each of %d virtual ranks; --batch_size=%d leaves out %" PRIu64,
                     left, n, given, run->V, better,
                     lks__batch_sampler_left_out(state->sampler, better, &n));
}

static void note_device(lks__report *r, const lks__session *ses)
{
    const char *note = lks__session_device_note(ses);
    if (note != NULL)
        lks__log_message(&r->log, "%s", note);
    if (ses->algorithms_note[0] != '\0')
        lks__log_message(&r->log,
                         "warning: new algorithms for matrix products were chosen, because the "
                         "checkpoint's can't be used here: %s",
                         ses->algorithms_note);
}

static void note_recheck(lks__report *r, const lks__trainer *t)
{
    if (t->checks.recheck != NULL)
        lks__log_message(
            &r->log,
            "recheck: in %g %% of the steps each of the %d ranks also computes one gradient of "
            "another host, of %d gradients per step, which makes the run about %.3g %% longer",
            100.0 * t->run.s.recheck, t->ses.world.world_size, t->run.V,
            100.0 * t->run.s.recheck * t->ses.world.world_size / t->run.V);
}

/* Other kernels than the checkpoint's produce other bits. */
static void warn_of_other_kernels(lks__report *r, const lks__run *run, const lks__session *ses)
{
    if (run->resumed_fingerprint[0] != '\0' && run->resumed_from.dtype == run->s.dtype &&
        strcmp(run->resumed_fingerprint, ses->fingerprint) != 0)
        lks__log_message(
            &r->log,
            "warning: the checkpoint was made with kernels of fingerprint %s, here it is "
            "%s: the run continues, but from here on its bytes differ from a run with those",
            run->resumed_fingerprint, ses->fingerprint);
}

/* nanoGPT may have trained on in the folder since the checkpoint that is resumed. */
static void warn_of_later_nanogpt(lks__report *r, const lks__run *run, const lks__state *state)
{
    const uint64_t iter = run->resumed ? lks__continue_left_at(run->s.out_dir) : 0;
    if (iter > state->iter)
        lks__log_message(&r->log,
                         "warning: %s/ckpt.pt of nanoGPT is at iteration %" PRIu64
                         " and isn't read, because this folder has a checkpoint of lockstep; to "
                         "continue from ckpt.pt, stop this run, and move that file to a new folder",
                         run->shown_out_dir, iter);
}

/* Check for symbolic links now, because the first save may be hours away. */
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

/* Copy the vocabulary into the run's folder, because the data may be gone at sampling. */
static lks_status keep_vocabulary(lks__report *r, const lks__run *run)
{
    char to[LKS__SETTING_STR + 32], from[LKS__CKPT_PATH + 32], *text = NULL;
    size_t bytes;
    uint64_t hash;
    lks__bpe *bpe = NULL;
    lks_status st;
    if (!run->meta.is_bpe)
        return LKS_OK;
    if (run->vocabulary[0] == '\0' || !lks__bpe_is_at(run->vocabulary)) {
        lks__log_message(&r->log,
                         "the vocabulary was not found, so %s gets no " LKS__BPE_FILE
                         ": `lockstep sample` will need --tokenizer=DIR",
                         run->shown_out_dir);
        return LKS_OK;
    }
    snprintf(to, sizeof to, "%s/" LKS__BPE_FILE, run->s.out_dir);
    snprintf(from, sizeof from, "%s/" LKS__BPE_FILE, run->vocabulary);
    if (access(from, F_OK) == 0) { /* copied without the memory that its tokens would take */
        st = lks__sys_read_file(from, LKS__BPE_MAX_FILE, &text, &bytes);
    } else {
        LKS__TRY(lks__bpe_open(run->vocabulary, &bpe));
        st = lks__bpe_text(bpe, &text, &bytes, &hash);
    }
    LKS__THEN(st, lks__sys_write_file(to, text, bytes));
    free(text);
    lks__bpe_close(bpe);
    return st;
}

/* The state of the run's folder when it was opened. */
struct found {
    /* New path of an earlier run, or of the later part of this one; "": none. */
    char moved[LKS__SYS_PATH];
    bool empty;    /* metrics.jsonl has no line */
    bool has_line; /* metrics.jsonl has the line of the checkpoint that is resumed */
};

/* While a resumed run read its checkpoint, its folder may have been moved, and another run's, whose
 * files it would cut and delete, may have got its name. */
static lks_status check_folder(const lks__run *run, uint64_t iter)
{
    lks__ckpt now = {.iter = 0};
    lks_status st = lks__ckpt_open_iter(run->s.out_dir, iter, LKS__CKPT_ONLY_STATE, &now);
    const char *hash = st == LKS_OK ? lks__json_str(now.state, "params_hash") : NULL;
    const bool same = hash != NULL && strcmp(hash, run->resumed_hash) == 0;
    lks__ckpt_close(&now);
    if (same)
        return LKS_OK;
    if (st != LKS_OK && st != LKS_ERR_CONFIG && lks__sys_is_folder(run->s.out_dir))
        return st; /* it exists, but can't be read */
    st = lks__outdir_free(run->s.out_dir, run->s.lock == LKS__lock_on); /* another resume's */
    if (st == LKS_OK)
        st = lks__fail(
            LKS_ERR_IO,
            "the checkpoint that was read isn't in %s any more: the folder was moved, removed or "
            "replaced meanwhile; move it back, then continue",
            run->shown_out_dir);
    lks__sys_set_lasting(lks_last_error()); /* a restart would continue another run */
    return st;
}

/* Lock the folder, move files aside that don't belong to the run, and open metrics.jsonl: empty, or
 * cut after the checkpoint. */
static lks_status open_metrics(lks__report *r, const lks__trainer *t, bool saves_again,
                               struct found *found)
{
    const lks__run *run = &t->run;
    const char *out_dir = run->s.out_dir;
    *found = (struct found){.empty = true};
    if (run->resumed)
        LKS__TRY(check_folder(run, t->state.iter));
    LKS__TRY(lks__outdir_lock(out_dir, run->s.lock == LKS__lock_on, &r->out_lock));
    if (run->resumed) {
        const lks__metrics_cut cut = {.iter = t->state.iter,
                                      .eval_done = t->state.eval_done,
                                      .own_line = !saves_again,
                                      .params_hash = run->resumed_hash};
        LKS__TRY(lks__outdir_back(out_dir, t->state.iter, found->moved));
        return lks__metrics_resume(out_dir, &cut, &found->empty, &found->has_line, &r->metrics);
    }
    /* Otherwise these are files of this run, which has no checkpoint yet. */
    if (!lks__job_restarted(out_dir))
        LKS__TRY(lks__outdir_start(out_dir, run->data_dir, found->moved));
    LKS__TRY(lks__metrics_create(out_dir, &r->metrics));
    return keep_vocabulary(r, run);
}

static lks_status open_logs(lks__report *r, const lks__run *run)
{
    char path[LKS__SETTING_STR + 16];
    snprintf(path, sizeof path, "%s/train.log", run->s.out_dir);
    LKS__TRY(lks__log_to_file(&r->log, path));
    if (run->procedure->log_path == NULL)
        return LKS_OK;
    LKS__TRY(run->procedure->log_path(run, path));
    return path[0] != '\0' ? lks__log_to_file(&r->log, path) : LKS_OK;
}

static void describe_files(lks__report *r, const lks__run *run, const lks__state *state,
                           const struct found *found)
{
    if (found->moved[0] != '\0')
        lks__log_line(&r->log, "%s was moved to %s",
                      run->resumed ? "the part of the run after this checkpoint" : "an earlier run",
                      lks__shown(found->moved, LKS__SYS_PATH));
    if (found->empty && state->iter > 0 && run->resumed)
        lks__log_message(&r->log,
                         "metrics.jsonl in %s was missing or empty: the record of this run begins "
                         "at iteration %" PRIu64 " now",
                         run->shown_out_dir, state->iter);
    if (lks__metrics_is_other(r->metrics))
        lks__log_message(&r->log,
                         "metrics.jsonl in %s records other weights for checkpoint %" PRIu64
                         " than the checkpoint has: the file is another run's, or the checkpoint "
                         "was changed",
                         run->shown_out_dir, state->iter);
}

static lks_status find_best(lks__report *r, const lks__trainer *t, bool empty)
{
    const char *out_dir = t->run.s.out_dir;
    if (!t->run.resumed)
        return lks__best_clear(out_dir, &r->best);
    return empty ? lks__best_keep(out_dir, t->state.iter, t->state.best_val_loss, &r->best)
                 : lks__best_decide(out_dir, t->state.iter, &r->best);
}

static lks_status open_files(lks__report *r, const lks__trainer *t, bool saves_again)
{
    struct found found;
    LKS__TRY(open_metrics(r, t, saves_again, &found));
    if (t->run.s.tensorboard)
        LKS__TRY(lks__report_events_open(r, &t->run, &t->state));
    LKS__TRY(lks__job_mark(t->run.s.out_dir));
    LKS__TRY(open_logs(r, &t->run));
    LKS__TRY(probe_names(r, &t->run));
    describe_files(r, &t->run, &t->state, &found);
    if (found.empty)
        LKS__TRY(config_line(r, &t->run));
    /* The run died after it saved the checkpoint, and before it wrote the checkpoint's line. */
    if (t->run.resumed && !saves_again && !found.has_line)
        LKS__TRY(lks__report_checkpoint(r, &t->state, t->run.resumed_asked, t->run.resumed_hash));
    LKS__TRY(find_best(r, t, found.empty));
    return host_line(r, t);
}

/* A device with its own memory doesn't hash gradients, but a record of an earlier part is cut. */
static lks_status open_leaves(lks__report *r, const lks__trainer *t)
{
    const bool hashes = lks__reducer_hashes(t->work.reducer) != NULL;
    const uint64_t iter = t->run.resumed ? t->state.iter : 0;
    const lks_status st = lks__leaves_resume(t->run.s.out_dir, iter, hashes, &r->leaves);
    return st == LKS_OK && !hashes ? lks__leaves_close(&r->leaves) : st;
}

/* The terminal or pipe isn't read. Beat, so that other ranks don't give this one up. False after a
 * stop, so that the state can be saved. */
static bool on_wait(void *comm)
{
    lks_comm_beat(comm);
    return lks__stop_requested == 0;
}

/* Answer a first signal at once. With several ranks the launcher does so. A live line is cleared
 * first. */
static void answer_signals(const lks__report *r, const lks__session *ses)
{
#define ANSWER                                                                                     \
    "lockstep train: stopping once the batch under way is done; a second signal ends the run at "  \
    "once, and a third while it saves\n"
    if (ses->world.world_size == 1)
        lks__signals_answer(r->log.err_moves ? LKS__CLEAR_LINE ANSWER : ANSWER);
}

/* Print the run's origin and division, and notes about settings that may surprise. */
static void print_start(lks__report *r, const lks__trainer *t, bool reads_only)
{
    describe(r, t);
    if (reads_only && !t->run.resumed)
        lks__log_message(&r->log,
                         "%s contains an earlier run, so this evaluation is only printed: "
                         "--init_from=resume evaluates that run",
                         t->run.shown_out_dir);
    note_device(r, &t->ses);
    note_recheck(r, t);
    warn_of_other_kernels(r, &t->run, &t->ses);
    warn_of_later_nanogpt(r, &t->run, &t->state);
    lks__report_slow_run(r, &t->run, &t->state);
    note_schedule(r, &t->run, &t->state);
    note_epochs(r, &t->run, &t->state);
    say_complete(r, t);
}

lks_status lks__report_open(lks__report *r, lks__trainer *t, bool saves_again)
{
    memset(r, 0, sizeof *r);
    r->out_lock = -1;
    r->notify.fd = -1;
    LKS__TRY(measure_peak(t, &r->peak));
    LKS__TRY(gather_hosts(&t->ses, &r->hosts));
    r->on = t->ses.world.rank == 0;
    r->started = lks__sys_now();
    r->mfu = -1.0;
    r->newest = (lks__newest){NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    r->tokens_per_step =
        (double)t->run.N * (double)t->run.s.batch_size * (double)t->run.s.block_size;
    r->flops_per_token = lks__model_flops_per_token(&t->run.model_config, &t->run.table);
    if (!r->on)
        return LKS_OK;
    lks__log_open(&r->log, "lockstep train", stdout, stderr);
    lks__log_live(&r->log, !lks__world_foreign()); /* mpirun gives a rank a terminal, but logs it */
    lks__log_on_wait(&r->log, on_wait, t->ses.comm);
    const bool reads_only =
        t->run.s.eval_only && (t->run.resumed || lks__procedure_has_run(&t->run.s));
    if (!reads_only) {
        if (t->run.s.sample_tokens > 0)
            LKS__TRY(lks__samples_open(t, &r->samples));
        LKS__TRY(open_files(r, t, saves_again));
        LKS__TRY(open_leaves(r, t));
    }
    print_start(r, t, reads_only);
    const lks_status st = lks__report_hooks_open(r, &t->run);
    answer_signals(r, &t->ses);
    return st;
}
