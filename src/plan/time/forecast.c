#include "plan/time/forecast.h"

#include <math.h>

#include "comm/hier/hier.h"
#include "model/table/freeze.h"
#include "plan/gradients.h"
#include "weights/forms/saved.h"

/* A machine's figures, at one end of their ranges, for the planned model. */
struct figures {
    double add, reduce, forward, head, backward, layer, other, update;
    double bandwidth, burst, delay, window, engine;
    bool spare; /* a host has cores that don't compute */
};

enum { FASTEST = -1, VALUES = 0, SLOWEST = 1 };

/* Error of the model as a part of a step: it omits costs for which it has no figure. */
static const double MODEL_ERROR = 0.1;

/* Linux's values if the file doesn't say: ten packets of 1,460 bytes in the first round trip. The
 * window halves if it wasn't filled for a timeout: a round trip and 0.2 s. */
static const double FIRST_WINDOW = 14600, LEAST_TIMEOUT_S = 0.2;

/* Simulated steps, so that the connection's window is that of a long run. */
enum { WALKS = 6 };

static double seconds(const lks__figure *f, int end)
{
    return end == FASTEST ? f->low : end == SLOWEST ? f->high : f->value;
}

static double rate(const lks__figure *f, int end)
{
    return end == FASTEST ? f->high : end == SLOWEST ? f->low : f->value;
}

/* --- from the measured model to the planned one ----------------------------------------------- */

/* Arithmetic of a micro-batch as a multiple of the measured one's. */
struct work {
    double all, layer, rest; /* of the whole, of one layer, of all but layers */
    int layers;
};

static lks_status flops_of(const lks__model_config *config, double *flops_p)
{
    lks__table table;
    LKS__TRY(lks__model_table(config, &table));
    *flops_p = lks__model_flops_per_token(config, &table);
    lks__table_free(&table);
    return LKS_OK;
}

lks_status lks__forecast_layer_flops(const lks__model_config *config, double *flops_p)
{
    lks__model_config more = *config;
    double flops;
    more.n_layer++;
    LKS__TRY(flops_of(config, &flops));
    LKS__TRY(flops_of(&more, flops_p));
    *flops_p -= flops;
    return LKS_OK;
}

static lks_status find_work(const lks__model_config *config, const lks__machine *m, double flops,
                            double tokens, struct work *w)
{
    const double all = flops * tokens;
    double layer;
    *w = (struct work){.all = all / m->micro_batch_flops, .layers = config->n_layer};
    w->layer = w->rest = w->all;
    if (m->layer_flops.value == 0)
        return LKS_OK;
    LKS__TRY(lks__forecast_layer_flops(config, &layer));
    layer *= tokens;
    const double rest = m->micro_batch_flops - m->layers * m->layer_flops.value;
    w->layer = layer / m->layer_flops.value;
    if (rest > 0 && all > config->n_layer * layer)
        w->rest = (all - config->n_layer * layer) / rest;
    return LKS_OK;
}

/* A pass through the model: its layers, and the parts before and after them. */
static double pass(const lks__figure *whole, const lks__figure *layer, const struct work *w,
                   int measured_layers, int end)
{
    const double all = seconds(whole, end);
    if (layer->value == 0)
        return all * w->all;
    /* A layer's range is taken relative to the whole pass's. */
    const double one = layer->value * all / whole->value;
    const double rest = all - measured_layers * one;
    return w->layers * one * w->layer + (rest > 0 ? rest * w->rest : 0);
}

