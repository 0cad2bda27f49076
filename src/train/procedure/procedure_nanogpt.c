/* train/procedure/procedure_nanogpt.c - runs like those of nanoGPT's train.py. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/read/sampler.h"
#include "model/batch.h"
#include "model/optim/schedule.h"
#include "train/evaluate/evaluate.h"
#include "train/procedure/procedure.h"
#include "weights/forms/saved.h"

/* --- data ------------------------------------------------------------------------------------- */

static lks_status open_data(lks__trainer *t)
{
    LKS__TRY(lks__procedure_find_data(t));
    LKS__TRY(lks__procedure_open_meta(t));
    for (int split = 0; split < 2; split++)
        LKS__TRY(lks__procedure_open_split(&t->run.s, t->run.data_dir, split,
                                           t->run.meta.vocab_size, &t->run.data[split]));
    return lks__procedure_digest(t->run.data, &t->run.data_digest);
}

/* The draws of the script until its first batch: it makes a model with new weights first, of the
 * size that it has before it is cut, and then puts given ones into it. */
static uint64_t init_draws(const lks__trainer *t)
{
    if (t->run.weights == NULL)
        return lks__model_init(&t->run.model_config, &t->run.table, NULL, NULL);
    const lks__settings *source = &t->run.weights->model;
    const lks__model_config config = lks__state_model_config(source, (uint32_t)source->vocab_size);
    lks__table table;
    if (lks__model_tensors(&config, &table) != LKS_OK)
        return 0;
    const uint64_t n = lks__model_init(&config, &table, NULL, NULL);
    lks__table_free(&table);
    return n;
}

static lks_status open_rest(lks__trainer *t)
{
    static const lks__sampler_kind kinds[] = {[LKS__sampler_random] = LKS__SAMPLER_RANDOM,
                                              [LKS__sampler_nanogpt] = LKS__SAMPLER_NANOGPT,
                                              [LKS__sampler_epoch] = LKS__SAMPLER_EPOCH};
    if (t->run.s.sampler == LKS__sampler_stream)
        return lks__fail(LKS_ERR_CONFIG, "sampler=stream is the golf family's; the gpt2 "
                                         "family has random, nanogpt and epoch");
    const lks__shards *val = t->run.data[LKS__SPLIT_VAL];
    lks__sampler_config config = {
        .kind = kinds[t->run.s.sampler],
        .seed = (uint64_t)t->run.s.seed,
        .V = t->run.V,
        .A = t->run.A,
        .B = (int)t->run.s.batch_size,
        .T = (int)t->run.s.block_size,
        .n_tokens = {lks__shards_count(t->run.data[LKS__SPLIT_TRAIN]),
                     val != NULL ? lks__shards_count(val) : 0},
        .drop_last = t->run.s.drop_last,
        .init_draws = init_draws(t),
    };
    return lks__sampler_open(&config, &t->state.sampler);
}

static void close_all(lks__trainer *t)
{
    lks__sampler_close(t->state.sampler);
    lks__shards_close(t->run.data[LKS__SPLIT_TRAIN]);
    lks__shards_close(t->run.data[LKS__SPLIT_VAL]);
}

/* --- the step --------------------------------------------------------------------------------- */

static lks_status begin_step(lks__trainer *t)
{
    t->work.offsets = lks__sampler_step(t->state.sampler, t->state.iter + t->state.data_shift);
    return LKS_OK;
}

static lks_status read_batch(lks__trainer *t, int v, int m, int32_t *tokens, int32_t *targets)
{
    size_t B = (size_t)t->run.s.batch_size, index = (size_t)(v * t->run.A + m);
    return lks__batch_read(t->run.data[LKS__SPLIT_TRAIN], t->work.offsets + index * B, B,
                           (size_t)t->run.s.block_size, tokens, targets);
}

static double learning_rate(const lks__trainer *t)
{
    const lks__settings *s = &t->run.s;
    lks__cosine cosine = {s->learning_rate, s->min_lr, (uint64_t)s->warmup_iters,
                          (uint64_t)s->lr_decay_iters};
    return s->decay_lr ? lks__cosine_lr(&cosine, t->state.iter) : s->learning_rate;
}

/* nanoGPT has one rate. The one of orthogonalized updates follows the same schedule. */
static double rates(const lks__trainer *t, lks__rates *rates)
{
    const double lr = learning_rate(t), full = t->run.s.learning_rate;
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        rates->lr[kind] = lr;
    rates->orthogonal_lr = t->run.s.matrix_lr * (full > 0.0 ? lr / full : 1.0);
    rates->eps = 1e-8;
    return lr;
}

static lks_status end_step(lks__trainer *t, lks__step_result *r)
{
    return LKS_OK;
}

/* --- evaluation ------------------------------------------------------------------------------- */

