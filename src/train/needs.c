#include "train/needs.h"

#include "comm/hier/pieces.h"
#include "comm/shm/segment.h"
#include "comm/tree.h"
#include "ddp/nodes.h"
#include "model/decode.h"
#include "model/freeze.h"
#include "session/session.h"
#include "train/optimizer.h"
#include "train/state.h"

static double bytes_of(size_t floats)
{
    return (double)floats * sizeof(float);
}

/* --- moments ---------------------------------------------------------------------------------- */

/* Floats of `t` in blocks [first, end). */
static size_t overlap(const lks__table *table, const lks__tensor *t, size_t first, size_t end)
{
    const size_t from = table->block_start[first], to = table->block_start[end];
    const size_t start = t->offset > from ? t->offset : from;
    const size_t stop = t->offset + t->count < to ? t->offset + t->count : to;
    return start < stop ? stop - start : 0;
}

/* What the optimizer keeps of blocks [first, end); padding is counted as in the run. */
static double moments_of(const lks__optimizer *optimizer, const lks__table *table, size_t first,
                         size_t end)
{
    double floats =
        LKS__OPTIM_STATES * (double)(table->block_start[end] - table->block_start[first]);
    for (size_t i = 0; i < LKS__OPTIM_STATES * table->n_tensors; i++) {
        const lks__tensor *t = &table->tensors[i % table->n_tensors];
        if (!t->frozen && lks__optimizer_state(optimizer, t, (int)(i / table->n_tensors)) == NULL)
            floats -= (double)overlap(table, t, first, end);
    }
    return floats * sizeof(float);
}

/* ZeRO-1: the first host's or the last host's shards of all buckets, whichever is more. */
static double divided_moments(const lks__optimizer *optimizer, const lks__table *table,
                              size_t bucket_bytes, int n_hosts)
{
    double ends[2] = {0.0, 0.0};
    for (int g = 0, end = 0; lks__ddp_next_bucket(table, bucket_bytes, &g, &end);) {
        const size_t first = table->group_block[g], n = table->group_block[end] - first;
        for (int i = 0; i < 2; i++) {
            const int host = i * (n_hosts - 1);
            ends[i] += moments_of(optimizer, table, first + lks__share_start(n, n_hosts, host),
                                  first + lks__share_start(n, n_hosts, host + 1));
        }
    }
    return ends[0] > ends[1] ? ends[0] : ends[1];
}

