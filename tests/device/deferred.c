#include "deferred.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "entry.h"
#include "memory.h"

/* Entries are numbered in the order in which they were put on their queue; a mark is the number of
 * the last one. */
struct queue {
    deferred_entry *first, **end;
    uint64_t put, done, told; /* told: the highest mark that the host knows to be passed */
};

typedef struct deferred {
    lks__device device; /* first */
    struct queue queues[LKS__QUEUES];
    deferred_order order;
    uint32_t random;
    int lively;  /* DEFERRED_RANDOM: how much of it runs without a request */
    int refused; /* consecutive polls that were answered "not yet" */
    uint64_t ran;
} deferred;

static _Thread_local deferred *own_device;

enum { MOST_REFUSED = 5 };

static uint32_t draw(deferred *d, uint32_t below)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 17;
    d->random ^= d->random << 5;
    return d->random % below;
}

static deferred *own_thread(const char *what)
{
    if (own_device == NULL)
        deferred_die("%s in a thread without an open device", what);
    return own_device;
}

/* --- entries ---------------------------------------------------------------------------------- */

void *deferred_entry_new(size_t bytes, const char *what, void (*run)(deferred_entry *e))
{
    deferred_entry *e = calloc(1, bytes);
    if (e == NULL)
        deferred_die("no memory for an entry");
    e->what = what;
    e->run = run;
    return e;
}

void deferred_entry_needs(deferred_entry *e, const void *p)
{
    if (p == NULL)
        return;
    int block = deferred_memory_block(e->what, p, 1);
    if (block == 0)
        deferred_die("%s got %p, which is no device memory", e->what, p);
    for (int i = 0; i < e->n_blocks; i++)
        if (e->blocks[i] == block)
            return;
    if (e->n_blocks == DEFERRED_MOST_BLOCKS)
        deferred_die("%s needs more than %d blocks", e->what, DEFERRED_MOST_BLOCKS);
    e->blocks[e->n_blocks++] = block;
}

void *deferred_entry_copy(deferred_entry *e, const void *src, size_t bytes)
{
    void *p = malloc(bytes);
    if (p == NULL || e->n_copies == DEFERRED_MOST_COPIES)
        deferred_die("no room for what %s points to", e->what);
    e->copies[e->n_copies++] = p;
    return memcpy(p, src, bytes);
}

static bool is_done(const deferred *d, lks__mark mark)
{
    return mark.number <= d->queues[mark.queue].done;
}

/* Run the first entry of the queue, if it may begin. */
static bool step(deferred *d, lks__queue queue)
{
    struct queue *q = &d->queues[queue];
    deferred_entry *e = q->first;
    if (e == NULL || !is_done(d, e->after))
        return false;
    if (e->run != NULL) {
        deferred_memory_open(e->what, e->blocks, e->n_blocks);
        e->run(e);
        d->ran++;
    }
    q->first = e->next;
    if (q->first == NULL)
        q->end = &q->first;
    q->done++;
    for (int i = 0; i < e->n_copies; i++)
        free(e->copies[i]);
    free(e);
    return true;
}

/* Run what the order allows without a request. */
static void run_some(deferred *d)
{
    switch (d->order) {
    case DEFERRED_COPY_FIRST:
        while (step(d, LKS__QUEUE_COPY))
            ;
        break;
    case DEFERRED_COMPUTE_FIRST:
        while (step(d, LKS__QUEUE_COMPUTE))
            ;
        break;
    case DEFERRED_RANDOM:
        if (draw(d, 32) == 0)
            d->lively = (int)draw(d, 4);
        for (int i = 0; i < d->lively; i++)
            step(d, (lks__queue)draw(d, LKS__QUEUES));
        break;
    default:
        break;
    }
    deferred_memory_close();
}

void deferred_entry_put(deferred_entry *e, lks__queue queue)
{
    deferred *d = own_thread(e->what);
    struct queue *q = &d->queues[queue];
    *q->end = e;
    q->end = &e->next;
    q->put++;
    run_some(d);
}

/* Run only what `mark` needs. */
static void run_until(deferred *d, lks__mark mark)
{
    while (!is_done(d, mark))
        if (!step(d, mark.queue))
            run_until(d, d->queues[mark.queue].first->after);
}

/* --- copies ----------------------------------------------------------------------------------- */

struct copy {
    deferred_entry e;
    char *dst;
    const char *src;
    size_t bytes;
    bool to_host, from_host;
    bool watched;  /* while it is queued, only this copy may write its memory on the host */
    uint64_t hash; /* of its memory on the host */
};

static uint64_t hash_of(const struct copy *c)
{
    return XXH3_64bits(c->to_host ? c->dst : c->src, c->bytes);
}

static void copy_run(deferred_entry *e)
{
    struct copy *c = (struct copy *)e;
    if (c->watched && hash_of(c) != c->hash)
        deferred_die("%zu bytes at %p changed while %s", c->bytes,
                     c->to_host ? (const void *)c->dst : c->src,
                     c->to_host ? "a copy to them was queued" : "a copy from them was queued");
    memmove(c->dst, c->src, c->bytes);
}

/* Does a queued copy write [p, p + bytes) of the host, or, `reads`, read it? */
static bool is_queued(const deferred *d, const char *p, size_t bytes, bool reads)
{
    for (int q = 0; q < LKS__QUEUES; q++)
        for (const deferred_entry *e = d->queues[q].first; e != NULL; e = e->next) {
            const struct copy *c = (const struct copy *)e;
            if (e->run == copy_run && ((c->dst < p + bytes && p < c->dst + c->bytes) ||
                                       (reads && c->src < p + bytes && p < c->src + c->bytes)))
                return true;
        }
    return false;
}

