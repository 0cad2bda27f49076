/* Runs the engine's operations: they are started in turn and tested in the same order, while
 * heartbeats continue. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/hier/hier.h"

enum { YIELDS = 200, NAPS = 2000 };

static const double REST_S = 0.02; /* sleep in an engine, between checks of heartbeats */

lks_status lks__hier_pause(struct lks__hier *h, bool for_hosts)
{
    h->idle++;
    if (h->idle % 64 == 0 || h->idle > YIELDS)
        LKS__TRY(lks__hier_look(h, for_hosts));
    if (h->idle <= YIELDS)
        sched_yield();
    else
        usleep(h->idle <= NAPS ? 20 : 200);
    return LKS_OK;
}

static void copy_sizes(size_t *to_at, size_t *to_bytes, const size_t *at, const size_t *bytes,
                       int n)
{
    size_t behind = 0;
    for (int i = 0; i < n; i++) {
        to_at[i] = at != NULL ? at[i] : behind;
        to_bytes[i] = bytes[i];
        behind += bytes[i];
    }
}

lks_status lks__hier_start(struct lks__hier *h, const lks__engine_op *op, uint64_t *ticket_p)
{
    char why[256] = "";
    int slot = (int)(h->n_started % LKS__ENGINE_SLOTS), n = h->n_hosts;
    if (h->n_started - h->n_ended == LKS__ENGINE_SLOTS)
        LKS__TRY(lks__hier_finish(h, h->n_ended + 1));
    size_t *send_at = h->slots + (size_t)(slot * 4 * n), *send_bytes = send_at + n;
    size_t *recv_at = send_bytes + n, *recv_bytes = recv_at + n;
    if (op->kind == LKS__ENGINE_ALL_TO_ALL)
        copy_sizes(send_at, send_bytes, op->send_at, op->send_bytes, n);
    copy_sizes(recv_at, recv_bytes, op->recv_at, op->recv_bytes,
               op->kind == LKS__ENGINE_BROADCAST ? 1 : n);
    lks__engine_op own = {.kind = op->kind,
                          .root = op->root,
                          .send = op->send,
                          .send_at = send_at,
                          .send_bytes = send_bytes,
                          .recv = op->recv,
                          .recv_at = recv_at,
                          .recv_bytes = recv_bytes};
    if (h->ops->start(h->engine, slot, &own, why, sizeof why) != 0)
        return lks__hier_engine_failed(h, why);
    *ticket_p = ++h->n_started;
    return LKS_OK;
}

static lks_status finish_oldest(struct lks__hier *h)
{
    char why[256] = "";
    int slot = (int)(h->n_ended % LKS__ENGINE_SLOTS);
    for (h->idle = 0;;) {
        int st = h->ops->test(h->engine, slot, why, sizeof why);
        if (st > 0) {
            h->n_ended++;
            return LKS_OK;
        }
        if (st < 0)
            return lks__hier_engine_failed(h, why);
        if (h->ops->rest == NULL) {
            LKS__TRY(lks__hier_pause(h, true));
        } else {
            LKS__TRY(lks__hier_look(h, true));
            h->ops->rest(h->engine, slot, REST_S);
        }
    }
}

lks_status lks__hier_finish(struct lks__hier *h, uint64_t ticket)
{
    while (h->n_ended < ticket)
        LKS__TRY(finish_oldest(h));
    return LKS_OK;
}

/* The consecutive pieces of `op` as broadcasts of at most `most` bytes. */
static lks_status move_in_parts(struct lks__hier *h, const lks__engine_op *op, int n, size_t most)
{
    uint64_t ticket = 0;
    char *piece = op->recv;
    for (int i = 0; i < n; i++) {
        for (size_t at = 0; at < op->recv_bytes[i]; at += most) {
            const size_t left = op->recv_bytes[i] - at, bytes = left < most ? left : most;
            const lks__engine_op part = {.kind = LKS__ENGINE_BROADCAST,
                                         .root = n == 1 ? op->root : i,
                                         .recv = piece + at,
                                         .recv_bytes = &bytes};
            LKS__TRY(lks__hier_start(h, &part, &ticket));
        }
        piece += op->recv_bytes[i];
    }
    return lks__hier_finish(h, ticket);
}

lks_status lks__hier_move(struct lks__hier *h, const lks__engine_op *op)
{
    const int n = op->kind == LKS__ENGINE_BROADCAST ? 1 : h->n_hosts;
    const size_t most = h->ops->most_bytes;
    uint64_t ticket;
    size_t bytes = 0;
    for (int i = 0; i < n && op->kind != LKS__ENGINE_ALL_TO_ALL; i++)
        bytes += op->recv_bytes[i];
    if (most > 0 && bytes > most)
        return move_in_parts(h, op, n, most);
    LKS__TRY(lks__hier_start(h, op, &ticket));
    return lks__hier_finish(h, ticket);
}

lks_status lks__hier_meet(struct lks__hier *h, const struct lks__shm_descriptor *desc)
{
    struct lks__shm_descriptor *mine = &h->descs[h->host];
    *mine = *desc;
    mine->seq = (uint32_t)h->number;
    h->begun = h->number + 1;
    lks__engine_op op = {
        .kind = LKS__ENGINE_ALL_GATHER, .recv = h->descs, .recv_bytes = h->desc_bytes};
    LKS__TRY(lks__hier_move(h, &op));
    for (int i = 0; i < h->n_hosts; i++) {
        if (lks__shm_same_call(&h->descs[i], mine))
            continue;
        char calls[2][256], text[768];
        int low = i < h->host ? i : h->host, high = i < h->host ? h->host : i;
        lks__shm_describe(&h->descs[low], &h->descs[high], calls[0], sizeof calls[0]);
        lks__shm_describe(&h->descs[high], &h->descs[low], calls[1], sizeof calls[1]);
        snprintf(text, sizeof text,
                 "hosts disagree on operation %llu between them: rank %d called %s, rank %d called "
                 "%s; all ranks must start the same operations with the same sizes in the same "
                 "order",
                 (unsigned long long)h->number, h->first[low], calls[0], h->first[high], calls[1]);
        return lks__hier_fail(h, LKS_ERR_ARG, -1, text);
    }
    return LKS_OK;
}
