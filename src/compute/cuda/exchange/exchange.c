/* compute/cuda/exchange/exchange.c - lks__exchange_ops over NCCL. Its module is loaded when a rank
 * asks whether it can take part. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "compute/cuda/device.h"

/* --- failures -------------------------------------------------------------------------------- */

static void exchange_failed(lks__cuda *c, const char *why)
{
    lks__cuda_record(
        c,
        "%s, on GPU %d (%s); NCCL_DEBUG=INFO shows more, and --exchange=staged does without "
        "NCCL",
        why, c->gpu, c->about.name);
}

static bool group_failed(const lks__cuda *c, bool others)
{
    const lks__waiter *w = &c->device.waiter;
    return w->failure != NULL && w->failure(w->ctx, others) != LKS_OK;
}

static void cut(lks__device *device)
{
    lks__cuda_cut((lks__cuda *)device);
}

void lks__cuda_cut(lks__cuda *c)
{
    if (c->peers != NULL)
        c->nccl->abort(c->peers);
    c->peers = NULL;
}

/* If another rank has died, the group names it within a second, and then NCCL's message would only
 * hide the cause. */
static void fail(lks__cuda *c, const char *why)
{
    enum { POLLS = 100, MS = 10 };
    for (int i = 0; i < POLLS && c->n_ranks > 1; i++) {
        if (group_failed(c, false)) {
            lks__cuda_cut(c);
            return;
        }
        usleep(MS * 1000);
    }
    exchange_failed(c, why);
    lks__cuda_cut(c);
}

void lks__cuda_check_peers(lks__cuda *c)
{
    char why[400];
    if (c->peers != NULL && c->nccl->state(c->peers, why, sizeof why) < 0)
        fail(c, why);
}

/* --- lists of moves: which of them the GPU is in -------------------------------------------- */

static void drop_oldest(lks__cuda *c)
{
    lks__cuda_moves *m = c->moves;
    c->moves = m->next;
    m->next = c->spare_moves;
    c->spare_moves = m;
}

static bool has_passed(lks__cuda *c, cudaEvent_t event)
{
    const cudaError_t error = cudaEventQuery(event);
    return error != cudaErrorNotReady && lks__cuda_check(c, error, "cudaEventQuery");
}

static bool waits(lks__device *device)
{
    lks__cuda *c = (lks__cuda *)device;
    while (c->moves != NULL && c->moves->whole && has_passed(c, c->moves->ended))
        drop_oldest(c);
    return c->peers != NULL && c->moves != NULL && has_passed(c, c->moves->begun);
}

static lks__cuda_moves *spare_list(lks__cuda *c)
{
    lks__cuda_moves *m = calloc(1, sizeof *m);
    if (m == NULL) {
        exchange_failed(c, "no memory for a list of moves");
        return NULL;
    }
    m->next = c->spare_moves;
    c->spare_moves = m;
    LKS__CUDA_CALL(c, cudaEventCreateWithFlags, &m->begun, cudaEventDisableTiming);
    LKS__CUDA_CALL(c, cudaEventCreateWithFlags, &m->ended, cudaEventDisableTiming);
    return m;
}

/* Begin a list: it consists of all later work on the queue until its end. NULL: the device has
 * failed. */
static lks__cuda_moves *begin_list(lks__cuda *c, const lks__cuda_queue *q)
{
    while (c->moves != NULL && c->moves->after < q->passed)
        drop_oldest(c);
    lks__cuda_moves *m = c->spare_moves != NULL ? c->spare_moves : spare_list(c);
    if (lks__cuda_failed(c) || !LKS__CUDA_CALL(c, cudaEventRecord, m->begun, q->stream))
        return NULL;
    c->spare_moves = m->next;
    m->next = NULL;
    m->after = q->made;
    m->whole = false;
    lks__cuda_moves **end = &c->moves;
    while (*end != NULL)
        end = &(*end)->next;
    *end = m;
    return m;
}

void lks__cuda_moves_close(lks__cuda *c)
{
    lks__cuda_moves *m;
    while (c->moves != NULL)
        drop_oldest(c);
    while ((m = c->spare_moves) != NULL) {
        c->spare_moves = m->next;
        if (m->begun != NULL)
            LKS__CUDA_CALL(c, cudaEventDestroy, m->begun);
        if (m->ended != NULL)
            LKS__CUDA_CALL(c, cudaEventDestroy, m->ended);
        free(m);
    }
}