static void copy(lks__device *device, lks__queue queue, void *dst, const void *src, size_t bytes)
{
    deferred *d = own_thread("copy");
    struct copy *c = deferred_entry_new(sizeof *c, "copy", copy_run);
    c->dst = dst;
    c->src = src;
    c->bytes = bytes;
    c->to_host = deferred_memory_block("the target of a copy", dst, bytes) == 0;
    c->from_host = deferred_memory_block("the source of a copy", src, bytes) == 0;
    if (c->to_host && c->from_host)
        deferred_die("a copy of %zu bytes from host memory to host memory", bytes);
    deferred_entry_needs(&c->e, c->to_host ? NULL : dst);
    deferred_entry_needs(&c->e, c->from_host ? NULL : src);
    if (c->to_host || c->from_host)
        c->watched = !is_queued(d, c->to_host ? c->dst : c->src, bytes, c->to_host);
    if (c->watched && c->to_host)
        memset(c->dst, 0xff, bytes);
    if (c->watched)
        c->hash = hash_of(c);
    deferred_entry_put(&c->e, queue);
}

/* --- the device ------------------------------------------------------------------------------- */

static lks_status alloc(lks__device *device, size_t bytes, void **p)
{
    own_thread("alloc");
    *p = deferred_memory_alloc(bytes);
    return *p != NULL ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "no device memory for %zu bytes", bytes);
}

static void release(lks__device *device, void *p, size_t bytes)
{
    deferred *d = own_thread("release");
    int block = deferred_memory_block("release", p, bytes);
    for (int q = 0; q < LKS__QUEUES; q++)
        for (const deferred_entry *e = d->queues[q].first; e != NULL; e = e->next)
            for (int i = 0; i < e->n_blocks; i++)
                if (e->blocks[i] == block)
                    deferred_die("release of device memory %d, which a queued %s needs", block,
                                 e->what);
    deferred_memory_release(p, bytes);
}

static lks_status alloc_staging(lks__device *device, size_t bytes, void **p)
{
    *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (*p == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no staging memory for %zu bytes", bytes);
    memset(*p, 0, bytes);
    return LKS_OK;
}

static void release_staging(lks__device *device, void *p, size_t bytes)
{
    deferred *d = own_thread("release of staging memory");
    if (bytes > 0 && is_queued(d, p, bytes, true))
        deferred_die("release of staging memory that a queued copy needs");
    free(p);
}

static lks__mark mark(lks__device *device, lks__queue queue)
{
    deferred *d = own_thread("mark");
    deferred_entry_put(deferred_entry_new(sizeof(deferred_entry), "mark", NULL), queue);
    return (lks__mark){queue, d->queues[queue].put};
}

static void follow(lks__device *device, lks__queue queue, lks__mark after)
{
    deferred *d = own_thread("follow");
    if (after.number > d->queues[after.queue].put)
        deferred_die("follow of a mark that was not made");
    deferred_entry *e = deferred_entry_new(sizeof *e, "follow", NULL);
    e->after = after;
    deferred_entry_put(e, queue);
}

static lks_status passed(lks__device *device, lks__mark asked, bool *passed_p)
{
    deferred *d = own_thread("poll");
    struct queue *q = &d->queues[asked.queue];
    if (asked.number > q->put)
        deferred_die("poll for a mark that was not made");
    if (asked.number > q->told) {
        run_some(d);
        *passed_p = false;
        if (d->refused < MOST_REFUSED && draw(d, 2) == 0) {
            d->refused++;
            return LKS_OK;
        }
        run_until(d, asked);
        deferred_memory_close();
        q->told = asked.number;
    }
    d->refused = 0;
    *passed_p = true;
    return LKS_OK;
}

/* Add a line to the file DEFERRED_PEAK of the environment. */
static void report_peak(void)
{
    const char *path = getenv("DEFERRED_PEAK");
    FILE *f = path == NULL ? NULL : fopen(path, "a");
    if (path != NULL &&
        (f == NULL || fprintf(f, "%zu\n", deferred_memory_peak()) < 0 || fclose(f) != 0))
        deferred_die("cannot write to %s", path);
}

static void close_device(lks__device *device)
{
    deferred *d = own_thread("close");
    for (int q = 0; q < LKS__QUEUES; q++)
        run_until(d, (lks__mark){(lks__queue)q, d->queues[q].put});
    deferred_memory_close();
    if (deferred_memory_count() > 0)
        deferred_die("close with %d blocks of device memory that were not released",
                     deferred_memory_count());
    report_peak();
    deferred_memory_stop();
    own_device = NULL;
    free(d);
}

static const struct lks__device_ops ops = {
    .name = "deferred",
    .host_memory = false,
    .alloc = alloc,
    .release = release,
    .alloc_staging = alloc_staging,
    .release_staging = release_staging,
    .copy = copy,
    .mark = mark,
    .follow = follow,
    .passed = passed,
    .close = close_device,
};

lks_status deferred_open(const lks__exec *ex, unsigned seed, lks__device **device_p)
{
    deferred *d = calloc(1, sizeof *d);
    if (d == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the deferred device");
    if (own_device != NULL)
        deferred_die("a second device in one thread");
    d->device = (lks__device){.ops = &ops, .layers = &deferred_layers, .ex = ex};
    for (int q = 0; q < LKS__QUEUES; q++)
        d->queues[q].end = &d->queues[q].first;
    d->order = (deferred_order)(seed % DEFERRED_ORDERS);
    d->random = (seed + 1) * 2654435761u | 1;
    own_device = d;
    deferred_memory_start();
    *device_p = &d->device;
    return LKS_OK;
}

uint64_t deferred_count(void)
{
    return own_device == NULL ? 0 : own_device->ran;
}
