#include "plan/bytes/needs.h"

#include <stdlib.h>

#include "base/number/checked.h"
#include "comm/hier/pieces.h"
#include "comm/shm/segment/segment.h"
#include "comm/tree/tree.h"
#include "ddp/memory/mode.h"
#include "ddp/nodes.h"
#include "model/batch.h"
#include "model/decode.h"
#include "model/table/freeze.h"
#include "plan/gradients.h"
#include "session/session.h"
#include "settings/family.h"
#include "weights/forms/saved.h"

static double bytes_of(size_t floats)
{
    return (double)floats * sizeof(float);
}

/* --- moments ---------------------------------------------------------------------------------- */

/* Floats of `t` in blocks [first, end). */
static size_t overlap(const lks__table *table, const lks__table_tensor *t, size_t first, size_t end)
{
    const size_t from = table->block_start[first], to = table->block_start[end];
    const size_t start = t->offset > from ? t->offset : from;
    const size_t stop = t->offset + t->count < to ? t->offset + t->count : to;
    return start < stop ? stop - start : 0;
}

/* Bytes of the optimizer's state for blocks [first, end); padding is counted as in the run. */
static double moments_of(const lks__optimizer *optimizer, const lks__table *table, size_t first,
                         size_t end)
{
    double floats =
        LKS__OPTIM_STATES * (double)(table->block_start[end] - table->block_start[first]);
    for (size_t i = 0; i < LKS__OPTIM_STATES * table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i % table->n_tensors];
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
    for (int g = 0, end = 0; lks__bucket_next(table, bucket_bytes, &g, &end);) {
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
    const lks__optimizer *optimizer = lks__optimizer_of(s);
    const lks__reducer_config ddp = lks__chosen_ddp(s);
    const double all = moments_of(optimizer, table, 0, table->trained_blocks);
    n->moments = all;
    if (s->zero == 0)
        return;
    n->moments = divided_moments(optimizer, table, ddp.bucket_bytes, n->place.n_hosts);
    n->checkpoint = all - n->moments;
}

/* --- gradients -------------------------------------------------------------------------------- */

/* For the ranks of `host`: the arenas of the group's memory that they reserve but never fill, and
 * the number of ranks with a staging buffer. `n_nodes`: of the rank with most nodes. */
static int untouched_arenas(const lks__reducer_config *ddp, const lks__memory_mode *mode,
                            const lks__needs *n, int n_nodes, int host, int *stagers_p)
{
    const int W = lks__place_world(&n->place);
    const bool staging = n->staging > 0.0;
    int spare = 0;
    *stagers_p = 0;
    for (int r = host * n->place.local; r < (host + 1) * n->place.local; r++) {
        lks__tree_nodes left;
        bool merges = false;
        int used =
            lks__tree_nodes_rehearse(ddp->V, lks__first_leaf(ddp->V, W, r),
                                     lks__first_leaf(ddp->V, W, r + 1), staging, &left, &merges);
        spare += mode->group_arenas(n->n_arenas, n_nodes) - mode->group_arenas(used, left.n);
        *stagers_p += staging && merges;
    }
    return spare;
}

/* Counts the staging buffers of the host with most of them, and the first host's untouched
 * arenas. */
static void find_uneven(const lks__reducer_config *ddp, const lks__memory_mode *mode, lks__needs *n,
                        int n_nodes, double arena)
{
    for (int host = 0; host < n->place.n_hosts; host++) {
        int stagers;
        const int spare = untouched_arenas(ddp, mode, n, n_nodes, host, &stagers);
        n->stagers = stagers > n->stagers ? stagers : n->stagers;
        n->untouched = host == 0 ? arena * spare : n->untouched;
    }
}

int lks__place_nodes(const lks__place *p, int V, int host)
{
    const int W = lks__place_world(p);
    lks_node nodes[LKS__TREE_MAX_COVER];
    return lks__tree_cover(V, lks__first_leaf(V, W, host * p->local),
                           lks__first_leaf(V, W, (host + 1) * p->local), nodes,
                           LKS__TREE_MAX_COVER);
}

/* The buffer in which the leader's thread receives pieces of the largest bucket: only the touched
 * part, as a bucket may have fewer pieces than the buffer has room for. */
static double inter_host_bytes(const lks__settings *s, const lks__table *table,
                               const lks__place *place)
{
    const lks__reducer_config ddp = lks__chosen_ddp(s);
    size_t nodes = 0; /* that arrive at the first host */
    double most = 0.0;
    if (place->n_hosts == 1)
        return 0.0;
    for (int h = 1; h < place->n_hosts; h++)
        nodes += (size_t)lks__place_nodes(place, ddp.V, h);
    for (int g = 0, end = 0; lks__bucket_next(table, ddp.bucket_bytes, &g, &end);) {
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
                               const lks__device *device, lks__needs *n)
{
    size_t bytes, chunk = 0;
    if (s->sample_tokens == 0)
        return LKS_OK;
    const lks__decoder_size size =
        lks__decoder_size_for(config, 1, (uint64_t)s->sample_tokens + 1, &chunk);
    LKS__TRY(lks__decoder_bytes(config, &size, device->layers, &bytes));
    n->samples = (double)bytes + /* and the context, the newest token, logits */
                 bytes_of(size.positions + 1 + (size_t)config->vocab_size);
    return LKS_OK;
}

/* --- a device with its own memory ------------------------------------------------------------- */

/* Blocks that local rank `rank` of a host updates, as ddp/memory/memory.c divides them. Devices
 * that exchange gradients divide them as ranks of one host each would with ZeRO-1. */
static int ranges_of(const lks__settings *s, const lks__table *table, const lks__place *place,
                     bool in_buckets, int host, int rank, size_t (*ranges)[2])
{
    int n = 0;
    if (!in_buckets) {
        lks__local_part(0, table->trained_blocks, rank, place->local, &ranges[0][0], &ranges[0][1]);
        return 1;
    }
    for (int g = 0, end = 0; lks__bucket_next(table, lks__chosen_ddp(s).bucket_bytes, &g, &end);
         n++) {
        const size_t first = table->group_block[g], blocks = table->group_block[end] - first;
        lks__local_part(first + lks__share_start(blocks, place->n_hosts, host),
                        first + lks__share_start(blocks, place->n_hosts, host + 1), rank,
                        place->local, &ranges[n][0], &ranges[n][1]);
    }
    return n;
}

static const lks__memory_mode *mode_of(const lks__device *device, const lks__settings *s)
{
    return lks__memory_mode_planned(device, lks__chosen_may_join(s));
}

/* Moments of the pieces of the rank with most of them. */
static lks_status device_moments(const lks__device *device, const lks__settings *s,
                                 const lks__table *table, lks__needs *n)
{
    const lks__division d =
        lks__memory_division(mode_of(device, s), s->replicas == LKS__replicas_shared, s->zero != 0,
                             n->place.n_hosts, n->place.local);
    const lks__place place = {d.parts, d.local};
    size_t(*ranges)[2] = calloc((size_t)table->n_groups + 1, sizeof *ranges);
    lks_status st = LKS_OK;
    LKS__MEMORY(ranges, "to list the parts of %d groups", table->n_groups);
    for (int i = 0; i < lks__place_world(&place) && st == LKS_OK; i++) {
        size_t floats[LKS__OPTIM_STATES];
        double bytes = 0.0;
        const lks__optim_share share = {
            .W = d.whole,
            .rank = i % d.whole,
            .n_ranges = ranges_of(s, table, &place, d.in_buckets, i / d.local, i % d.local, ranges),
            .ranges = (const size_t(*)[2])ranges,
        };
        st = lks__optim_measure(lks__optimizer_of(s), device, table, &share, floats);
        for (int k = 0; k < LKS__OPTIM_STATES && st == LKS_OK; k++)
            bytes += bytes_of(floats[k]);
        n->device.moments = bytes > n->device.moments ? bytes : n->device.moments;
    }
    free(ranges);
    return st;
}

/* The largest number of columns of a gradient that is summed over rows. */
static size_t most_columns(const lks__table *table)
{
    size_t most = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (t->kind == LKS__PARAM_SCALAR && !t->frozen && t->count > most)
            most = t->count;
    }
    return most;
}

/* Bytes for gradients from other devices, for the first ranks; with many more ranks a rank needs no
 * more. */
static lks_status exchange_bytes(const lks__memory_mode *mode, const lks__settings *s,
                                 const lks__table *table, const int *owners, lks__needs *n)
{
    const lks__reducer_config ddp = lks__chosen_ddp(s);
    const int W = lks__place_world(&n->place), most = W < 8 ? W : 8;
    lks__buckets buckets = {0};
    const lks__memory_config config = {.V = ddp.V, .owners = owners, .buckets = &buckets};
    lks_status st = lks__buckets_cut(table, 0, ddp.bucket_bytes, &buckets);
    for (int r = 0; r < most && st == LKS_OK; r++) {
        double bytes = 0.0;
        st = mode->exchange_bytes(&config, table, W, r, &bytes);
        n->device.exchange = bytes > n->device.exchange ? bytes : n->device.exchange;
    }
    lks__buckets_free(&buckets);
    return st;
}

static void enlarge(size_t *most, size_t floats)
{
    *most = floats > *most ? floats : *most;
}

/* Matrices that the owner of matrix i updates together with it, if activations lend that much work
 * space. */
static size_t updated_at_once(const lks__table *table, const int *owners, size_t i)
{
    const lks__table_tensor *t = &table->tensors[i];
    size_t n = 0;
    for (size_t k = 0; k < table->n_tensors; k++) {
        const lks__table_tensor *other = &table->tensors[k];
        n += owners[k] == owners[i] && other->shape[0] == t->shape[0] &&
             other->shape[1] == t->shape[1];
    }
    return n < LKS__UPDATE_PIECES ? n : LKS__UPDATE_PIECES;
}

/* Matrices that products round: those of updates, and golf's projections, with their scales. All
 * others of a pass are activations and parameters. */
static void find_factors(const lks__table *table, const int *owners, lks__work_use *use)
{
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        const size_t floats = t->shape[0] * lks__round_up(t->shape[1], 8);
        if (owners[i] >= 0)
            enlarge(&use->factors[0], updated_at_once(table, owners, i) * floats);
        if (t->kind == LKS__PARAM_MATRIX && t->init == LKS__INIT_ZEROED)
            enlarge(&use->factors[1], floats);
    }
    enlarge(&use->factors[1], use->factors[0]);
}

