#include "optim/muon.h"

#include <stdbool.h>
#include <stdlib.h>

struct lks__muon {
    lks__device *device;
    const lks__table *table;
    size_t *mine; /* [n_mine] indices of tensors, the costly ones first */
    size_t n_mine;
    void *work; /* of the device */
    size_t work_bytes;
    bool borrowed; /* work */
};

double lks__muon_flops(size_t rows, size_t cols, int steps)
{
    double n = (double)(rows < cols ? rows : cols), size = (double)rows * (double)cols;
    return steps * (3.0 * n * size + n * n * n);
}

static double cost(const lks__tensor *t)
{
    return lks__muon_flops(t->shape[0], t->shape[1], 1);
}

/* --- whose is what --------------------------------------------------------------------------- */

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

/* The matrices of the table, dearest first: [*n_p], to be freed. */
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
    const lks__device *device = m->device;
    for (size_t i = 0; i < m->n_mine; i++) {
        const size_t *shape = m->table->tensors[m->mine[i]].shape;
        size_t bytes = device->layers->update_muon_bytes(device->ex, shape[0], shape[1]);
        m->work_bytes = bytes > m->work_bytes ? bytes : m->work_bytes;
    }
    return m->work_bytes == 0 ? LKS_OK : device->ops->alloc(m->device, m->work_bytes, &m->work);
}

lks_status lks__muon_open(lks__device *device, const lks__table *table, int W, int rank,
                          lks__muon **muon_p)
{
    lks__muon *m = calloc(1, sizeof *m);
    int *owner = calloc(table->n_tensors + 1, sizeof *owner);
    lks_status st = LKS_OK;
    if (m != NULL) {
        m->device = device;
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

static void give_back(lks__muon *m)
{
    if (m->work != NULL && !m->borrowed)
        m->device->ops->release(m->device, m->work, m->work_bytes);
}

void lks__muon_borrow(lks__muon *m, void *memory, size_t bytes)
{
    if (bytes < m->work_bytes || m->borrowed)
        return;
    give_back(m);
    m->work = memory;
    m->work_bytes = bytes;
    m->borrowed = true;
}

void lks__muon_close(lks__muon *m)
{
    if (m == NULL)
        return;
    give_back(m);
    free(m->mine);
    free(m);
}

void lks__muon_update(lks__muon *m, const lks__muon_step *s, float *params, float *momentum,
                      const float *grads)
{
    lks__muon_list list = {.lr = s->lr,
                           .momentum = s->momentum,
                           .clip = s->clip,
                           .ns_steps = s->ns_steps,
                           .work = m->work,
                           .work_bytes = m->work_bytes};
    for (size_t i = 0; i < m->n_mine; i++) {
        const lks__tensor *t = &m->table->tensors[m->mine[i]];
        size_t p = list.n_pieces++;
        list.piece[p].rows = t->shape[0];
        list.piece[p].cols = t->shape[1];
        list.piece[p].params = params + t->offset;
        list.piece[p].momentum = momentum + t->offset;
        list.piece[p].grads = grads + t->offset;
        if (list.n_pieces == LKS__UPDATE_PIECES || i == m->n_mine - 1) {
            m->device->layers->update_muon(m->device->ex, &list);
            list.n_pieces = 0;
        }
    }
}
