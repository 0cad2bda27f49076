/* train/procedure/procedure_nanogpt.c - training as in nanoGPT's train.py. */
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

static lks_status open_data(lks__run *run)
{
    LKS__TRY(lks__procedure_find_data(run));
    LKS__TRY(lks__procedure_open_meta(run));
    return lks__procedure_open_data(run, run->meta.vocab_size);
}

/* Random numbers that the script draws before its first batch. It first makes a model with new
 * weights, of the given weights' size before --block_size crops it, and then loads them. */
static uint64_t init_draws(const lks__run *run)
{
    if (run->weights == NULL)
        return lks__model_init(&run->model_config, &run->table, NULL, NULL);
    const lks__settings *source = &run->weights->model;
    const lks__model_config config = lks__state_model_config(source, (uint32_t)source->vocab_size);
    lks__table table;
    if (lks__model_tensors(&config, &table) != LKS_OK)
        return 0;
    const uint64_t n = lks__model_init(&config, &table, NULL, NULL);
    lks__table_free(&table);
    return n;
}

static lks_status open_rest(const lks__run *run, lks__state *state)
{
    static const lks__batch_sampler_kind kinds[] = {[LKS__sampler_random] = LKS__SAMPLER_RANDOM,
                                                    [LKS__sampler_nanogpt] = LKS__SAMPLER_NANOGPT,
                                                    [LKS__sampler_epoch] = LKS__SAMPLER_EPOCH};
    if (run->s.sampler == LKS__sampler_stream)
        return lks__fail(LKS_ERR_CONFIG, "sampler=stream is the golf family's; the gpt2 "
                                         "family has random, nanogpt and epoch");
    const lks__shards *val = run->data[LKS__SPLIT_VAL];
    lks__batch_sampler_config config = {
        .kind = kinds[run->s.sampler],
        .seed = (uint64_t)run->s.seed,
        .V = run->V,
        .A = run->A,
        .B = (int)run->s.batch_size,
        .T = (int)run->s.block_size,
        .n_tokens = {lks__shards_count(run->data[LKS__SPLIT_TRAIN]),
                     val != NULL ? lks__shards_count(val) : 0},
        .drop_last = run->s.drop_last,
        .init_draws = init_draws(run),
    };
    return lks__batch_sampler_open(&config, &state->sampler);
}

static lks__data_start data_at(const lks__run *run, const lks__state *state,
                               const lks__settings *old, const lks__data_start *from, uint64_t step)
{
    const int V = (int)old->virtual_ranks, N = (int)old->gradient_accumulation_steps;
    return lks__batch_sampler_at(state->sampler, V, N / V, (int)old->batch_size, from, step);
}

static void start_data(const lks__run *run, const lks__state *state)
{
    lks__batch_sampler_start(state->sampler, &state->segment.data);
}

static void close_all(const lks__run *run, const lks__state *state)
{
    lks__batch_sampler_close(state->sampler);
    lks__procedure_close_data(run);
}

/* --- the step --------------------------------------------------------------------------------- */

static void begin_step(const lks__state *state, lks__step_work *work)
{
    work->offsets = lks__batch_sampler_step(state->sampler, state->iter + state->data_shift);
}

static void find_spans(const lks__run *run, const lks__state *state, const lks__step_work *work,
                       int v, int m, lks__spans *spans)
{
    const size_t B = (size_t)run->s.batch_size, index = (size_t)(v * run->A + m);
    *spans = (lks__spans){work->offsets + index * B, B, (size_t)run->s.block_size, 0};
}

static double learning_rate(const lks__run *run, const lks__state *state)
{
    const lks__settings *s = &run->s;
    lks__cosine cosine = {s->learning_rate, s->min_lr, (uint64_t)s->warmup_iters,
                          (uint64_t)s->lr_decay_iters};
    return s->decay_lr ? lks__cosine_lr(&cosine, state->iter) : s->learning_rate;
}

/* nanoGPT has one rate. The rate of orthogonalized updates follows the same schedule. */
static double rates(const lks__run *run, const lks__state *state, lks__rates *rates)
{
    const double lr = learning_rate(run, state), full = run->s.learning_rate;
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        rates->lr[kind] = lr;
    rates->orthogonal_lr = run->s.matrix_lr * (full > 0.0 ? lr / full : 1.0);
    rates->eps = 1e-8;
    return lr;
}

/* --- evaluation ------------------------------------------------------------------------------- */

/* As in the script, max_iters=N means iterations 0 to N. */
static uint64_t n_steps(const lks__settings *s)
{
    return (uint64_t)s->max_iters + 1;
}

static bool evaluation_due(const lks__run *run, const lks__state *state)
{
    return !state->eval_done && state->iter < n_steps(&run->s) && run->s.eval_interval > 0 &&
           state->iter % (uint64_t)run->s.eval_interval == 0;
}

struct estimate {
    lks__trainer *t;
    const uint64_t *offsets; /* [2][eval_iters][B] */
};