/* Find the sizes that depend on the owners of whole matrices: the exchange, and products' factors.
 */
static lks_status find_owned(const lks__memory_mode *mode, const lks__settings *s,
                             const lks__table *table, lks__work_use *use, lks__needs *n)
{
    int *owners = calloc(table->n_tensors + 1, sizeof *owners);
    lks_status st = LKS_OK;
    if (owners == NULL)
        st = lks__no_memory("to divide %zu tensors", table->n_tensors);
    LKS__THEN(st,
              lks__optim_assign(lks__optimizer_of(s), table, lks__place_world(&n->place), owners));
    if (st == LKS_OK)
        find_factors(table, owners, use);
    if (st == LKS_OK && mode->exchange_bytes != NULL)
        st = exchange_bytes(mode, s, table, owners, n);
    free(owners);
    return st;
}

static lks_status find_device(const lks__device *device, const lks__settings *s,
                              const lks__model_config *config, const lks__table *table,
                              lks__needs *n)
{
    lks__device_needs *d = &n->device;
    const size_t rows = (size_t)(s->batch_size * s->block_size);
    const lks__memory_mode *mode = mode_of(device, s);
    if (!mode->own_memory)
        return LKS_OK;
    d->params = n->params;
    d->gradients = bytes_of(table->trained_count) * n->n_arenas;
    d->activations = n->activations;
    lks__work_use use = {
        .rows = rows,
        .n_heads = (size_t)config->n_head,
        .columns = most_columns(table),
        .params = table->count,
        .bf16 = config->bf16,
    };
    LKS__TRY(find_owned(mode, s, table, &use, n));
    d->work = (double)device->layers->work_bytes(&use);
    d->buffers = (double)lks__batch_bytes(device, rows) +
                 bytes_of((size_t)s->gradient_accumulation_steps); /* losses */
    if (s->eval_stride > 0) /* losses of overlapping windows */
        d->buffers += (double)(rows * sizeof(double));
    if (s->check_interval > 0 && lks__place_world(&n->place) > 1) /* replicas are compared */
        d->buffers += LKS__MEMORY_PIECE;
    d->samples = n->samples;
    d->opened = (double)device->ops->open_bytes;
    LKS__TRY(device_moments(device, s, table, n));
    d->total = d->params + d->moments + d->gradients + d->activations + d->work + d->buffers +
               d->exchange + d->samples + d->opened;
    return LKS_OK;
}

