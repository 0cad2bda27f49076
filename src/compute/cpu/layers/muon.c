/* compute/cpu/layers/muon.c - Muon on a rank's threads. */
#include <math.h>

#include "base/number/checked.h"
#include "compute/cpu/layers.h"
#include "compute/cpu/layers/newton_schulz.h"

struct pass {
    size_t count;
    float *params, *momentum;
    const float *grads;
    float *update;
    float clip, lr;
    float m;     /* momentum's factor */
    float scale; /* scale of the update, from the matrix's shape */
};

/* Elements per task, in groups of a constant size, which the compiler turns into vectors. */
enum { CHUNK = 4096, GROUP = 16 };

static size_t chunk_end(const struct pass *p, size_t task)
{
    size_t end = (task + 1) * CHUNK;
    return end < p->count ? end : p->count;
}

static inline void average(const struct pass *p, size_t i, size_t n)
{
    const float *restrict grads = p->grads + i;
    float *restrict momentum = p->momentum + i, *restrict update = p->update + i;
    for (size_t j = 0; j < n; j++) {
        float g = grads[j] * p->clip;
        float m = p->m * momentum[j] + g;
        momentum[j] = m;
        update[j] = g + p->m * m;
    }
}

/* Two roundings, as in the script: first the update is scaled, then lr times it is subtracted. */
static inline void apply(const struct pass *p, size_t i, size_t n)
{
    const float *restrict update = p->update + i;
    float *restrict params = p->params + i;
    for (size_t j = 0; j < n; j++)
        params[j] -= p->lr * (update[j] * p->scale);
}

static void average_chunk(void *ctx, size_t task, int thread)
{
    const struct pass *p = ctx;
    size_t i = task * CHUNK, end = chunk_end(p, task);
    for (; i + GROUP <= end; i += GROUP)
        average(p, i, GROUP);
    average(p, i, end - i);
}

static void apply_chunk(void *ctx, size_t task, int thread)
{
    const struct pass *p = ctx;
    size_t i = task * CHUNK, end = chunk_end(p, task);
    for (; i + GROUP <= end; i += GROUP)
        apply(p, i, GROUP);
    apply(p, i, end - i);
}

/* Bytes for working on one matrix: its update, followed by the work space of Newton-Schulz. */
static size_t update_bytes(size_t rows, size_t cols)
{
    return lks__round_up(rows * cols * sizeof(float), 64);
}

size_t lks__update_muon_bytes(const lks__exec *ex, size_t rows, size_t cols)
{
    return update_bytes(rows, cols) + lks__newton_schulz_bytes(rows, cols);
}

struct update {
    const lks__exec *ex;
    const lks__muon_list *list;
    size_t place_bytes;
};

/* Update the i-th matrix, on the threads of `ex`, in one place of the work memory. */
static void update_matrix(const struct update *u, const lks__exec *ex, size_t i, size_t place)
{
    const lks__muon_list *s = u->list;
    char *work = (char *)s->work + place * u->place_bytes;
    size_t rows = s->piece[i].rows, cols = s->piece[i].cols;
    struct pass p = {
        .count = rows * cols,
        .params = s->piece[i].params,
        .momentum = s->piece[i].momentum,
        .grads = s->piece[i].grads,
        .update = (float *)work,
        .clip = (float)s->clip,
        .lr = (float)s->lr,
        .m = (float)s->momentum,
        .scale = rows > cols ? (float)sqrt((double)rows / (double)cols) : 1.0f,
    };
    size_t n_chunks = (p.count + CHUNK - 1) / CHUNK;
    lks__pool_run(ex->pool, n_chunks, average_chunk, &p);
    lks__newton_schulz(ex, p.update, rows, cols, s->ns_steps, &s->beat,
                       work + update_bytes(rows, cols));
    lks__pool_run(ex->pool, n_chunks, apply_chunk, &p);
}

static void update_alone(void *ctx, size_t task, int thread)
{
    const struct update *u = ctx;
    lks__exec alone = *u->ex;
    alone.pool = lks__pool_alone(alone.pool, thread);
    update_matrix(u, &alone, task, (size_t)thread);
}

/* Whole matrices are dealt to single threads, as many as the threads can share evenly: then a
 * matrix stays in one core's cache, and no thread waits for another after each product. All threads
 * work together on each of the rest, the least expensive ones. */
void lks__update_muon(const lks__exec *ex, const lks__muon_list *list)
{
    struct update u = {ex, list, 64};
    for (size_t i = 0; i < list->n_pieces; i++) {
        size_t bytes = lks__update_muon_bytes(ex, list->piece[i].rows, list->piece[i].cols);
        u.place_bytes = bytes > u.place_bytes ? bytes : u.place_bytes;
    }
    size_t n_threads = ex->pool == NULL ? 1 : (size_t)lks__pool_threads(ex->pool), dealt = 0;
    if (n_threads > 1 && n_threads <= list->work_bytes / u.place_bytes)
        dealt = list->n_pieces - list->n_pieces % n_threads;
    lks__pool_run(ex->pool, dealt, update_alone, &u);
    for (size_t i = dealt; i < list->n_pieces; i++)
        update_matrix(&u, ex, i, 0);
}
