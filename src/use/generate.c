#include "use/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "train/batch.h"

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th largest of n logits. */
static float kth_largest(const float *logits, size_t n, size_t k, float *scratch)
{
    memcpy(scratch, logits, n * sizeof *scratch);
    qsort(scratch, n, sizeof *scratch, descending);
    return scratch[k - 1];
}

static double uniform(const lks__generate_options *o, uint64_t token)
{
    uint32_t counter[4] = {(uint32_t)token, o->sample, LKS__SITE_SAMPLE, (uint32_t)(token >> 32)};
    uint32_t word[4];
    lks__philox4x32(lks__philox_key_of(o->seed), counter, word);
    return (double)((uint64_t)word[0] << 21 | word[1] >> 11) * 0x1p-53;
}

static int32_t draw(const lks__generate_options *o, uint64_t token, const float *logits, size_t n,
                    float *scratch)
{
    float least = -INFINITY, largest = -INFINITY;
    if (o->top_k > 0 && o->top_k < n)
        least = kth_largest(logits, n, o->top_k, scratch);
    for (size_t i = 0; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    double sum = 0.0, at = 0.0;
    int32_t last = 0;
    for (size_t i = 0; i < n; i++)
        if (logits[i] >= least)
            sum += exp(((double)logits[i] - (double)largest) / o->temperature);
    double u = uniform(o, token) * sum;
    for (size_t i = 0; i < n; i++) {
        if (!(logits[i] >= least))
            continue;
        at += exp(((double)logits[i] - (double)largest) / o->temperature);
        last = (int32_t)i;
        if (u < at)
            break;
    }
    return last; /* by rounding, u may be just above the last sum */
}

/* What computes logits, and how they come to the host. */
struct source {
    lks__model *model;
    const float *params;
    lks__batch batch;
    lks__mirror logits;
};

static lks_status open_source(struct source *s, lks__model *model, const float *params, size_t V,
                              size_t T)
{
    lks__device *device = lks__model_device(model);
    *s = (struct source){.model = model, .params = params};
    LKS__TRY(lks__batch_open(device, T, &s->batch));
    return lks__mirror_open(device, V * sizeof(float), &s->logits);
}

static void close_source(struct source *s)
{
    lks__batch_close(&s->batch);
    lks__mirror_close(&s->logits);
}

/* s->logits.host: of the token after context[0, n). */
static lks_status next_logits(struct source *s, const int32_t *context, size_t n)
{
    int32_t *tokens, *targets;
    LKS__TRY(lks__batch_next(&s->batch, &tokens, &targets));
    memcpy(tokens, context, n * sizeof *tokens);
    const lks__micro_batch mb = lks__batch_send(&s->batch, 1, (int)n);
    lks__model_logits(s->model, s->params, mb.tokens, mb.T, s->logits.dev);
    lks__mirror_to_host(&s->logits, LKS__QUEUE_COMPUTE, 0, s->logits.bytes);
    return lks__device_finish(s->logits.device, LKS__QUEUE_COMPUTE);
}

lks_status lks__generate(lks__model *model, const lks__model_config *config, const float *params,
                         const lks__generate_options *options, const int32_t *prompt, size_t n,
                         lks_status (*sink)(void *ctx, int32_t token), void *ctx)
{
    size_t V = (size_t)config->vocab_size, T = (size_t)config->block_size;
    int32_t *context = malloc(T * sizeof *context);
    float *scratch = malloc(V * sizeof *scratch);
    struct source source;
    lks_status st = open_source(&source, model, params, V, T);
    if (context == NULL || scratch == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory to sample from %zu tokens", V);
    size_t have = n < T ? n : T;
    if (st == LKS_OK)
        memcpy(context, prompt + (n - have), have * sizeof *context);
    for (uint64_t i = 0; i < options->max_new_tokens && st == LKS_OK; i++) {
        st = lks__sys_stop_check();
        if (st == LKS_OK)
            st = next_logits(&source, context, have);
        if (st != LKS_OK)
            break;
        int32_t token = draw(options, i, source.logits.host, V, scratch);
        if (have == T)
            memmove(context, context + 1, (--have) * sizeof *context);
        context[have++] = token;
        st = sink(ctx, token);
    }
    close_source(&source);
    free(context);
    free(scratch);
    return st;
}
