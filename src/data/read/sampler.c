#include "data/read/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "lockstep/sampler.h"

struct lks__batch_sampler {
    lks__batch_sampler_config config;
    uint64_t range[2]; /* offsets are below this: tokens minus T, as in nanoGPT's randint */
    uint64_t *offsets; /* [V][A][B] */
    uint64_t *eval;    /* [2][eval_batches][B] */
    int eval_batches;
    lks__mt *generators;        /* nanogpt: [V] */
    uint64_t *drawn;            /* nanogpt: [V][B], the next batch, already drawn */
    lks__mt *marked_generators; /* copies of both by lks__batch_sampler_mark() */
    uint64_t *marked_drawn;
    lks_sampler *dealer; /* epoch: deals the samples of epoch `dealt` */
    uint64_t dealt;
    lks__data_start from;
};

static lks_status check(const lks__batch_sampler_config *c)
{
    static const char *const splits[2] = {"train", "val"};
    for (int s = 0; s < 2; s++)
        if (c->n_tokens[s] <= (uint64_t)c->T && (s == LKS__SPLIT_TRAIN || c->n_tokens[s] > 0))
            return lks__fail(LKS_ERR_CONFIG,
                             "the %s split has %llu tokens, but a sample needs block_size + 1 = "
                             "%d: use a longer text%s or a smaller --block_size",
                             splits[s], (unsigned long long)c->n_tokens[s], c->T + 1,
                             s == LKS__SPLIT_VAL ? ", a larger --val_fraction of `prep`" : "");
    return LKS_OK;
}

static uint64_t samples_of(const lks__batch_sampler_config *c)
{
    return (c->n_tokens[0] - 1) / (uint64_t)c->T;
}

uint64_t lks__batch_sampler_order_bytes(uint64_t n_tokens, int T)
{
    const lks__batch_sampler_config c = {.n_tokens = {n_tokens}, .T = T};
    return n_tokens > 0 ? samples_of(&c) * sizeof(uint32_t) : 0;
}

static lks_status open_dealer(lks__batch_sampler *s)
{
    const lks__batch_sampler_config *c = &s->config;
    uint64_t samples = samples_of(c);
    const lks_sampler_options o = {
        .dataset_size = samples, .replicas = c->V, .drop_last = c->drop_last, .seed = c->seed};
    if (samples < (uint64_t)c->V * (uint64_t)c->B)
        return lks__fail(
            LKS_ERR_CONFIG,
            "the train split has %llu samples of block_size + 1 = %d tokens, less than "
            "a batch of %d for each of %d virtual ranks: use a longer text or a "
            "smaller --batch_size, or --sampler=random",
            (unsigned long long)samples, c->T + 1, c->B, c->V);
    return lks_sampler_open(&o, &s->dealer);
}

/* The samples that the dealer deals in an epoch, some of them twice unless drop_last is set. */
static uint64_t whole_of(const lks__batch_sampler_config *c)
{
    const uint64_t V = (uint64_t)c->V, n = samples_of(c);
    return (c->drop_last ? n / V : (n + V - 1) / V) * V;
}

/* Epoch and position of the j-th batch of each virtual rank in a segment that began at `from`. The
 * dealer gives the samples of an epoch to the virtual ranks in turn, so one position in that order
 * describes all virtual ranks, also if a segment has another number of them. */
static lks__data_start find_batch(const lks__batch_sampler_config *c, const lks__data_start *from,
                                  uint64_t j)
{
    const uint64_t whole = whole_of(c), batch = (uint64_t)c->V * (uint64_t)c->B;
    const uint64_t left = from->position < whole ? whole - from->position : 0;
    const uint64_t first = left / batch, per_epoch = whole / batch;
    if (j < first)
        return (lks__data_start){.epoch = from->epoch, .position = from->position + j * batch};
    if (per_epoch == 0) /* open_dealer() excludes it for a run's own batch */
        return (lks__data_start){.epoch = from->epoch + 1};
    j -= first;
    return (lks__data_start){.epoch = from->epoch + 1 + j / per_epoch,
                             .position = j % per_epoch * batch};
}

