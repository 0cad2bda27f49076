#include "optim/muon.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "optim/newton_schulz.h"

struct lks__muon {
    const lks__exec *ex;
    const lks__table *table;
    size_t *mine; /* [n_mine] indices of this rank's tensors, the most expensive first */
    size_t n_mine;
    char *work; /* places of work_bytes: an update, [rows, cols] floats, and the work space of
                   Newton-Schulz */
    size_t update_bytes, work_bytes, n_places;
    bool borrowed; /* `work` is borrowed */
};

static double cost(const lks__tensor *t)
{
    return lks__newton_schulz_flops(t->shape[0], t->shape[1], 1);
}

/* --- assignment to ranks --------------------------------------------------------------------- */

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

/* The matrices of the table, the most expensive first: [*n_p]; the caller frees the list. */
static lks_status list_matrices(const lks__table *table, struct entry **list_p, size_t *n_p)
{
    struct entry *list = calloc(table->n_tensors + 1, sizeof *list);
    if (list == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to list %zu tensors", table->n_tensors);
    size_t n = 0;
    for (size_t i = 0; i < table->n_tensors; i++)
        if (table->tensors[i].kind == LKS__PARAM_MATRIX)
            list[n++] = (struct entry){cost(&table->tensors[i]), i};
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

lks_status lks__muon_assign(const lks__table *table, int W, int *owner)
{
    struct entry *list;
    size_t n;
    double *load = calloc((size_t)W, sizeof *load);
    if (load == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to divide the matrices over %d ranks", W);
    lks_status st = list_matrices(table, &list, &n);
    if (st == LKS_OK) {
        for (size_t i = 0; i < table->n_tensors; i++)
            owner[i] = -1;
        deal(list, n, W, load, owner);
        free(list);
    }
    free(load);
    return st;
}

/* --- set-up ---------------------------------------------------------------------------------- */

static lks_status take_mine(lks__muon *m, int W, int rank, int *owner)
{
    struct entry *list;
    size_t n;
    LKS__TRY(lks__muon_assign(m->table, W, owner));
    LKS__TRY(list_matrices(m->table, &list, &n));
    for (size_t i = 0; i < n; i++)
        if (owner[list[i].index] == rank)
            m->mine[m->n_mine++] = list[i].index;
    free(list);
    return LKS_OK;
}

static lks_status open_work(lks__muon *m)
{
    size_t ns_bytes = 64;
    m->update_bytes = 64;
    for (size_t i = 0; i < m->n_mine; i++) {
        const lks__tensor *t = &m->table->tensors[m->mine[i]];
        size_t update = lks__round_up(t->count * sizeof(float), 64);
        size_t ns = lks__newton_schulz_bytes(t->shape[0], t->shape[1]);
        m->update_bytes = update > m->update_bytes ? update : m->update_bytes;
        ns_bytes = ns > ns_bytes ? ns : ns_bytes;
    }
    m->work_bytes = lks__round_up(m->update_bytes + ns_bytes, 64);
    m->n_places = 1;
    m->work = aligned_alloc(64, m->work_bytes);
    if (m->work == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for Muon's work space of %zu bytes",
                         m->work_bytes);
    return LKS_OK;
}

lks_status lks__muon_open(const lks__exec *ex, const lks__table *table, int W, int rank,
                          lks__muon **muon_p)
{
    lks__muon *m = calloc(1, sizeof *m);
    int *owner = calloc(table->n_tensors + 1, sizeof *owner);
    lks_status st = LKS_OK;
    if (m != NULL) {
        m->ex = ex;
        m->table = table;
        m->mine = calloc(table->n_tensors + 1, sizeof *m->mine);
    }
    if (m == NULL || owner == NULL || m->mine == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory to list %zu tensors", table->n_tensors);
    if (st == LKS_OK)
        st = take_mine(m, W, rank, owner);
    if (st == LKS_OK)
        st = open_work(m);
    free(owner);
    if (st != LKS_OK) {
        lks__muon_close(m);
        return st;
    }
    *muon_p = m;
    return LKS_OK;
}

void lks__muon_borrow(lks__muon *m, void *memory, size_t bytes)
{
    if (bytes < m->work_bytes || m->borrowed)
        return;
    free(m->work);
    m->work = memory;
    m->n_places = bytes / m->work_bytes;
    m->borrowed = true;
}

void lks__muon_close(lks__muon *m)
{
    if (m == NULL)
        return;
    if (!m->borrowed)
        free(m->work);
    free(m->mine);
    free(m);
}

/* --- the update ------------------------------------------------------------------------------ */

struct pass {
    size_t count; /* includes the padding after the matrix, which is zero in every arena */
    float *params, *momentum;
    const float *grads;
    float *update;
    float clip, lr;
    float m;     /* factor of the momentum */
    float scale; /* factor of the update, from the shape of the matrix */
};

/* Elements of a task, in groups of constant size, which the compiler turns into vector code. */
enum { CHUNK = 4096, GROUP = 16 };

static size_t chunk_end(const struct pass *p, size_t task)
{
    size_t end = (task + 1) * CHUNK;
    return end < p->count ? end : p->count;
}

static void average_chunk(void *ctx, size_t task, int thread)
{
    const struct pass *p = ctx;
    for (size_t i = task * CHUNK, end = chunk_end(p, task); i < end; i += GROUP) {
        const float *restrict grads = p->grads + i;
        float *restrict momentum = p->momentum + i, *restrict update = p->update + i;
        for (size_t j = 0; j < GROUP; j++) {
            float g = grads[j] * p->clip;
            float m = p->m * momentum[j] + g;
            momentum[j] = m;
            update[j] = g + p->m * m;
        }
    }
}

/* Two roundings, as in the script: the update is scaled, then lr times it is subtracted. */
static void apply_chunk(void *ctx, size_t task, int thread)
{
    const struct pass *p = ctx;
    for (size_t i = task * CHUNK, end = chunk_end(p, task); i < end; i += GROUP) {
        const float *restrict update = p->update + i;
        float *restrict params = p->params + i;
        for (size_t j = 0; j < GROUP; j++)
            params[j] -= p->lr * (update[j] * p->scale);
    }
}

struct update {
    const lks__muon *m;
    const lks__muon_step *step;
    float *params, *momentum;
    const float *grads;
};

/* Update the i-th matrix with the threads of `ex`, in one place of the work space. */
static void update_matrix(const struct update *u, const lks__exec *ex, size_t i, size_t place)
{
    const lks__muon *m = u->m;
    const lks__muon_step *s = u->step;
    const lks__tensor *t = &m->table->tensors[m->mine[i]];
    char *work = m->work + place * m->work_bytes;
    size_t rows = t->shape[0], cols = t->shape[1];
    struct pass p = {
        .count = lks__round_up(t->count, GROUP),
        .params = u->params + t->offset,
        .momentum = u->momentum + t->offset,
        .grads = u->grads + t->offset,
        .update = (float *)work,
        .clip = (float)s->clip,
        .lr = (float)s->lr,
        .m = (float)s->momentum,
        .scale = rows > cols ? (float)sqrt((double)rows / (double)cols) : 1.0f,
    };
    size_t n_chunks = (p.count + CHUNK - 1) / CHUNK;
    lks__pool_run(ex->pool, n_chunks, average_chunk, &p);
    lks__newton_schulz(ex, p.update, rows, cols, s->ns_steps, work + m->update_bytes);
    lks__pool_run(ex->pool, n_chunks, apply_chunk, &p);
}

static void update_alone(void *ctx, size_t task, int thread)
{
    const struct update *u = ctx;
    lks__exec alone = *u->m->ex;
    alone.pool = lks__pool_alone(alone.pool, thread);
    update_matrix(u, &alone, task, (size_t)thread);
}

/* As many matrices as the threads can share evenly go to one thread each: then a matrix stays in
 * one core's cache, and no thread waits for another after each product. All threads work together
 * on the rest, which cost least. */
void lks__muon_update(lks__muon *m, const lks__muon_step *s, float *params, float *momentum,
                      const float *grads)
{
    struct update u = {m, s, params, momentum, grads};
    lks__pool *pool = m->ex->pool;
    size_t n_threads = pool == NULL ? 1 : (size_t)lks__pool_threads(pool), dealt = 0;
    if (n_threads > 1 && n_threads <= m->n_places)
        dealt = m->n_mine - m->n_mine % n_threads;
    lks__pool_run(pool, dealt, update_alone, &u);
    for (size_t i = dealt; i < m->n_mine; i++)
        update_matrix(&u, m->ex, i, 0);
}
