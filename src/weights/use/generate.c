#include "weights/use/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/system/sys.h"
#include "compute/mirror.h"
#include "model/decode.h"

struct lks__generator {
    lks__decoder *decoder;
    lks__device *device;
    const float *params;
    size_t V;                 /* the model's */
    size_t most, room, chunk; /* samples; tokens per context; tokens per pass */
    size_t samples;           /* current samples of this text */
    lks__mirror context;      /* int32 [most, room] */
    lks__mirror newest;       /* int32 [most] */
    lks__mirror logits;       /* float [most, V] */
    size_t have, kept; /* tokens of a context, and the number of them that the decoder has read */
    bool same;         /* all samples have the same context */
    bool *ended;       /* [most] */
    void *work;        /* work space for draws */
    uint64_t drawn;    /* tokens drawn per sample */
};

static lks_status open_memory(lks__generator *g)
{
    uint64_t context, logits;
    if (!lks__mul((uint64_t)g->most * sizeof(int32_t), g->room, &context) ||
        !lks__mul((uint64_t)g->most * sizeof(float), g->V, &logits))
        return lks__no_memory("for %zu samples", g->most);
    LKS__TRY(lks__mirror_open(g->device, (size_t)context, &g->context));
    LKS__TRY(lks__mirror_open(g->device, g->most * sizeof(int32_t), &g->newest));
    LKS__TRY(lks__mirror_open(g->device, (size_t)logits, &g->logits));
    g->ended = calloc(g->most, sizeof *g->ended);
    g->work = malloc(lks__draw_work_bytes(g->V));
    if (g->ended == NULL || g->work == NULL)
        return lks__no_memory("to sample from %zu tokens", g->V);
    return LKS_OK;
}

lks_status lks__generator_open(const lks__model_config *config, const lks__table *table,
                               const float *params, const lks__generator_size *size,
                               lks__device *device, lks__generator **generator_p)
{
    lks__generator *g = calloc(1, sizeof *g);
    LKS__MEMORY(g, "for samples");
    g->device = device;
    g->params = params;
    g->V = (size_t)config->vocab_size;
    g->most = size->samples;
    g->chunk = size->chunk;
    const lks__decoder_size decoder =
        lks__decoder_size_for(config, size->samples, size->tokens, &g->chunk);
    g->room = decoder.positions;
    lks_status st = lks__decoder_open(config, table, &decoder, device, &g->decoder);
    LKS__THEN(st, open_memory(g));
    if (st == LKS_OK)
        *generator_p = g;
    else
        lks__generator_close(g);
    return st;
}

void lks__generator_close(lks__generator *g)
{
    if (g == NULL)
        return;
    lks__decoder_close(g->decoder);
    lks__mirror_close(&g->context);
    lks__mirror_close(&g->newest);
    lks__mirror_close(&g->logits);
    free(g->ended);
    free(g->work);
    free(g);
}

void lks__generator_begin(lks__generator *g, size_t samples)
{
    g->samples = samples;
    g->have = g->kept = 0;
    g->drawn = 0;
    g->same = true;
}

/* --- contexts --------------------------------------------------------------------------------- */

static int32_t *context_of(const lks__generator *g, size_t sample)
{
    return (int32_t *)g->context.host + sample * g->room;
}

/* Make room for n <= room more tokens by dropping the oldest. The remaining tokens then have other
 * positions and predecessors, so the decoder must read all of them again. */
static void make_room(lks__generator *g, size_t n)
{
    if (g->have + n <= g->room)
        return;
    const size_t go = g->have + n - g->room;
    for (size_t s = 0; s < g->samples; s++)
        memmove(context_of(g, s), context_of(g, s) + go, (g->have - go) * sizeof(int32_t));
    g->have -= go;
    g->kept = 0;
}

void lks__generator_read(lks__generator *g, const int32_t *tokens, size_t n)
{
    if (n > g->room) {
        tokens += n - g->room;
        n = g->room;
    }
    make_room(g, n);
    for (size_t s = 0; s < g->samples; s++)
        memcpy(context_of(g, s) + g->have, tokens, n * sizeof *tokens);
    g->have += n;
}

/* --- passes ----------------------------------------------------------------------------------- */