/* Deal the j-th batch of each virtual rank, counted from the start of the segment. */
static void deal(lks__batch_sampler *s, uint64_t j, int a)
{
    const lks__batch_sampler_config *c = &s->config;
    const lks__data_start at = find_batch(c, &s->from, j);
    const uint64_t V = (uint64_t)c->V;
    if (at.epoch != s->dealt)
        lks_sampler_set_epoch(s->dealer, at.epoch);
    s->dealt = at.epoch;
    for (uint64_t v = 0; v < V; v++)
        for (uint64_t b = 0; b < (uint64_t)c->B; b++) {
            const uint64_t k = at.position + b * V + v;
            s->offsets[(v * (size_t)c->A + (size_t)a) * (size_t)c->B + b] =
                lks_sampler_index(s->dealer, (int)(k % V), k / V) * (uint64_t)c->T;
        }
}

uint64_t lks__batch_sampler_left_out(const lks__batch_sampler *s, int B, uint64_t *samples_p)
{
    const lks__batch_sampler_config *c = &s->config;
    const uint64_t V = (uint64_t)c->V, batch = V * (uint64_t)B;
    const uint64_t n = *samples_p = c->kind == LKS__SAMPLER_EPOCH ? samples_of(c) : 0;
    const uint64_t used = whole_of(c) / batch * batch;
    return used < n ? n - used : 0;
}

void lks__batch_sampler_start(lks__batch_sampler *s, const lks__data_start *from)
{
    s->from = *from;
}

lks__data_start lks__batch_sampler_at(const lks__batch_sampler *s, int V, int A, int B,
                                      const lks__data_start *from, uint64_t step)
{
    lks__batch_sampler_config c = s->config;
    lks__data_start at = {.step = step};
    c.V = V;
    c.B = B;
    if (c.kind == LKS__SAMPLER_EPOCH)
        at = find_batch(&c, from, (step - from->step) * (uint64_t)A);
    at.step = step;
    return at;
}

static void draw_nanogpt(lks__mt *g, uint64_t range, int B, uint64_t *out)
{
    for (int b = 0; b < B; b++)
        out[b] = lks__mt_randint(g, range);
}

/* Each output of the generator gives two 64-bit draws: element b uses words 2 (b % 2), the high
 * half, and 2 (b % 2) + 1 of counter (w0, w1, site, b / 2). The high word of draw * range is the
 * offset: uniform to within range / 2^64, without loop or division. */
static void draw_random(lks__philox_key key, uint32_t w0, uint32_t w1, uint32_t site,
                        uint64_t range, int B, uint64_t *out)
{
    uint32_t words[4] = {0};
    for (int b = 0; b < B; b++) {
        if (b % 2 == 0) {
            const uint32_t counter[4] = {w0, w1, site, (uint32_t)b / 2};
            lks__philox4x32(key, counter, words);
        }
        uint64_t draw = (uint64_t)words[b % 2 * 2] << 32 | words[b % 2 * 2 + 1];
        out[b] = (uint64_t)(((unsigned __int128)draw * range) >> 64);
    }
}

/* False if out of memory. */
static bool open_generators(lks__batch_sampler *s)
{
    const lks__batch_sampler_config *c = &s->config;
    s->generators = malloc((size_t)c->V * sizeof *s->generators);
    s->drawn = malloc((size_t)c->V * (size_t)c->B * sizeof *s->drawn);
    s->marked_generators = malloc((size_t)c->V * sizeof *s->marked_generators);
    s->marked_drawn = malloc((size_t)c->V * (size_t)c->B * sizeof *s->marked_drawn);
    if (!s->generators || !s->drawn || !s->marked_generators || !s->marked_drawn)
        return false;
    for (int v = 0; v < c->V; v++) {
        lks__mt *g = &s->generators[v];
        lks__mt_seed(g, c->seed + (uint64_t)v);
        lks__mt_skip(g, c->init_draws);
        draw_nanogpt(g, s->range[0], c->B, s->drawn + (size_t)v * (size_t)c->B);
    }
    return true;
}

