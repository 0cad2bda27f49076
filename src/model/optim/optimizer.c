#include "model/optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"

const lks__optimizer *const lks__optimizers[] = {
#define X(name) &lks__optimizer_##name,
    LKS__OPTIMIZER_MAP(X)
#undef X
        NULL,
};

const char *lks__optimizer_state(const lks__optimizer *optimizer, const lks__table_tensor *t,
                                 int state)
{
    return t->frozen ? NULL : optimizer->state[t->kind][state];
}

bool lks__optimizer_divides(const lks__optimizer *optimizer)
{
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        if (optimizer->whole[kind])
            return false;
    return true;
}

/* --- division among ranks --------------------------------------------------------------------- */

struct entry {
    double cost;
    size_t index;
};

static int by_cost(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The tensors that are updated whole, the most expensive first: [*n_p], to be freed. */
static lks_status list_whole(const lks__optimizer *optimizer, const lks__table *table,
                             struct entry **list_p, size_t *n_p)
{
    struct entry *list = calloc(table->n_tensors + 1, sizeof *list);
    LKS__MEMORY(list, "to list %zu tensors", table->n_tensors);
    size_t n = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (optimizer->whole[t->kind] && !t->frozen)
            list[n++] =
                (struct entry){optimizer->cost == NULL ? (double)t->count : optimizer->cost(t), i};
    }
    qsort(list, n, sizeof *list, by_cost);
    *list_p = list;
    *n_p = n;
    return LKS_OK;
}

static void deal(const struct entry *list, size_t n, int W, double *load, int *owner)
{
    for (size_t i = 0; i < n; i++) {
        int least = 0;
        for (int rank = 1; rank < W; rank++)
            if (load[rank] < load[least])
                least = rank;
        load[least] += list[i].cost;
        owner[list[i].index] = least;
    }
}

lks_status lks__optim_assign(const lks__optimizer *optimizer, const lks__table *table, int W,
                             int *owner)
{
    struct entry *list;
    size_t n;
    double *load = calloc((size_t)W, sizeof *load);
    LKS__MEMORY(load, "to divide the tensors over %d ranks", W);
    lks_status st = list_whole(optimizer, table, &list, &n);
    if (st == LKS_OK) {
        for (size_t i = 0; i < table->n_tensors; i++)
            owner[i] = -1;
        deal(list, n, W, load, owner);
        free(list);
    }
    free(load);
    return st;
}

/* --- a rank's pieces ------------------------------------------------------------------------- */

static lks_status add_whole(lks__optim *o, const lks__optim_share *share, int *owner)
{
    struct entry *list;
    size_t n;
    LKS__TRY(lks__optim_assign(o->optimizer, o->table, share->W, owner));
    LKS__TRY(list_whole(o->optimizer, o->table, &list, &n));
    for (size_t i = 0; i < n; i++) {
        const lks__table_tensor *t = &o->table->tensors[list[i].index];
        if (owner[list[i].index] == share->rank)
            o->pieces[o->n_pieces++] = (lks__piece){list[i].index, t->offset, t->count, {0}};
    }
    free(list);
    return LKS_OK;
}

/* Add the parts of tensor `i` that are in the ranges. */
static void add_blocks(lks__optim *o, const lks__optim_share *share, size_t i)
{
    const lks__table_tensor *t = &o->table->tensors[i];
    for (int r = 0; r < share->n_ranges; r++) {
        size_t first = o->table->block_start[share->ranges[r][0]];
        size_t end = o->table->block_start[share->ranges[r][1]];
        first = first > t->offset ? first : t->offset;
        end = end < t->offset + t->count ? end : t->offset + t->count;
        if (first < end)
            o->pieces[o->n_pieces++] = (lks__piece){i, first, end - first, {0}};
    }
}

static lks_status list_pieces(lks__optim *o, const lks__optim_share *share)
{
    const size_t n = o->table->n_tensors;
    int *owner = calloc(n + 1, sizeof *owner);
    o->pieces = calloc(n * (size_t)(share->n_ranges + 1) + 1, sizeof *o->pieces);
    lks_status st = LKS_OK;
    if (owner == NULL || o->pieces == NULL)
        st = lks__no_memory("to list the parts of %zu tensors", n);
    LKS__THEN(st, add_whole(o, share, owner));
    for (size_t i = 0; i < n && st == LKS_OK; i++)
        if (owner[i] < 0 && !o->table->tensors[i].frozen)
            add_blocks(o, share, i);
    free(owner);
    return st;
}