/* Wait until NCCL has finished the begun calls, which may need a call of other ranks. `now`: that
 * call must come, so an idle rank is the cause, unless our own GPU isn't ready either. False: it
 * will never finish. */
static bool settle(lks__cuda *c, bool now)
{
    enum { SPINS = 50 }; /* without other ranks, NCCL needs no longer */
    char why[400];
    int state = 0;
    bool others = false;
    for (int i = 0; c->peers != NULL && state == 0; i++, usleep(20)) {
        state = c->nccl->state(c->peers, why, sizeof why);
        if (now && i >= SPINS)
            others = waits(&c->device) || c->moves == NULL;
        if (state == 0 && group_failed(c, others))
            lks__cuda_cut(c);
    }
    if (others)
        (void)group_failed(c, false);
    if (c->peers != NULL && state < 0)
        fail(c, why);
    return c->peers != NULL;
}

/* --- the functions --------------------------------------------------------------------------- */

static bool can(lks__device *device, char *why, size_t why_bytes)
{
    lks__cuda *c = (lks__cuda *)device;
    if (c->nccl == NULL)
        c->nccl = c->load_nccl(why, why_bytes);
    return c->nccl != NULL;
}

static void about(lks__device *device, char *text, size_t bytes)
{
    ((lks__cuda *)device)->nccl->about(text, bytes);
}

static lks_status make_id(lks__device *device, lks__exchange_id *id)
{
    lks__cuda *c = (lks__cuda *)device;
    char why[400];
    return c->nccl->id(id, why, sizeof why) ? LKS_OK : c->fail(LKS_ERR_DEVICE, "%s", why);
}

static lks_status join(lks__device *device, int rank, int n_ranks, const lks__exchange_id *id)
{
    lks__cuda *c = (lks__cuda *)device;
    char why[400];
    c->n_ranks = n_ranks;
    if (id == NULL) /* nothing is moved */
        return LKS_OK;
    c->peers = c->nccl->join(rank, n_ranks, id, why, sizeof why);
    if (c->peers == NULL)
        fail(c, why);
    if (settle(c, true))
        return LKS_OK;
    if (lks__cuda_failed(c))
        return c->fail(LKS_ERR_DEVICE, "%s", c->failure);
    return c->fail(LKS_ERR_PEER, "another rank failed while GPUs were connected");
}

static void move(lks__device *device, lks__queue queue, const lks__move *list, size_t n)
{
    lks__cuda *c = (lks__cuda *)device;
    const lks__cuda_queue *q = &c->queues[queue];
    char why[400];
    if (lks__cuda_failed(c) || c->peers == NULL || n == 0)
        return;
    for (size_t i = 0; i < n; i++)
        if (list[i].kind != LKS__MOVE_SEND)
            lks__cuda_written(device->ex, list[i].mem, list[i].bytes);
    lks__cuda_moves *moves = begin_list(c, q);
    if (moves == NULL)
        return;
    if (!c->nccl->move(c->peers, q->stream, list, n, why, sizeof why))
        fail(c, why);
    else if (settle(c, true)) /* later work on the queue must come after it */
        moves->whole = LKS__CUDA_CALL(c, cudaEventRecord, moves->ended, q->stream);
}

static void sum(lks__device *device, lks__queue queue, const lks__shard_sum *shard)
{
    lks__cuda *c = (lks__cuda *)device;
    if (!lks__cuda_failed(c))
        lks__cuda_sum_shard(c->queues[queue].stream, shard);
}

/* In order, so that no rank misses what others still read from it. */
void lks__cuda_leave(lks__cuda *c)
{
    char why[400];
    if (c->peers == NULL)
        return;
    if (!lks__cuda_failed(c) && !group_failed(c, false) &&
        c->nccl->finalize(c->peers, why, sizeof why) && settle(c, false)) {
        c->nccl->destroy(c->peers);
        c->peers = NULL;
    }
    lks__cuda_cut(c);
}

const struct lks__exchange_ops lks__cuda_exchange = {
    .can = can,
    .about = about,
    .id = make_id,
    .join = join,
    .move = move,
    .waits = waits,
    .sum = sum,
    .cut = cut,
};
