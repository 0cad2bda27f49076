/* train/procedure/procedure_golf.c - training as in parameter-golf's train_gpt.py. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "data/read/sampler.h"
#include "files/zip/zip.h"
#include "lockstep/reduce.h"
#include "model/optim/schedule.h"
#include "report/record/files.h"
#include "report/view/series.h"
#include "settings/family.h"
#include "train/evaluate/evaluate.h"
#include "train/procedure/golf.h"
#include "weights/choice/given.h"

/* --- data ------------------------------------------------------------------------------------- */

/* Open the tokenizer, which gives the bytes of each token. Checkpoints record it. */
static lks_status open_tokenizer(lks__run *run)
{
    struct lks__golf_run *g = run->golf;
    const char *path = run->s.tokenizer_path;
    lks__meta own = {.vocab_size = (uint32_t)run->s.vocab_size};
    lks_status st;
    g->has_bpb = true;
    if (path[0] == '\0')
        st = lks__byte_table_in(run->data_dir, own.vocab_size, &g->has_bpb, &g->bytes);
    else
        st = lks__byte_table_open(path, own.vocab_size, &g->bytes);
    own.is_bytes = g->bytes.is_bytes;
    own.is_sentencepiece = g->has_bpb && !own.is_bytes;
    own.model_hash = g->bytes.model_hash;
    LKS__THEN(st, lks__given_tokenizer_of(&run->meta, run->data_dir, &own, path));
    char name[LKS__SETTING_KEY];
    if (st != LKS_OK && path[0] != '\0')
        return lks__fail_in(
            st, "%s",
            run->s.from[LKS__SETTING_tokenizer_path] == LKS__FROM_FILE
                ? "the recipe's tokenizer (TOKENIZER_PATH=MODEL names another one, and "
                  "TOKENIZER_PATH= leaves it out)"
                : lks__family_name_of(&run->s, LKS__SETTING_tokenizer_path, name));
    LKS__TRY(st);
    if (!g->has_bpb && (run->meta.chars != NULL || run->meta.is_bpe))
        return LKS_OK; /* a tokenizer of another kind */
    lks__meta_free(&run->meta);
    run->meta = own;
    return LKS_OK;
}

static lks_status open_data(lks__run *run)
{
    struct lks__golf_run *g = run->golf = calloc(1, sizeof *g);
    LKS__MEMORY(g, "for the run's data");
    LKS__TRY(lks__procedure_find_data(run));
    LKS__TRY(lks__procedure_open_meta(run));
    LKS__TRY(open_tokenizer(run)); /* first, as in the script: the user can fix this */
    LKS__TRY(lks__procedure_open_data(run, (uint32_t)run->s.vocab_size));
    LKS__TRY(
        lks__shards_usable(run->data[LKS__SPLIT_VAL], (uint64_t)run->s.block_size, &g->val_tokens));
    return lks__artifact_code_bytes(run->s.code, &g->code_bytes);
}

static lks_status open_rest(const lks__run *run, lks__state *state)
{
    struct lks__golf_run *g = run->golf;
    size_t B = (size_t)run->s.batch_size, T = (size_t)run->s.block_size;
    g->stream = (lks__stream){
        .shards = run->data[LKS__SPLIT_TRAIN], .V = run->V, .A = run->A, .local_tokens = B * T};
    return LKS_OK;
}

static lks__data_start data_at(const lks__run *run, const lks__state *state,
                               const lks__settings *old, const lks__data_start *from, uint64_t step)
{
    const int V = (int)old->virtual_ranks, N = (int)old->gradient_accumulation_steps;
    const lks__stream stream = {.shards = run->data[LKS__SPLIT_TRAIN],
                                .V = V,
                                .A = N / V,
                                .local_tokens = (size_t)(old->batch_size * old->block_size),
                                .from = *from};
    return (lks__data_start){.step = step, .position = lks__stream_start(&stream, step, 0, 0)};
}

static void start_data(const lks__run *run, const lks__state *state)
{
    run->golf->stream.from = state->segment.data;
}

static void close_all(const lks__run *run, const lks__state *state)
{
    lks__procedure_close_data(run);
    if (run->golf != NULL)
        lks__byte_table_free(&run->golf->bytes);
    free(run->golf);
}

/* --- the step --------------------------------------------------------------------------------- */

static void begin_step(const lks__state *state, lks__step_work *work)
{
}

/* Sequences are adjacent, so a micro-batch is one span of tokens. */
static void find_span(const lks__run *run, const lks__state *state, const lks__step_work *work,
                      int v, int m, lks__spans *spans)
{
    const lks__stream *s = &run->golf->stream;
    spans->single = lks__stream_start(s, state->iter + state->data_shift, v, m);
    spans->at = &spans->single;
    spans->n = 1;
    spans->length = s->local_tokens;
}

/* Decay by iterations, or with a time limit by the clock: then no two runs are equal, and the log
 * says so. */
