/* train/procedure/procedure_golf.c - runs like those of parameter-golf's train_gpt.py. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "data/read/sampler.h"
#include "lockstep/reduce.h"
#include "model/optim/schedule.h"
#include "report/record/files.h"
#include "train/evaluate/evaluate.h"
#include "train/procedure/golf.h"

/* --- data ------------------------------------------------------------------------------------- */

/* Open the tokenizer, which counts bytes; a checkpoint records which model it was. */
static lks_status open_tokenizer(lks__trainer *t)
{
    struct lks__golf_run *g = t->run.golf;
    lks_status st;
    g->has_bpb = true;
    if (t->run.s.tokenizer_path[0] == '\0')
        st = lks__byte_table_in(t->run.data_dir, t->run.meta.vocab_size, &g->has_bpb, &g->bytes);
    else
        st = lks__byte_table_open(t->run.s.tokenizer_path, t->run.meta.vocab_size, &g->bytes);
    if (st != LKS_OK && t->run.s.from[LKS__SETTING_tokenizer_path] == LKS__FROM_FILE)
        return lks__fail_in(st, "the recipe's tokenizer (TOKENIZER_PATH=MODEL names another one, "
                                "and TOKENIZER_PATH= leaves it out)");
    LKS__TRY(st);
    if (!g->has_bpb)
        return LKS_OK; /* ids, or another tokenizer's */
    lks__meta_free(&t->run.meta);
    t->run.meta.vocab_size = (uint32_t)t->run.s.vocab_size;
    t->run.meta.is_bytes = g->bytes.is_bytes;
    t->run.meta.is_sentencepiece = !g->bytes.is_bytes;
    t->run.meta.model_hash = g->bytes.model_hash;
    return LKS_OK;
}