/* max_iters=N means iterations 0..N, as in the script. */
static uint64_t n_steps(const lks__settings *s)
{
    return (uint64_t)s->max_iters + 1;
}

static bool evaluation_due(const lks__trainer *t)
{
    return !t->state.eval_done && t->state.iter < n_steps(&t->run.s) &&
           t->run.s.eval_interval > 0 && t->state.iter % (uint64_t)t->run.s.eval_interval == 0;
}

struct estimate {
    lks__trainer *t;
    const uint64_t *offsets; /* [2][eval_iters][B] */
    lks__mirror loss;
};

/* Compute batch i of the batches of both splits, train first. */
static lks_status estimate_batch(void *ctx, size_t i, double *loss_p)
{
    const struct estimate *e = ctx;
    lks__trainer *t = e->t;
    size_t B = (size_t)t->run.s.batch_size, T = (size_t)t->run.s.block_size;
    int32_t *tokens, *targets;
    LKS__TRY(lks__batch_next(&t->work.batch, &tokens, &targets));
    LKS__TRY(lks__batch_read(t->run.data[i / (size_t)t->run.s.eval_iters], e->offsets + i * B, B, T,
                             tokens, targets));
    const lks__micro_batch mb = lks__batch_send(&t->work.batch, (int)B, (int)T);
    return lks__eval_loss(t->work.model, t->state.memory->params.dev, &mb, &e->loss, loss_p);
}

/* The script's estimate_loss: the mean over eval_iters batches of each split. */
static lks_status evaluate(lks__trainer *t, lks__eval_result *result)
{
    size_t n = (size_t)t->run.s.eval_iters;
    double *losses = calloc(2 * n, sizeof *losses), mean[2] = {0.0, 0.0};
    struct estimate e = {t, lks__sampler_eval(t->state.sampler, t->state.iter, (int)n), {0}};
    lks_status st = lks__mirror_open(t->ses.device, sizeof(float), &e.loss);
    if (losses == NULL || e.offsets == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %zu evaluation batches", 2 * n);
    st = lks__session_agree(&t->ses, st);
    lks__eval_job job = {&t->ses, 2 * n, 1, estimate_batch, &e};
    if (st == LKS_OK)
        st = lks__eval_batches(&job, losses);
    for (size_t i = 0; i < 2 * n && st == LKS_OK; i++)
        mean[i / n] += losses[i];
    lks__mirror_close(&e.loss);
    free(losses);
    *result = (lks__eval_result){.has_train = true,
                                 .train_loss = mean[LKS__SPLIT_TRAIN] / (double)n,
                                 .val_loss = mean[LKS__SPLIT_VAL] / (double)n};
    return st;
}

/* --- lines ------------------------------------------------------------------------------------ */

static void head_lines(const lks__trainer *t, lks__log *log)
{
    const lks__model_config *c = &t->run.model_config;
    int64_t tokens = t->run.N * t->run.s.batch_size * t->run.s.block_size;
    lks__log_line(log, "tokens per iteration will be: %" PRId64, tokens);
    if (t->run.meta_file != NULL)
        lks__log_line(log, "found vocab_size = %" PRIu32 " (inside %s/%s)", t->run.meta.vocab_size,
                      t->run.shown_data_dir, t->run.meta_file);
    /* Without positions, as there. A small model's would be 0.00M. */
    const double n = (double)t->run.table.n_params - (double)c->block_size * c->n_embd;
    if (n >= 1e4)
        lks__log_line(log, "number of parameters: %.2fM", n / 1e6);
    else
        lks__log_line(log, "number of parameters: %.0f", n);
}

/* The script's line, but without its "mfu -100.00%" while no mean is known. */
static void train_line(const lks__trainer *t, const lks__step_result *r, double mfu, char out[200])
{
    uint64_t iter = t->state.iter - 1;
    char share[32] = "";
    out[0] = '\0';
    if (mfu >= 0.0)
        snprintf(share, sizeof share, ", mfu %.2f%%", mfu * 100.0);
    if (t->run.s.log_interval > 0 && iter % (uint64_t)t->run.s.log_interval == 0)
        snprintf(out, 200, "iter %" PRIu64 ": loss %.4f, time %.2fms%s", iter, r->loss,
                 r->seconds * 1e3, share);
}

static void eval_line(const lks__trainer *t, const lks__eval_result *eval, char out[200])
{
    snprintf(out, 200, "step %" PRIu64 ": train loss %.4f, val loss %.4f", t->state.iter,
             eval->train_loss, eval->val_loss);
}

const struct lks__procedure lks__procedure_nanogpt = {
    .optimizer = &lks__optimizer_adamw,
    .data = &lks__source_tokens,
    .vocab_size = 50304,
    .length = "max_iters",
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
    .head_lines = head_lines,
    .train_line = train_line,
    .eval_line = eval_line,
};