static double decay(const lks__run *run, const lks__state *state)
{
    const lks__settings *s = &run->s;
    const uint64_t made = state->iter + state->data_shift;
    if (s->max_wallclock_seconds > 0.0)
        return lks__golf_lr_scale_clock(s->max_wallclock_seconds * 1e3, s->warmdown_iters,
                                        (int64_t)(made - state->elapsed_from),
                                        state->elapsed_s * 1e3);
    return lks__golf_lr_scale(s->iterations, s->warmdown_iters, (int64_t)state->iter);
}

static double rates(const lks__run *run, const lks__state *state, lks__rates *rates)
{
    const lks__settings *s = &run->s;
    const double scale = fmax(decay(run, state), s->min_lr), matrix_lr = s->matrix_lr * scale;
    rates->lr[LKS__PARAM_EMBED] = (s->tie_embeddings ? s->tied_embed_lr : s->embed_lr) * scale;
    rates->lr[LKS__PARAM_HEAD] = s->head_lr * scale;
    rates->lr[LKS__PARAM_SCALAR] = s->scalar_lr * scale;
    rates->lr[LKS__PARAM_MATRIX] = rates->orthogonal_lr = matrix_lr;
    rates->eps = s->adam_eps;
    return matrix_lr;
}

/* --- evaluation ------------------------------------------------------------------------------- */

static uint64_t n_steps(const lks__settings *s)
{
    return (uint64_t)s->iterations;
}

static bool evaluation_due(const lks__run *run, const lks__state *state)
{
    return !state->eval_done && run->s.eval_interval > 0 &&
           state->iter % (uint64_t)run->s.eval_interval == 0;
}

/* Sequences per batch: depends on settings only, not on W. */
static size_t eval_batch(const lks__run *run)
{
    const size_t most = (size_t)(run->s.val_batch_size / run->V / run->s.block_size);
    const size_t B = (size_t)run->s.batch_size;
    return most < B ? most : B;
}

/* Evaluation of the whole split. A stride makes windows overlap, and every token counts then. */
static lks__split_eval evaluation(lks__trainer *t, size_t stride)
{
    const struct lks__golf_run *g = t->run.golf;
    const lks__shards *val = t->run.data[LKS__SPLIT_VAL];
    return (lks__split_eval){
        .session = &t->ses,
        .work = &t->work,
        .params = t->state.memory->params.dev,
        .B = eval_batch(&t->run),
        .T = (size_t)t->run.s.block_size,
        .stride = stride,
        .n_tokens = stride > 0 ? lks__shards_count(val) : g->val_tokens,
        .source = val,
        .bytes = g->has_bpb ? &g->bytes : NULL,
    };
}

static lks_status evaluate_by(lks__trainer *t, size_t stride, lks__eval_result *result)
{
    const bool has_bpb = t->run.golf->has_bpb;
    const lks__split_eval e = evaluation(t, stride);
    lks__split_result split;
    LKS__TRY(stride > 0 ? lks__eval_sliding(&e, &split) : lks__eval_split(&e, &split));
    *result = (lks__eval_result){.has_bpb = has_bpb, .val_loss = split.loss, .val_bpb = split.bpb};
    return LKS_OK;
}

static lks_status evaluate(lks__trainer *t, lks__eval_result *result)
{
    return evaluate_by(t, 0, result);
}

/* Also the evaluation of finish(). */
static lks_status rehearse_evaluation(lks__trainer *t)
{
    lks__split_eval e = evaluation(t, 0);
    LKS__TRY(lks__eval_rehearse(&e));
    e = evaluation(t, (size_t)t->run.s.eval_stride);
    return lks__eval_rehearse(&e);
}

/* --- the artifact ----------------------------------------------------------------------------- */

/* Compressing the artifact needs as much memory as the artifact itself. Activations aren't needed
 * until the next pass, so discard them. */
static void make_room(const lks__session *ses, const lks__step_work *work)
{
    size_t bytes;
    void *scratch = lks__model_scratch(work->model, &bytes);
    lks__device_discard(ses->device, scratch, bytes);
}