/* Compute batch i of both splits' batches, train first. */
static lks_status estimate_batch(void *ctx, size_t i, double *loss_p)
{
    const struct estimate *e = ctx;
    lks__trainer *t = e->t;
    const lks__settings *s = &t->run.s;
    size_t B = (size_t)s->batch_size, T = (size_t)s->block_size;
    int32_t *tokens, *targets;
    LKS__TRY(lks__batch_next(&t->work.batch, &tokens, &targets));
    LKS__TRY(lks__shards_samples(t->run.data[i / (size_t)s->eval_iters], e->offsets + i * B, B, T,
                                 tokens, targets));
    const lks__micro_batch mb = lks__batch_send(&t->work.batch, (int)B, (int)T);
    return lks__eval_loss(&t->work, t->state.memory->params.dev, &mb, loss_p);
}

/* The script's estimate_loss: the mean over eval_iters batches of each split. */
static lks_status evaluate(lks__trainer *t, lks__eval_result *result)
{
    size_t n = (size_t)t->run.s.eval_iters;
    double *losses = calloc(2 * n, sizeof *losses), mean[2] = {0.0, 0.0};
    struct estimate e = {t, lks__batch_sampler_eval(t->state.sampler, t->state.iter, (int)n)};
    lks_status st = LKS_OK;
    if (losses == NULL || e.offsets == NULL)
        st = lks__no_memory("for %zu evaluation batches", 2 * n);
    st = lks__session_agree(&t->ses, st);
    lks__eval_job job = {&t->ses, 2 * n, 1, estimate_batch, &e};
    LKS__THEN(st, lks__eval_batches(&job, losses));
    for (size_t i = 0; i < 2 * n && st == LKS_OK; i++)
        mean[i / n] += losses[i];
    free(losses);
    *result = (lks__eval_result){.has_train = true,
                                 .train_loss = mean[LKS__SPLIT_TRAIN] / (double)n,
                                 .val_loss = mean[LKS__SPLIT_VAL] / (double)n};
    return st;
}

/* --- lines ------------------------------------------------------------------------------------ */

static void head_lines(const lks__run *run, const lks__session *ses, lks__log *log)
{
    const lks__model_config *c = &run->model_config;
    int64_t tokens = run->N * run->s.batch_size * run->s.block_size;
    lks__log_line(log, "tokens per iteration will be: %" PRId64, tokens);
    if (run->meta_file != NULL)
        lks__log_line(log, "found vocab_size = %" PRIu32 " (inside %s/%s)", run->meta.vocab_size,
                      run->shown_data_dir, run->meta_file);
    else if (run->s.from[LKS__SETTING_vocab_size] == LKS__FROM_DEFAULT)
        lks__log_line(log,
                      "vocab_size is GPT-2's %" PRId64
                      ", as %s has no meta.json or meta.pkl; --vocab_size=N sets another",
                      run->s.vocab_size, run->shown_data_dir);
    if (run->meta.has_other_texts)
        lks__log_line(log, "the texts in meta.pkl aren't used, so `lockstep sample` can't print "
                           "any: they aren't one character per id");
    /* Without positions, as in the script, which would print 0.00M for a small model. */
    const double n = (double)run->table.n_params - (double)c->block_size * c->n_embd;
    if (n >= 1e4)
        lks__log_line(log, "number of parameters: %.2fM", n / 1e6);
    else
        lks__log_line(log, "number of parameters: %.0f", n);
}

/* As in the script, but without "mfu -100.00%" before the first measurement. */
static void train_line(const lks__run *run, const lks__state *state, const lks__step_result *r,
                       double mfu, char out[200])
{
    uint64_t iter = state->iter - 1;
    char share[32] = "";
    out[0] = '\0';
    if (mfu >= 0.0)
        snprintf(share, sizeof share, ", mfu %.2f%%", mfu * 100.0);
    if (run->s.log_interval > 0 && iter % (uint64_t)run->s.log_interval == 0)
        snprintf(out, 200, "iter %" PRIu64 ": loss %.4f, time %.2fms%s", iter, r->loss,
                 r->seconds * 1e3, share);
}

static void eval_line(const lks__run *run, const lks__state *state, const lks__eval_result *eval,
                      char out[200])
{
    snprintf(out, 200, "step %" PRIu64 ": train loss %.4f, val loss %.4f", state->iter,
             eval->train_loss, eval->val_loss);
}

const struct lks__procedure lks__procedure_nanogpt = {
    .data = &lks__source_tokens,
    .vocab_size = 50304,
    .length = "max_iters",
    .open_data = open_data,
    .open_rest = open_rest,
    .data_at = data_at,
    .start_data = start_data,
    .close = close_all,
    .begin_step = begin_step,
    .spans = find_spans,
    .rates = rates,
    .n_steps = n_steps,
    .evaluation_due = evaluation_due,
    .draws = true,
    .evaluate = evaluate,
    .head_lines = head_lines,
    .train_line = train_line,
    .eval_line = eval_line,
};