/* `shared`: the state is an arena of the table, in the host's memory. */
static void place_state(lks__optim *o, bool shared)
{
    for (int state = 0; state < LKS__OPTIM_STATES; state++) {
        size_t at = 0;
        for (size_t i = 0; i < o->n_pieces; i++) {
            lks__piece *p = &o->pieces[i];
            p->state[state] = shared ? p->first : at;
            if (lks__optimizer_state(o->optimizer, &o->table->tensors[p->tensor], state) != NULL)
                at += lks__round_up(p->count,
                                    LKS__PADDED); /* updates may write up to here: layers.h */
        }
        o->state_floats[state] = shared ? o->table->trained_count : at;
    }
}

lks_status lks__optim_list(const lks__optimizer *optimizer, const lks__table *table,
                           const lks__optim_share *share, lks__optim *o)
{
    *o = (lks__optim){.optimizer = optimizer, .table = table};
    lks_status st = list_pieces(o, share);
    if (st != LKS_OK)
        lks__optim_close(o);
    return st;
}

size_t lks__optim_next(const lks__optim *o, lks__param_kind kind, size_t *next,
                       size_t of[LKS__UPDATE_PIECES])
{
    size_t n = 0;
    for (; *next < o->n_pieces && n < LKS__UPDATE_PIECES; ++*next)
        if (o->table->tensors[o->pieces[*next].tensor].kind == kind)
            of[n++] = *next;
    return n;
}

lks__optim_place lks__optim_place_of(const lks__optim *o, const lks__optim_arenas *a, size_t piece)
{
    if (a->places != NULL)
        return a->places[piece];
    const size_t first = o->pieces[piece].first;
    return (lks__optim_place){a->params + first, a->grads + first};
}

lks_status lks__optim_measure(const lks__optimizer *optimizer, const lks__device *device,
                              const lks__table *table, const lks__optim_share *share,
                              size_t floats[LKS__OPTIM_STATES])
{
    lks__optim o;
    LKS__TRY(lks__optim_list(optimizer, table, share, &o));
    place_state(&o, device->ops->host_memory);
    memcpy(floats, o.state_floats, sizeof o.state_floats);
    lks__optim_close(&o);
    return LKS_OK;
}

/* --- opening --------------------------------------------------------------------------------- */

static lks_status open_work(lks__optim *o, void *lent, size_t lent_bytes)
{
    for (size_t i = 0; i < o->n_pieces && o->optimizer->work_bytes != NULL; i++) {
        const lks__table_tensor *t = &o->table->tensors[o->pieces[i].tensor];
        size_t bytes = o->optimizer->whole[t->kind] ? o->optimizer->work_bytes(o->device, t) : 0;
        o->work_bytes = bytes > o->work_bytes ? bytes : o->work_bytes;
    }
    if (o->work_bytes == 0)
        return LKS_OK;
    o->lent = lent != NULL && lent_bytes >= o->work_bytes;
    if (!o->lent)
        return o->device->ops->alloc(o->device, o->work_bytes, &o->work);
    o->work = lent;
    o->work_bytes = lent_bytes;
    return LKS_OK;
}

lks_status lks__optim_open(const lks__optimizer *optimizer, lks__device *device,
                           const lks__table *table, const lks__optim_share *share, void *lent,
                           size_t lent_bytes, lks__optim *o)
{
    LKS__TRY(lks__optim_list(optimizer, table, share, o));
    o->device = device;
    place_state(o, device->ops->host_memory);
    lks_status st = open_work(o, lent, lent_bytes);
    if (st != LKS_OK)
        lks__optim_close(o);
    return st;
}

void lks__optim_close(lks__optim *o)
{
    if (o->work != NULL && !o->lent)
        o->device->ops->release(o->device, o->work, o->work_bytes);
    free(o->pieces);
    memset(o, 0, sizeof *o);
}

void lks__optim_update(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a)
{
    o->optimizer->update(o, rates, a);
}

/* Only tensors that are updated whole have products. */
lks_status lks__optim_rehearse(const lks__optim *o, const lks__rates *rates, float *memory)
{
    const lks__optim_share everything = {.W = 1};
    const lks__optim_arenas arenas = {.params = memory, .state = {memory, memory}, .grads = memory};
    lks__optim all = {.optimizer = o->optimizer,
                      .device = o->device,
                      .table = o->table,
                      .work = memory,
                      .work_bytes = SIZE_MAX / 2,
                      .lent = true};
    const lks_status st = list_pieces(&all, &everything);
    if (st == LKS_OK)
        lks__optim_update(&all, rates, &arenas);
    lks__optim_close(&all);
    return st;
}

double lks__clip_factor(double norm, double max)
{
    if (max == 0.0)
        return 1.0;
    double factor = max / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}