bool lks__needs_has_device(const lks__needs *n)
{
    return n->device.total > 0.0;
}

double lks__needs_of_device(const lks__needs *n, int ranks)
{
    return (n->device.total - n->device.opened) * ranks - n->device.samples * (ranks - 1);
}

/* --- together --------------------------------------------------------------------------------- */

static void add_up(lks__needs *n)
{
    const bool passes = !lks__needs_has_device(n); /* are on the host */
    const double each = n->gradients + n->process + (passes ? n->activations : 0.0);
    n->host_bytes = (n->params + n->moments) * n->replicas + each * n->place.local;
    n->host_bytes += n->staging * n->stagers;
    n->host_bytes += n->libraries + n->control + n->inter_host + (passes ? n->samples : 0.0);
    n->rank_bytes = n->host_bytes / n->place.local;
}

lks_status lks__needs_on(const lks__device *device, const lks__settings *s, uint32_t vocab_size,
                         const lks__place *place, const lks__process *process, lks__needs *n)
{
    lks__settings resolved = *s;
    lks__state_choose_dtype(&resolved, device);
    const lks__model_config config = lks__state_model_config(&resolved, vocab_size);
    const lks__reducer_config ddp = lks__chosen_ddp(s);
    const int W = lks__place_world(place);
    lks__table table;
    const lks__memory_mode *mode = mode_of(device, s);
    size_t activations = 0;
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st =
        s->eval_only ? lks__table_freeze_all(&table) : lks__table_freeze(&table, s->freeze);
    LKS__THEN(
        st, lks__model_activation_bytes(&config, (int)s->batch_size, device->layers, &activations));
    if (st == LKS_OK) {
        const bool staging = ddp.staging && ddp.A == 1 && mode->in_caches;
        bool merges;
        int left;
        *n = (lks__needs){
            .place = *place,
            .n_params = table.n_params,
            .n_tensors = table.n_tensors,
            .n_arenas = lks__tree_nodes_rehearse_all(ddp.V, W, staging, &merges, &left),
            .replicas = s->replicas == LKS__replicas_shared ? 1 : place->local,
            .params = bytes_of(table.count),
            .staging = staging ? bytes_of(lks__reducer_staging_floats(&ddp, &table, W)) : 0.0,
            .activations = (double)activations,
            .process = process->own,
            .libraries = process->libraries,
            .control = (double)lks__segment_base_bytes(place->local),
            .inter_host = inter_host_bytes(s, &table, place),
        };
        const double arena = bytes_of(table.trained_count);
        n->gradients = arena * mode->group_arenas(n->n_arenas, left);
        find_uneven(&ddp, mode, n, left, arena);
        find_moments(s, &table, n);
        st = find_samples(s, &config, device, n);
        LKS__THEN(st, find_device(device, s, &config, &table, n));
        add_up(n);
    }
    lks__table_free(&table);
    return st;
}

lks_status lks__needs_find(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                           const lks__process *process, lks__needs *n)
{
    lks__device device;
    LKS__TRY(lks__session_describe(s->device, &device));
    return lks__needs_on(&device, s, vocab_size, place, process, n);
}

double lks__needs_per_parameter(const lks__needs *n)
{
    const double bytes = (n->params + n->moments) * n->replicas + n->gradients * n->place.local;
    return bytes / (double)n->n_params;
}