static lks_status open_data(lks__trainer *t)
{
    struct lks__golf_run *g = t->run.golf = calloc(1, sizeof *g);
    if (g == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the run's data");
    LKS__TRY(lks__procedure_find_data(t));
    LKS__TRY(lks__procedure_open_meta(t));
    if (t->run.meta.chars == NULL &&
        !t->run.meta.is_bpe) { /* the tokenizer tells what the ids are */
        lks__meta_free(&t->run.meta);
        t->run.meta.vocab_size = (uint32_t)t->run.s.vocab_size;
    }
    LKS__TRY(open_tokenizer(t)); /* first, as in the script: the user can mend this */
    const uint32_t vocab = (uint32_t)t->run.s.vocab_size;
    LKS__TRY(
        lks__procedure_open_split(&t->run.s, t->run.data_dir, LKS__SPLIT_TRAIN, vocab, &g->train));
    LKS__TRY(lks__procedure_open_split(&t->run.s, t->run.data_dir, LKS__SPLIT_VAL, vocab, &g->val));
    LKS__TRY(lks__procedure_digest((lks__shards *[]){g->train, g->val}, &t->run.data_digest));
    LKS__TRY(lks__shards_usable(g->val, (uint64_t)t->run.s.block_size, &g->val_tokens));
    return lks__artifact_code_bytes(t->run.s.code, &g->code_bytes);
}

static lks_status open_rest(lks__trainer *t)
{
    struct lks__golf_run *g = t->run.golf;
    size_t B = (size_t)t->run.s.batch_size, T = (size_t)t->run.s.block_size;
    size_t most = (size_t)(t->run.s.val_batch_size / t->run.V) / T;
    g->stream = (lks__stream){g->train, t->run.V, t->run.A, B * T};
    g->eval_batch = most < B ? most : B; /* activations are allocated for B */
    return LKS_OK;
}

static void close_all(lks__trainer *t)
{
    struct lks__golf_run *g = t->run.golf;
    if (g == NULL)
        return;
    lks__byte_table_free(&g->bytes);
    lks__shards_close(g->train);
    lks__shards_close(g->val);
    free(g);
}

/* --- the step --------------------------------------------------------------------------------- */

static lks_status begin_step(lks__trainer *t)
{
    return LKS_OK;
}

/* Sequences follow each other, so that a micro-batch is one span of tokens. */
static lks_status read_batch(lks__trainer *t, int v, int m, int32_t *tokens, int32_t *targets)
{
    const struct lks__golf_run *g = t->run.golf;
    LKS__TRY(lks__stream_read(&g->stream, t->state.iter + t->state.data_shift, v, m, tokens));
    memcpy(targets, tokens + 1, g->stream.local_tokens * sizeof *tokens);
    return LKS_OK;
}

/* By iterations, or with a time limit by the clock: then two runs differ, and the log says so. */
static double lr_scale(const lks__trainer *t)
{
    const lks__settings *s = &t->run.s;
    if (s->max_wallclock_seconds > 0.0)
        return lks__golf_lr_scale_clock(s->max_wallclock_seconds * 1e3, s->warmdown_iters,
                                        (int64_t)(t->state.iter + t->state.data_shift),
                                        t->state.elapsed_s * 1e3);
    return lks__golf_lr_scale(s->iterations, s->warmdown_iters, (int64_t)t->state.iter);
}

static double rates(const lks__trainer *t, lks__rates *rates)
{
    const lks__settings *s = &t->run.s;
    const double scale = lr_scale(t), matrix_lr = s->matrix_lr * scale;
    rates->lr[LKS__PARAM_EMBED] = (s->tie_embeddings ? s->tied_embed_lr : s->embed_lr) * scale;
    rates->lr[LKS__PARAM_HEAD] = s->head_lr * scale;
    rates->lr[LKS__PARAM_SCALAR] = s->scalar_lr * scale;
    rates->lr[LKS__PARAM_MATRIX] = rates->orthogonal_lr = matrix_lr;
    rates->eps = s->adam_eps;
    return matrix_lr;
}

/* Rank 0's clock decides; otherwise ranks would not agree on when to stop. */
static lks_status end_step(lks__trainer *t, lks__step_result *r)
{
    t->state.elapsed_s += r->seconds;
    if (t->run.s.max_wallclock_seconds <= 0.0)
        return LKS_OK;
    LKS__TRY(lks_comm_broadcast(t->ses.comm, &t->state.elapsed_s, sizeof t->state.elapsed_s,
                                LKS_UINT8, 0));
    t->guard.out_of_time = t->state.elapsed_s >= t->run.s.max_wallclock_seconds;
    return LKS_OK;
}

/* --- evaluation ------------------------------------------------------------------------------- */

static uint64_t n_steps(const lks__settings *s)
{
    return (uint64_t)s->iterations;
}

static bool evaluation_due(const lks__trainer *t)
{
    if (t->state.eval_done)
        return false;
    if (t->state.iter >= n_steps(&t->run.s) || t->guard.out_of_time)
        return true;
    return t->run.s.eval_interval > 0 && t->state.iter % (uint64_t)t->run.s.eval_interval == 0;
}

static lks_status read_val(const void *val, uint64_t first, size_t n, int32_t *out)
{
    return lks__shards_read(val, first, n, out);
}

static lks_status evaluate(lks__trainer *t, lks__eval_result *result)
{
    const struct lks__golf_run *g = t->run.golf;
    lks__split_result split;
    lks__split_eval e = {
        .session = &t->ses,
        .model = t->work.model,
        .params = t->state.memory->params.dev,
        .B = g->eval_batch,
        .T = (size_t)t->run.s.block_size,
        .path = lks__shards_path(g->val, 0),
        .n_tokens = g->val_tokens,
        .read = read_val,
        .source = g->val,
        .bytes = g->has_bpb ? &g->bytes : NULL,
    };
    LKS__TRY(lks__eval_split(&e, &split));
    *result =
        (lks__eval_result){.has_bpb = g->has_bpb, .val_loss = split.loss, .val_bpb = split.bpb};
    return LKS_OK;
}

/* --- the artifact ----------------------------------------------------------------------------- */

/* The compressed artifact needs the host's memory, as much as its own size; activations aren't
 * needed until the next pass. */
static void make_room(const lks__trainer *t)
{
    size_t bytes;
    void *scratch = lks__model_scratch(t->work.model, &bytes);
    lks__device_discard(t->ses.device, scratch, bytes);
}

static lks_status write_artifact(lks__trainer *t, const char *path, lks__artifact_stats *stats)
{
    lks__artifact_about about = {
        .iter = t->state.iter,
        .settings = lks__settings_to_json(&t->run.s, LKS__CMD_TRAIN, LKS__SETTING_CONFIG),
        .tokenizer = lks__meta_to_json(&t->run.meta),
    };
    lks_status st = lks__fail(LKS_ERR_NOMEM, "no memory to describe the artifact");
    if (about.settings != NULL && about.tokenizer != NULL)
        st = lks__artifact_write(path, &t->run.table, t->state.memory->params.host, &about, stats);
    json_decref((json_t *)about.settings);
    json_decref((json_t *)about.tokenizer);
    return st;
}

static lks_status read_artifact(lks__trainer *t, const char *path)
{
    lks__artifact artifact;
    LKS__TRY(lks__artifact_open(path, &artifact));
    lks_status st = lks__artifact_check(&artifact, &t->run.table);
    if (st == LKS_OK)
        st = lks__artifact_read(&artifact, &t->run.table, t->state.memory->params.host);
    lks__artifact_close(&artifact);
    return st;
}

/* The end of the script: write the int8 artifact, read it back in place of the parameters, which
 * the last checkpoint holds, and evaluate it. */
static lks_status finish(lks__trainer *t, lks__finish_result *r)
{
    char path[LKS__SETTING_STR + 64];
    size_t bytes = t->run.table.count * sizeof(float);
    lks_status st = LKS_OK;
    snprintf(path, sizeof path, "%s/%s", t->run.s.out_dir, LKS__ARTIFACT_FILE);
    lks_comm_note(t->ses.comm, t->state.iter, "artifact");
    make_room(t);
    /* All have read the parameters that are overwritten now. */
    LKS__TRY(lks_comm_barrier(t->ses.comm));
    if (t->ses.world.rank == 0) {
        st = lks__session_check_stop(&t->ses);
        if (st == LKS_OK)
            st = write_artifact(t, path, &r->stats);
        if (st == LKS_OK)
            st = read_artifact(t, path);
    }
    LKS__TRY(lks__session_agree(&t->ses, st));
    LKS__TRY(t->run.shared ? lks_comm_replicate(t->ses.comm, t->state.memory->params.host, bytes)
                           : lks_comm_broadcast(t->ses.comm, t->state.memory->params.host, bytes,
                                                LKS_UINT8, 0));
    LKS__TRY(lks__memory_upload(t->state.memory, false));
    double started = lks__sys_now();
    LKS__TRY(evaluate(t, &r->eval));
    r->eval_seconds = lks__sys_now() - started;
    r->name = LKS__ARTIFACT_FILE;
    snprintf(path, sizeof path, "%s/ckpt-%08" PRIu64 "/model.safetensors", t->run.s.out_dir,
             t->state.iter);
    return t->ses.world.rank == 0 ? lks__artifact_file_bytes(path, &r->model_bytes) : LKS_OK;
}

/* By the clock; such a run isn't repeatable, as the script's isn't. */
static double time_limit(const lks__settings *s)
{
    return s->max_wallclock_seconds;
}

const struct lks__procedure lks__procedure_golf = {
    .data = &lks__source_shards,
    .vocab_size = 1024,
    .length = "iterations",
    .optimizer = &lks__optimizer_muon,
    .time_limit = time_limit,
    .open_data = open_data,
    .open_rest = open_rest,
    .close = close_all,
    .begin_step = begin_step,
    .read = read_batch,
    .rates = rates,
    .end_step = end_step,
    .n_steps = n_steps,
    .evaluation_due = evaluation_due,
    .evaluate = evaluate,
    .finish = finish,
    .can_finish = lks__artifact_available,
    .log_path = lks__golf_log_path,
    .head_lines = lks__golf_head_lines,
    .train_line = lks__golf_train_line,
    .eval_line = lks__golf_eval_line,
    .finish_lines = lks__golf_finish_lines,
};