lks_status lks__batch_sampler_open(const lks__batch_sampler_config *config,
                                   lks__batch_sampler **sampler_p)
{
    const lks__batch_sampler_config *c = config;
    LKS__TRY(check(c));
    const size_t count = (size_t)c->V * (size_t)c->A * (size_t)c->B;
    lks__batch_sampler *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "for the offsets of %zu samples", count);
    s->config = *c;
    s->range[0] = c->n_tokens[0] - (uint64_t)c->T;
    s->range[1] = c->n_tokens[1] - (uint64_t)c->T;
    s->offsets = malloc(count * sizeof *s->offsets);
    lks_status st = LKS_OK;
    if (!s->offsets || (c->kind == LKS__SAMPLER_NANOGPT && !open_generators(s)))
        st = lks__no_memory("for the offsets of %zu samples", count);
    else if (c->kind == LKS__SAMPLER_EPOCH)
        st = open_dealer(s);
    if (st == LKS_OK)
        *sampler_p = s;
    else
        lks__batch_sampler_close(s);
    return st;
}

void lks__batch_sampler_close(lks__batch_sampler *s)
{
    if (!s)
        return;
    free(s->offsets);
    free(s->eval);
    free(s->generators);
    free(s->drawn);
    free(s->marked_generators);
    free(s->marked_drawn);
    lks_sampler_close(s->dealer);
    free(s);
}

const uint64_t *lks__batch_sampler_step(lks__batch_sampler *s, uint64_t step)
{
    const lks__batch_sampler_config *c = &s->config;
    const size_t B = (size_t)c->B;
    const lks__philox_key key = lks__philox_key_of(c->seed);
    uint64_t *out = s->offsets;
    if (c->kind == LKS__SAMPLER_EPOCH) {
        for (int a = 0; a < c->A; a++)
            deal(s, (step - s->from.step) * (uint64_t)c->A + (uint64_t)a, a);
        return s->offsets;
    }
    for (int v = 0; v < c->V; v++)
        for (int a = 0; a < c->A; a++, out += B) {
            if (c->kind == LKS__SAMPLER_RANDOM) {
                draw_random(key, (uint32_t)step, (uint32_t)v << 16 | (uint32_t)a,
                            LKS__SITE_DATA_TRAIN, s->range[0], c->B, out);
            } else {
                uint64_t *drawn = s->drawn + (size_t)v * B;
                memcpy(out, drawn, B * sizeof *out);
                draw_nanogpt(&s->generators[v], s->range[0], c->B, drawn);
            }
        }
    return s->offsets;
}

const uint64_t *lks__batch_sampler_eval(lks__batch_sampler *s, uint64_t step, int n_batches)
{
    const lks__batch_sampler_config *c = &s->config;
    const size_t B = (size_t)c->B;
    const lks__philox_key key = lks__philox_key_of(c->seed);
    if (n_batches > s->eval_batches) {
        uint64_t *grown = realloc(s->eval, 2 * (size_t)n_batches * B * sizeof *grown);
        if (!grown) {
            lks__no_memory("for the offsets of %d evaluation batches", n_batches);
            return NULL;
        }
        s->eval = grown;
        s->eval_batches = n_batches;
    }
    uint64_t *out = s->eval;
    for (int split = 0; split < 2; split++)
        for (int i = 0; i < n_batches; i++, out += B) {
            if (c->kind == LKS__SAMPLER_NANOGPT)
                draw_nanogpt(&s->generators[0], s->range[split], c->B, out);
            else
                draw_random(key, (uint32_t)step, (uint32_t)i,
                            (uint32_t)(LKS__SITE_DATA_EVAL + split), s->range[split], c->B, out);
        }
    return s->eval;
}