/* Remove unfinished artifacts of killed processes. */
static lks_status remove_part(const char *dir, const char *name, void *ctx)
{
    static const char part[] = LKS__ARTIFACT_FILE ".tmp-";
    char path[LKS__SETTING_STR + 300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (strncmp(name, part, sizeof part - 1) == 0)
        lks__sys_unlink(path);
    return LKS_OK;
}

static lks_status write_artifact(const lks__run *run, const lks__state *state, const char *path,
                                 lks__artifact_stats *stats)
{
    lks__artifact_about about = {
        .iter = state->iter,
        .settings = lks__settings_to_json(&run->s),
        .tokenizer = lks__meta_to_json(&run->meta),
    };
    lks__sys_each_name("can't read", run->s.out_dir, remove_part, NULL);
    lks_status st = lks__no_memory("to describe the artifact");
    if (about.settings != NULL && about.tokenizer != NULL)
        st = lks__artifact_write(path, &run->table, state->memory->params.host, &about, stats);
    json_decref((json_t *)about.settings);
    json_decref((json_t *)about.tokenizer);
    return st;
}

/* *iter_p is the artifact's iteration. */
static lks_status read_artifact(const lks__run *run, const char *path, float *params,
                                uint64_t *iter_p)
{
    lks__artifact artifact;
    LKS__TRY(lks__artifact_open(path, &artifact));
    lks_status st = lks__artifact_check(&artifact, &run->table);
    LKS__THEN(st, lks__artifact_read(&artifact, &run->table, params));
    *iter_p = artifact.iter;
    lks__artifact_close(&artifact);
    return st;
}

/* As the script ends: write the int8 artifact, read it back into the parameters, and evaluate it.
 */
static lks_status finish(lks__trainer *t, lks__finish_result *r)
{
    char path[LKS__SETTING_STR + 64];
    size_t bytes = t->run.table.count * sizeof(float);
    float *params = t->state.memory->params.host;
    uint64_t iter;
    lks_status st = LKS_OK;
    snprintf(path, sizeof path, "%s/%s", t->run.s.out_dir, LKS__ARTIFACT_FILE);
    lks_comm_note(t->ses.comm, t->state.iter, "artifact");
    make_room(&t->ses, &t->work);
    /* All ranks must have read the parameters before they change. */
    LKS__TRY(lks_comm_barrier(t->ses.comm));
    if (t->ses.world.rank == 0) {
        st = lks__session_check_stop(&t->ses);
        LKS__THEN(st, write_artifact(&t->run, &t->state, path, &r->stats));
        /* The last checkpoint still holds the originals. */
        LKS__THEN(st, read_artifact(&t->run, path, params, &iter));
    }
    LKS__TRY(lks__session_agree(&t->ses, st));
    LKS__TRY(t->run.shared ? lks_comm_replicate(t->ses.comm, params, bytes)
                           : lks_comm_broadcast(t->ses.comm, params, bytes, LKS_UINT8, 0));
    LKS__TRY(lks__memory_upload(t->state.memory, false));
    double started = lks__sys_now();
    LKS__TRY(evaluate_by(t, (size_t)t->run.s.eval_stride, &r->eval));
    r->eval_seconds = lks__sys_now() - started;
    r->name = LKS__ARTIFACT_FILE;
    snprintf(path, sizeof path, "%s/ckpt-%08" PRIu64 "/model.safetensors", t->run.s.out_dir,
             t->state.iter);
    return t->ses.world.rank == 0 ? lks__artifact_file_bytes(path, &r->model_bytes) : LKS_OK;
}

static bool is_whole(const lks__run *run, const char *path, uint64_t iter)
{
    uint64_t found;
    float *params = calloc(run->table.count, sizeof *params);
    const bool whole = params != NULL && read_artifact(run, path, params, &found) == LKS_OK;
    free(params);
    return whole && found == iter;
}

/* The artifact is whole and has the recorded size, and `best` names a checkpoint. */
static bool has_finished(const lks__run *run, const lks__state *state)
{
    lks__series s;
    lks__ckpt best = {.iter = 0};
    char path[LKS__SETTING_STR + 64];
    uint64_t bytes;
    if (run->s.from[LKS__SETTING_code] == LKS__FROM_ARG ||
        run->s.from[LKS__SETTING_tokenizer_path] == LKS__FROM_ARG ||
        lks__series_open(run->s.out_dir, &s) != LKS_OK)
        return false;
    snprintf(path, sizeof path, "%s/%s", run->s.out_dir, LKS__ARTIFACT_FILE);
    const bool whole =
        lks__series_complete(&s) && (uint64_t)lks__json_int(s.artifact, "iter") == state->iter &&
        lks__artifact_file_bytes(path, &bytes) == LKS_OK &&
        (uint64_t)lks__json_int(s.artifact, "bytes") == bytes && is_whole(run, path, state->iter) &&
        lks__ckpt_open_best(run->s.out_dir, LKS__CKPT_ONLY_STATE, &best) == LKS_OK;
    lks__ckpt_close(&best);
    lks__series_close(&s);
    return whole;
}

const struct lks__procedure lks__procedure_golf = {
    .data = &lks__source_shards,
    .vocab_size = 1024,
    .length = "iterations",
    .by_clock = true,
    .open_data = open_data,
    .open_rest = open_rest,
    .data_at = data_at,
    .start_data = start_data,
    .close = close_all,
    .begin_step = begin_step,
    .spans = find_span,
    .rates = rates,
    .n_steps = n_steps,
    .evaluation_due = evaluation_due,
    .evaluate = evaluate,
    .rehearse_evaluation = rehearse_evaluation,
    .evaluates_end = true,
    .finish = finish,
    .has_finished = has_finished,
    .can_finish = lks__zip_available,
    .log_path = lks__golf_log_path,
    .head_lines = lks__golf_head_lines,
    .train_line = lks__golf_train_line,
    .eval_line = lks__golf_eval_line,
    .finish_lines = lks__golf_finish_lines,
};