/* The decoder reads the new tokens of one sample, in chunks. */
static lks_status read_sample(lks__generator *g, size_t sample)
{
    const size_t from = sample * g->room;
    const int32_t *tokens = (const int32_t *)g->context.dev + from;
    lks__mirror_to_device(&g->context, LKS__QUEUE_COMPUTE, (from + g->kept) * sizeof *tokens,
                          (g->have - g->kept) * sizeof *tokens);
    for (size_t at = g->kept, n; at < g->have; at += n) {
        n = g->have - at < g->chunk ? g->have - at : g->chunk;
        LKS__TRY(lks__sys_stop_check());
        const lks__decoder_pass pass = {
            .first = sample,
            .sequences = 1,
            .n = n,
            .at = at,
            .tokens = tokens + at,
            .logits = at + n < g->have ? NULL : (float *)g->logits.dev + sample * g->V};
        lks__decoder_run(g->decoder, g->params, &pass);
    }
    return LKS_OK;
}

/* Read one new token of each of the first n samples, in one pass. */
static void read_newest(lks__generator *g, size_t n)
{
    int32_t *newest = g->newest.host;
    for (size_t s = 0; s < n; s++)
        newest[s] = context_of(g, s)[g->kept];
    lks__mirror_to_device(&g->newest, LKS__QUEUE_COMPUTE, 0, n * sizeof *newest);
    const lks__decoder_pass pass = {
        .sequences = n, .n = 1, .at = g->kept, .tokens = g->newest.dev, .logits = g->logits.dev};
    lks__decoder_run(g->decoder, g->params, &pass);
}

/* Number of samples up to the last unfinished one. */
static size_t active(const lks__generator *g)
{
    size_t n = g->samples;
    while (n > 0 && g->ended[n - 1])
        n--;
    return n;
}

static lks_status run_passes(lks__generator *g, size_t n)
{
    if (g->same)
        return read_sample(g, 0);
    if (g->have - g->kept == 1 && lks__decoder_keeps(g->decoder)) {
        read_newest(g, n);
        return LKS_OK;
    }
    for (size_t s = 0; s < n; s++)
        if (!g->ended[s])
            LKS__TRY(read_sample(g, s));
    return LKS_OK;
}

/* Set g->logits.host: the logits of each sample's next token. */
static lks_status next_logits(lks__generator *g)
{
    const size_t n = active(g), bytes = g->V * sizeof(float);
    char *logits = g->logits.host;
    lks_status st = run_passes(g, n);
    lks__mirror_to_host(&g->logits, LKS__QUEUE_COMPUTE, 0, (g->same ? 1 : n) * bytes);
    if (st == LKS_OK && g->same)
        lks__decoder_share(g->decoder, n, g->have);
    const lks_status done = lks__device_finish(g->device, LKS__QUEUE_COMPUTE);
    LKS__TRY(st);
    LKS__TRY(done);
    for (size_t s = 1; s < n && g->same; s++)
        memcpy(logits + s * bytes, logits, bytes);
    g->same = g->same && n == 1;
    g->kept = lks__decoder_keeps(g->decoder) ? g->have : 0;
    return LKS_OK;
}

static lks_status draw_all(lks__generator *g, const lks__generate *how)
{
    const size_t n = active(g);
    make_room(g, 1);
    for (size_t s = 0; s < n; s++) {
        int32_t token = 0;
        if (!g->ended[s])
            LKS__TRY(lks__draw(&how->draw, g->drawn, how->first + (uint32_t)s,
                               (float *)g->logits.host + s * g->V, g->V, g->work, &token));
        context_of(g, s)[g->have] = token;
        if (!g->ended[s])
            LKS__TRY(how->sink(how->ctx, s, token, &g->ended[s]));
    }
    g->have++;
    g->drawn++;
    return LKS_OK;
}

lks_status lks__generator_write(lks__generator *g, const lks__generate *how)
{
    memset(g->ended, 0, g->most * sizeof *g->ended);
    for (uint64_t i = 0; i < how->max_new_tokens && active(g) > 0 && g->have > 0; i++) {
        LKS__TRY(lks__sys_stop_check());
        LKS__TRY(next_logits(g));
        LKS__TRY(draw_all(g, how));
    }
    return LKS_OK;
}