/* ---- state ------------------------------------------------------------------------------- */

static void copy_state(const lks__batch_sampler *s, lks__mt *generators, const lks__mt *from,
                       uint64_t *drawn, const uint64_t *drawn_from)
{
    const size_t V = (size_t)s->config.V, B = (size_t)s->config.B;
    memcpy(generators, from, V * sizeof *generators);
    memcpy(drawn, drawn_from, V * B * sizeof *drawn);
}

void lks__batch_sampler_mark(lks__batch_sampler *s)
{
    if (s != NULL && s->config.kind == LKS__SAMPLER_NANOGPT)
        copy_state(s, s->marked_generators, s->generators, s->marked_drawn, s->drawn);
}

void lks__batch_sampler_back(lks__batch_sampler *s)
{
    if (s != NULL && s->config.kind == LKS__SAMPLER_NANOGPT)
        copy_state(s, s->generators, s->marked_generators, s->drawn, s->marked_drawn);
}

/* Bytes of the generator's words, of its position and of all of a virtual rank's state. Numbers are
 * little-endian, as in memory. */
enum { WORDS = 624 * 4, HEAD = WORDS + 4 };

static size_t rank_bytes(const lks__batch_sampler *s)
{
    return HEAD + (size_t)s->config.B * sizeof *s->drawn;
}

size_t lks__batch_sampler_state_bytes(const lks__batch_sampler *s)
{
    return s->config.kind == LKS__SAMPLER_NANOGPT ? (size_t)s->config.V * rank_bytes(s) : 0;
}

void lks__batch_sampler_state_save(const lks__batch_sampler *s, void *out)
{
    const size_t B = (size_t)s->config.B;
    char *p = out;
    for (int v = 0; s->generators != NULL && v < s->config.V; v++, p += rank_bytes(s)) {
        const lks__mt *g = &s->generators[v];
        memcpy(p, g->state, WORDS);
        memcpy(p + WORDS, &g->pos, sizeof g->pos);
        memcpy(p + HEAD, s->drawn + (size_t)v * B, B * sizeof *s->drawn);
    }
}

static lks_status check_state(const lks__batch_sampler *s, const char *data, int v)
{
    uint32_t position;
    memcpy(&position, data + WORDS, sizeof position);
    if (position > WORDS / 4)
        return lks__fail(LKS_ERR_FORMAT,
                         "the sampler's state of virtual rank %d has position %u; at most %d is "
                         "possible",
                         v, position, WORDS / 4);
    for (int b = 0; b < s->config.B; b++) {
        uint64_t offset;
        memcpy(&offset, data + HEAD + (size_t)b * sizeof offset, sizeof offset);
        if (offset >= s->range[0])
            return lks__fail(LKS_ERR_FORMAT,
                             "the sampler's state of virtual rank %d has offset %llu; it must be "
                             "below %llu",
                             v, (unsigned long long)offset, (unsigned long long)s->range[0]);
    }
    return LKS_OK;
}

lks_status lks__batch_sampler_state_load(lks__batch_sampler *s, const void *data, size_t bytes)
{
    const size_t B = (size_t)s->config.B, n = lks__batch_sampler_state_bytes(s);
    const char *p = data;
    if (bytes != n)
        return lks__fail(LKS_ERR_FORMAT, "the sampler's state has %zu bytes; %zu are expected",
                         bytes, n);
    for (int v = 0; n > 0 && v < s->config.V; v++) /* check all of it before using any */
        LKS__TRY(check_state(s, p + (size_t)v * rank_bytes(s), v));
    for (int v = 0; n > 0 && v < s->config.V; v++, p += rank_bytes(s)) {
        lks__mt *g = &s->generators[v];
        memcpy(g->state, p, WORDS);
        memcpy(&g->pos, p + WORDS, sizeof g->pos);
        memcpy(s->drawn + (size_t)v * B, p + HEAD, B * sizeof *s->drawn);
    }
    return LKS_OK;
}
