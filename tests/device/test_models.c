/* A model computes on the deferred device what it computes on the CPU, to the last bit: losses,
 * gradients, logits, samples, the search for a bad number. */
#include "../model/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/mirror.h"
#include "deferred.h"
#include "model/batch.h"
#include "weights/use/generate.h"

enum { SEEDS = 12, STEPS = 3, SAMPLES = 3, NEW = 6 }; /* each order with each --recompute */

/* What is compared. */
struct results {
    float losses[STEPS + 1]; /* the last without gradients */
    float logits[SMALL_VOCAB];
    char place[LKS__PLACE];
    float *grads;
    int32_t text[SAMPLES][NEW];
};

static lks__micro_batch send(lks__batch *batch, const small_run *run, int shift)
{
    int32_t *tokens, *targets;
    assert_ok(lks__batch_next(batch, &tokens, &targets));
    for (int i = 0; i < SMALL_B * SMALL_T; i++) {
        tokens[i] = (run->tokens[i] + shift) % SMALL_VOCAB;
        targets[i] = (run->targets[i] + shift) % SMALL_VOCAB;
    }
    return lks__batch_send(batch, SMALL_B, SMALL_T);
}

static lks_status take(void *ctx, size_t sample, int32_t token, bool *end_p)
{
    struct results *r = ctx;
    memmove(r->text[sample], r->text[sample] + 1, (NEW - 1) * sizeof token);
    r->text[sample][NEW - 1] = token;
    return LKS_OK;
}

/* Samples whose context becomes full on the way. */
static void write_samples(const small_run *run, lks__device *device, const float *params,
                          struct results *r)
{
    lks__generator *g;
    const lks__generator_size size = {.samples = SAMPLES, .tokens = UINT64_MAX, .chunk = 2};
    const lks__generate how = {.draw = {.seed = 5, .temperature = 3.0, .top_p = 1.0},
                               .max_new_tokens = NEW,
                               .sink = take,
                               .ctx = r};
    assert_ok(lks__generator_open(&run->config, &run->table, params, &size, device, &g));
    lks__generator_begin(g, SAMPLES);
    lks__generator_read(g, run->tokens, 4);
    assert_ok(lks__generator_write(g, &how));
    lks__generator_close(g);
}

static struct results compute(const small_run *run, lks__device *device)
{
    struct results r = {.grads = calloc(run->table.count, sizeof *r.grads)};
    lks__mirror params, grads, losses, logits;
    lks__batch batch;
    lks__model *model;
    const size_t bytes = run->table.count * sizeof(float);
    assert_ok(lks__model_open(&run->config, &run->table, SMALL_B, device, &model));
    assert_ok(lks__mirror_open(device, bytes, &params));
    assert_ok(lks__mirror_wrap(device, r.grads, bytes, &grads));
    assert_ok(lks__mirror_open(device, sizeof r.losses, &losses));
    assert_ok(lks__mirror_open(device, sizeof r.logits, &logits));
    assert_ok(lks__batch_open(device, SMALL_B * SMALL_T, &batch));
    memcpy(params.host, run->params, bytes);
    lks__mirror_to_device(&params, LKS__QUEUE_COMPUTE, 0, bytes);

    lks__micro_batch mb;
    lks__backward bw = {.grads = grads.dev, .seed = 3, .done = models_ignore_group};
    float *slots = losses.dev;
    for (int i = 0; i < STEPS; i++) { /* nobody waits in between */
        mb = send(&batch, run, i);
        bw.vm = (uint32_t)i;
        lks__model_train(model, params.dev, &mb, &bw, &slots[i]);
    }
    lks__model_loss(model, params.dev, &mb, &slots[STEPS]);
    models_logits(model, params.dev, mb.tokens, SMALL_T - 1, logits.dev);
    lks__mirror_to_host(&grads, LKS__QUEUE_COMPUTE, 0, bytes);
    lks__mirror_to_host(&losses, LKS__QUEUE_COMPUTE, 0, sizeof r.losses);
    lks__mirror_to_host(&logits, LKS__QUEUE_COMPUTE, 0, sizeof r.logits);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    memcpy(r.losses, losses.host, sizeof r.losses);
    memcpy(r.logits, logits.host, sizeof r.logits);

    write_samples(run, device, params.dev, &r);
    float *first = (float *)params.host + run->table.tensors[run->table.n_tensors / 2].offset;
    *first = NAN;
    lks__mirror_to_device(&params, LKS__QUEUE_COMPUTE, 0, bytes);
    assert_ok(lks__model_find_bad(model, params.dev, &mb, &bw, r.place));

    lks__batch_close(&batch);
    lks__mirror_close(&params);
    lks__mirror_close(&grads);
    lks__mirror_close(&losses);
    lks__mirror_close(&logits);
    lks__model_close(model);
    return r;
}

static void check(const small_model *m)
{
    small_run run;
    small_open(m, &run);
    const struct results want = compute(&run, run.model->device);
    assert_true(isfinite(want.losses[STEPS]) && strcmp(want.place, "lm_head") != 0);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        lks__device *device;
        run.config.recompute = (lks__recompute)(seed % LKS__RECOMPUTE_NEVER); /* changes no bit */
        assert_ok(deferred_open(run.model->device->ex, seed, &device));
        const struct results got = compute(&run, device);
        assert_memory_equal(got.losses, want.losses, sizeof got.losses);
        assert_memory_equal(got.logits, want.logits, sizeof got.logits);
        assert_memory_equal(got.grads, want.grads, run.table.count * sizeof(float));
        assert_string_equal(got.place, want.place);
        assert_memory_equal(got.text, want.text, sizeof got.text);
        free(got.grads);
        lks__device_close(device);
    }
    free(want.grads);
    small_close(&run);
}

TEST(test_models)
{
    for (int i = 0; i < N_SMALL_MODELS; i++)
        check(&small_models[i]);
}

int main(void)
{
    return lks_test_run_all(small_open_exec, small_close_exec);
}