static struct figures figures_of(const lks__machine *m, const struct work *w, int n_groups,
                                 const lks__place *place, int end)
{
    struct figures f = {
        .add = rate(&m->add_bandwidth, end),
        .forward = pass(&m->forward_s, &m->layer_forward_s, w, m->layers, end),
        .head = seconds(&m->head_s, end) * w->rest,
        .backward = pass(&m->backward_s, &m->layer_backward_s, w, m->layers, end),
        .other = seconds(&m->other_s, end),
        .update = rate(&m->update_rate, end),
        .bandwidth = rate(&m->link_bandwidth, end),
        .delay = seconds(&m->round_trip_s, end) / 2,
        .window = m->link_window.value > 0 ? rate(&m->link_window, end) : FIRST_WINDOW,
        .engine = rate(&m->engine_bandwidth, end),
    };
    f.burst = fmax(rate(&m->link_burst, end), f.bandwidth);
    f.layer = f.backward / n_groups;
    if (m->layer_backward_s.value > 0)
        f.layer = m->layer_backward_s.value * w->layer * seconds(&m->backward_s, end) /
                  m->backward_s.value;
    /* Ranks wait for the memory that they share. */
    f.reduce = m->reduce_bandwidth.value > 0
                   ? rate(&m->reduce_bandwidth, end) * m->ranks / place->local
                   : f.add;
    return f;
}

/* --- a connection ----------------------------------------------------------------------------- */

/* TCP sends at most its window in a round trip, at the link's speed. The window doubles while it is
 * used, up to the link's capacity, and shrinks in pauses. */
struct connection {
    double window, last; /* bytes; seconds, when something was sent last */
};

/* A message is sent at `now`, perhaps a descriptor. Linux checks the window when a message is sent,
 * and heartbeats use the same connection: a timeout ends at one of them. */
static void end_pause(struct connection *c, const struct figures *f, double now)
{
    const double beats = ceil((LEAST_TIMEOUT_S + 2 * f->delay) / LKS__HIER_HEARTBEAT_S);
    const double timeout = beats * LKS__HIER_HEARTBEAT_S;
    for (double idle = now - c->last; idle > timeout && c->window > f->window; idle -= timeout)
        c->window = c->window / 2 > f->window ? c->window / 2 : f->window;
    c->last = now;
}

/* Seconds until the last of `bytes`, which begin at `now`, has been sent. The host's connections
 * share its link. */
