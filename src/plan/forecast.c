#include "plan/forecast.h"

#include <math.h>

#include "model/freeze.h"
#include "train/state.h"

/* The figures of a machine, at one end of their ranges. */
struct figures {
    double add, forward, head, backward, other, update, bandwidth, delay;
};

enum { FASTEST = -1, VALUES = 0, SLOWEST = 1 };

/* The model leaves out what it has no figure for; so much of a step is its own error. */
static const double MODEL_ERROR = 0.1;

static double seconds(const lks__figure *f, int end)
{
    return end == FASTEST ? f->low : end == SLOWEST ? f->high : f->value;
}

static double rate(const lks__figure *f, int end)
{
    return end == FASTEST ? f->high : end == SLOWEST ? f->low : f->value;
}

/* `work`: the arithmetic of a micro-batch, in those that were measured. */
static struct figures figures_of(const lks__machine *m, double work, int end)
{
    return (struct figures){
        .add = rate(&m->add_bandwidth, end),
        .forward = seconds(&m->forward_s, end) * work,
        .head = seconds(&m->head_s, end) * work,
        .backward = seconds(&m->backward_s, end) * work,
        .other = seconds(&m->other_s, end),
        .update = rate(&m->update_rate, end),
        .bandwidth = rate(&m->link_bandwidth, end),
        .delay = seconds(&m->round_trip_s, end) / 2,
    };
}

/* The step of the rank with most virtual ranks. Backward announces group g of n after its part of
 * the time: groups are layers, with little before and behind them. */
static lks__step_time walk(const struct figures *f, const lks__ddp_config *ddp,
                           const lks__place *place, const lks__traffic *t, int n_groups,
                           double parameters)
{
    const int W = lks__place_world(place), leaves = (ddp->V + W - 1) / W;
    const double micro = f->forward + f->head + f->backward;
    lks__step_time time = {0};
    double gradient = 0.0, free_at = 0.0;
    for (int i = 0; i < t->n_buckets; i++)
        gradient += t->buckets[i].gradient_bytes;
    const double merging = (leaves - 1) * gradient / f->add;
    time.compute = leaves * ddp->A * micro + f->other + merging;
    const double began = time.compute - f->backward; /* the last backward */
    for (int i = 0; i < t->n_buckets; i++) {
        const lks__bucket_traffic *b = &t->buckets[i];
        const double done = began + f->backward * (b->last_group + 1) / n_groups;
        const double on_host = place->local > 1 ? b->gradient_bytes / f->add : 0.0;
        const double on_link = place->n_hosts > 1 ? b->delays * f->delay + b->bytes / f->bandwidth +
                                                        b->gradient_bytes / f->add
                                                  : 0.0;
        const double start = done > free_at ? done : free_at;
        free_at = start + on_host + on_link;
    }
    time.exposed = free_at > time.compute ? free_at - time.compute : 0.0;
    if (place->n_hosts > 1)
        time.exposed += t->late_delays * f->delay + t->late_bytes / f->bandwidth;
    const int sharers = ddp->zero ? W : place->local;
    time.update = parameters / sharers / f->update;
    time.step = time.compute + time.exposed + time.update;
    return time;
}

lks_status lks__forecast_step(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                              const lks__machine *m, const lks__traffic *traffic,
                              lks__forecast *forecast)
{
    const lks__model_config config = lks__state_model_config(s, vocab_size);
    const lks__ddp_config ddp = lks__train_ddp_config(s);
    lks__table table;
    if (place->n_hosts > 1 && !m->has_link)
        return lks__fail(LKS_ERR_CONFIG,
                         "the machine file has no link between hosts: add link_bandwidth (bytes/s) "
                         "and round_trip_s, or measure them with `lockstep run --nnodes=2 … bench "
                         "machine`");
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    if (st == LKS_OK) {
        const double tokens = (double)(s->batch_size * s->block_size);
        const double flops = lks__model_flops_per_token(&config, &table) * tokens;
        const double work = flops / m->micro_batch_flops;
        const double parameters = (double)table.trained_params;
        lks__step_time ends[3];
        for (int end = FASTEST; end <= SLOWEST; end++) {
            const struct figures f = figures_of(m, work, end);
            ends[end + 1] = walk(&f, &ddp, place, traffic, table.n_groups, parameters);
        }
        *forecast = (lks__forecast){
            .at = ends[1],
            .low = ends[0].step * (1 - MODEL_ERROR),
            .high = ends[2].step * (1 + MODEL_ERROR),
            .tokens = tokens * (double)s->gradient_accumulation_steps,
            .model =
                fabs(work - 1) > 0.01 || tokens != m->micro_batch_tokens || s->n_layer != m->layers,
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