static void find_moments(const lks__settings *s, const lks__table *table, lks__needs *n)
{
    lks__settings chosen = *s;
    lks__train_choose_optimizer(&chosen);
    const lks__optimizer *optimizer = lks__train_optimizer(&chosen);
    const lks__ddp_config ddp = lks__train_ddp_config(s);
    const double all = moments_of(optimizer, table, 0, table->trained_blocks);
    n->moments = all;
    if (s->zero == 0)
        return;
    n->moments = divided_moments(optimizer, table, ddp.bucket_bytes, n->place.n_hosts);
    n->checkpoint = all - n->moments;
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Of the ranks of `host`: arenas that they reserve and never fill, and how many have a staging
 * buffer. */
static int untouched_arenas(const lks__ddp_config *ddp, const lks__needs *n, int host, bool staging,
                            int *stagers_p)
{
    const int W = lks__place_world(&n->place);
    int spare = 0;
    *stagers_p = 0;
    for (int r = host * n->place.local; r < (host + 1) * n->place.local; r++) {
        lks__nodes left;
        bool merges = false;
        int used =
            lks__nodes_rehearse(ddp->V, lks__ddp_first_leaf(ddp->V, W, r),
                                lks__ddp_first_leaf(ddp->V, W, r + 1), staging, &left, &merges);
        spare += n->n_arenas - used;
        *stagers_p += staging && merges;
    }
    return spare;
}

/* The host with most staging buffers counts, and the first one's untouched arenas. */
static void find_uneven(const lks__ddp_config *ddp, lks__needs *n, bool staging, double arena)
{
    for (int host = 0; host < n->place.n_hosts; host++) {
        int stagers;
        const int spare = untouched_arenas(ddp, n, host, staging, &stagers);
        n->stagers = stagers > n->stagers ? stagers : n->stagers;
        n->untouched = host == 0 ? arena * spare : n->untouched;
    }
}

/* Nodes of the tree that arrive at the first host, when each has added what it can. */
static int nodes_of_others(int V, const lks__place *place)
{
    const int W = lks__place_world(place);
    lks_node nodes[LKS__TREE_MAX_COVER];
    int n = 0;
    for (int h = 1; h < place->n_hosts; h++)
        n += lks__tree_cover(V, lks__ddp_first_leaf(V, W, h * place->local),
                             lks__ddp_first_leaf(V, W, (h + 1) * place->local), nodes,
                             LKS__TREE_MAX_COVER);
    return n;
}

/* The buffer in which the leader's thread receives pieces of the largest bucket: what it touches of
 * that, as a bucket may have fewer pieces than there is room for. */
static double inter_host_bytes(const lks__settings *s, const lks__table *table,
                               const lks__place *place)
{
    const lks__ddp_config ddp = lks__train_ddp_config(s);
    const size_t nodes = (size_t)nodes_of_others(ddp.V, place);
    double most = 0.0;
    if (place->n_hosts == 1)
        return 0.0;
    for (int g = 0, end = 0; lks__ddp_next_bucket(table, ddp.bucket_bytes, &g, &end);) {
        const size_t first = table->group_block[g];
        lks__pieces cut = {table->block_start + first, table->group_block[end] - first,
                           place->n_hosts, 0};
        lks__pieces_cut(&cut);
        const size_t ahead = cut.n < LKS__PIECES_AHEAD ? cut.n : LKS__PIECES_AHEAD;
        const size_t floats = ahead * nodes * lks__pieces_room(&cut, 0);
        const size_t count =
            table->block_start[table->group_block[end]] - table->block_start[table->group_block[g]];
        double bytes = bytes_of(floats);
        if (ddp.wire == LKS_WIRE_BFLOAT16)
            bytes += (double)(count + floats) * sizeof(uint16_t);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Passes of one text after a prompt of one token. */
static lks_status find_samples(const lks__settings *s, const lks__model_config *config,
                               const lks__layers *layers, lks__needs *n)
{
    size_t bytes, chunk = 0;
    if (s->sample_tokens == 0)
        return LKS_OK;
    const lks__decoder_size size =
        lks__decoder_size_for(config, 1, (uint64_t)s->sample_tokens + 1, &chunk);
    LKS__TRY(lks__decoder_bytes(config, &size, layers, &bytes));
    n->samples = (double)bytes;
    return LKS_OK;
}

/* --- together --------------------------------------------------------------------------------- */

static void add_up(lks__needs *n)
{
    const double each = n->gradients + n->activations + n->process;
    n->host_bytes = (n->params + n->moments) * n->replicas + each * n->place.local;
    n->host_bytes += n->staging * n->stagers;
    n->host_bytes += n->libraries + n->control + n->inter_host + n->samples;
    n->rank_bytes = n->host_bytes / n->place.local;
}

lks_status lks__needs_on(const lks__layers *layers, const lks__settings *s, uint32_t vocab_size,
                         const lks__place *place, const lks__process *process, lks__needs *n)
{
    const lks__model_config config = lks__state_model_config(s, vocab_size);
    const lks__ddp_config ddp = lks__train_ddp_config(s);
    const int W = lks__place_world(place);
    lks__table table;
    size_t activations = 0;
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    if (st == LKS_OK)
        st = lks__model_activation_bytes(&config, (int)s->batch_size, layers, &activations);
    if (st == LKS_OK) {
        const bool staging = ddp.staging && ddp.A == 1;
        *n = (lks__needs){
            .place = *place,
            .n_params = table.n_params,
            .trained_params = table.trained_params,
            .n_tensors = table.n_tensors,
            .n_arenas = lks__ddp_arenas(ddp.V, W, staging),
            .replicas = s->replicas == LKS__replicas_shared ? 1 : place->local,
            .params = bytes_of(table.count),
            .staging = bytes_of(lks__ddp_staging_floats(&ddp, &table, W)),
            .activations = (double)activations,
            .process = process->own,
            .libraries = process->libraries,
            .control = (double)lks__segment_base_bytes(place->local),
            .inter_host = inter_host_bytes(s, &table, place),
        };
        n->gradients = bytes_of(table.trained_count) * n->n_arenas;
        find_uneven(&ddp, n, staging, bytes_of(table.trained_count));
        find_moments(s, &table, n);
        st = find_samples(s, &config, layers, n);
        add_up(n);
    }
    lks__table_free(&table);
    return st;
}

lks_status lks__needs_find(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                           const lks__process *process, lks__needs *n)
{
    const lks__layers *layers;
    LKS__TRY(lks__session_layers(s->device, &layers));
    return lks__needs_on(layers, s, vocab_size, place, process, n);
}

double lks__needs_per_parameter(const lks__needs *n)
{
    const double bytes = (n->params + n->moments) * n->replicas + n->gradients * n->place.local;
    return bytes / (double)n->n_params;
}