static double send_bytes(struct connection *c, const struct figures *f, int to, double now,
                         double bytes)
{
    const double bandwidth = f->bandwidth / to, round = 2 * f->delay, full = bandwidth * round;
    double took = 0, left = bytes / to;
    end_pause(c, f, now);
    while (left > c->window && c->window < full) {
        took += round;
        left -= c->window;
        c->window *= 2;
    }
    if (2 * left > c->window && c->window < full)
        c->window += left;
    took += fmax(left / (f->burst / to), (left - c->window) / bandwidth);
    c->last = now + took;
    return took;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Seconds from the beginning of backward until group `g` is complete. The groups are the part after
 * the layers, if there is one, the layers, and the part before them. */
static double group_done(const struct figures *f, int g, int n_groups, int n_layers)
{
    const int behind = n_groups - n_layers - 1, layers = g + 1 - behind;
    if (g == n_groups - 1)
        return f->backward;
    return (layers < 0 ? 0 : layers) * f->layer;
}

/* Seconds that a bucket needs after it is complete on this host's ranks. */
static double bucket_time(const struct figures *f, const lks__place *place,
                          const lks__bucket_traffic *b, struct connection *c, double now)
{
    const int to = place->n_hosts - 1;
    double took = place->local > 1 ? b->gradient_bytes / f->reduce : 0.0;
    if (to == 0)
        return took;
    end_pause(c, f, now + took);
    took += b->delays * f->delay + b->added_bytes / f->add;
    took += send_bytes(c, f, to, now + took, b->fetch_bytes);
    took += send_bytes(c, f, to, now + took, b->gather_bytes);
    return took;
}

/* The step of the rank with most virtual ranks, which begins at `now`. */
static lks__step_time walk(const struct figures *f, const lks__reducer_config *ddp,
                           const lks__place *place, const lks__traffic *t, const lks__table *table,
                           int n_layers, struct connection *c, double now)
{
    const int W = lks__place_world(place), leaves = (ddp->V + W - 1) / W;
    const double micro = f->forward + f->head + f->backward;
    lks__step_time time = {0};
    double gradient = 0.0, free_at = 0.0, stolen = 0.0;
    for (int i = 0; i < t->n_buckets; i++)
        gradient += t->buckets[i].gradient_bytes;
    const double merging = (leaves - 1) * gradient / f->add;
    time.compute = leaves * ddp->A * micro + f->other + merging;
    const double began = time.compute - f->backward; /* the last backward */
    for (int i = 0; i < t->n_buckets; i++) {
        const lks__bucket_traffic *b = &t->buckets[i];
        const double done = began + group_done(f, b->last_group, table->n_groups, n_layers);
        const double ready = done + stolen, start = ready > free_at ? ready : free_at;
        /* Without spare cores, the work of sending takes time from backward. */
        if (!f->spare && f->engine > 0 && start < time.compute + stolen)
            stolen += b->bytes / f->engine;
        free_at = start + bucket_time(f, place, b, c, now + start);
    }
    const double ended = time.compute + stolen;
    time.exposed = (free_at > ended ? free_at : ended) - time.compute;
    if (place->n_hosts > 1) {
        time.exposed +=
            t->late_delays * f->delay +
            send_bytes(c, f, place->n_hosts - 1, now + time.compute + time.exposed, t->late_bytes);
        c->last = now + time.compute + time.exposed; /* the last of the delays was a message's */
    }
    const int sharers = ddp->zero ? W : place->local;
    time.update = (double)table->trained_params / sharers / f->update;
    time.step = time.compute + time.exposed + time.update;
    return time;
}

/* Bytes that AdamW reads and writes per parameter: itself, gradient, two moments. */
static const double UPDATE_BYTES = 28;

/* With another number of ranks than measured, memory may limit an update. */
static void limit_update(struct figures *f, const lks__machine *m, const lks__place *place, int end)
{
    const double most = rate(&m->memory_bandwidth, end) / UPDATE_BYTES / place->local;
    if (place->local != m->ranks && m->memory_bandwidth.value > 0 && most < f->update)
        f->update = most;
}

static lks__step_time long_run(const struct figures *f, const lks__reducer_config *ddp,
                               const lks__place *place, const lks__traffic *t,
                               const lks__table *table, int n_layers)
{
    struct connection c = {.window = f->window};
    lks__step_time time = {0};
    double now = 0;
    for (int i = 0; i < WALKS; i++) {
        time = walk(f, ddp, place, t, table, n_layers, &c, now);
        now += time.step;
    }
    return time;
}

lks_status lks__forecast_step(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                              const lks__machine *m, const lks__traffic *traffic,
                              lks__forecast *forecast)
{
    const lks__model_config config = lks__state_model_config(s, vocab_size);
    const lks__reducer_config ddp = lks__chosen_ddp(s);
    const double tokens = (double)(s->batch_size * s->block_size);
    lks__table table;
    struct work work = {0};
    if (place->n_hosts > 1 && !m->has_link)
        return lks__fail(LKS_ERR_CONFIG,
                         "the machine file has no link between hosts: add link_bandwidth (bytes/s) "
                         "and round_trip_s, or measure them with `lockstep run --nnodes=2 … "
                         "lockstep bench machine`");
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    LKS__THEN(st,
              find_work(&config, m, lks__model_flops_per_token(&config, &table), tokens, &work));
    if (st == LKS_OK) {
        lks__step_time ends[3];
        for (int end = FASTEST; end <= SLOWEST; end++) {
            struct figures f = figures_of(m, &work, table.n_groups, place, end);
            f.spare = s->threads > 0 && s->threads * place->local < m->cores;
            limit_update(&f, m, place, end);
            ends[end + 1] = long_run(&f, &ddp, place, traffic, &table, config.n_layer);
        }
        *forecast = (lks__forecast){
            .at = ends[1],
            .low = ends[0].step * (1 - MODEL_ERROR),
            .high = ends[2].step * (1 + MODEL_ERROR),
            .tokens = tokens * (double)s->gradient_accumulation_steps,
            .model = fabs(work.all - 1) > 0.01 || tokens != m->micro_batch_tokens ||
                     s->n_layer != m->layers,
            .ranks = place->local != m->ranks,
            .network = place->n_hosts > 2,
        };
    }
    lks__table_free(&table);
    return st;
}

double lks__forecast_checkpoint_every(double write_s, double mtbf_s)
{
    return sqrt(2.0 * write_s * mtbf_s);
}
