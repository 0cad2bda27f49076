#include "model/batch.h"

size_t lks__batch_bytes(const lks__device *device, size_t most)
{
    return (size_t)lks__device_batches(device) * (2 * most + 1) * sizeof(int32_t);
}

lks_status lks__batch_open(lks__device *device, size_t most, lks__batch *b)
{
    *b = (lks__batch){.device = device, .n_slots = lks__device_batches(device)};
    for (int i = 0; i < b->n_slots; i++) {
        LKS__TRY(lks__mirror_open(device, (most + 1) * sizeof(int32_t), &b->slots[i].tokens));
        LKS__TRY(lks__mirror_open(device, most * sizeof(int32_t), &b->slots[i].targets));
    }
    return LKS_OK;
}

void lks__batch_close(lks__batch *b)
{
    for (int i = 0; i < b->n_slots; i++) {
        lks__mirror_close(&b->slots[i].tokens);
        lks__mirror_close(&b->slots[i].targets);
    }
    *b = (lks__batch){0};
}

lks_status lks__batch_next(lks__batch *b, int32_t **tokens_p, int32_t **targets_p)
{
    lks__device *device = b->device;
    /* All work that reads the current micro-batch has been put on the queue. */
    b->slots[b->at].used = device->ops->mark(device, LKS__QUEUE_COMPUTE);
    b->at = (b->at + 1) % b->n_slots;
    struct lks__batch_slot *slot = &b->slots[b->at];
    LKS__TRY(lks__device_wait(device, b->n_slots == 1 ? slot->used : slot->sent));
    *tokens_p = slot->tokens.host;
    *targets_p = slot->targets.host;
    return LKS_OK;
}

lks__micro_batch lks__batch_send(lks__batch *b, int B, int T)
{
    lks__device *device = b->device;
    struct lks__batch_slot *slot = &b->slots[b->at];
    const size_t bytes = (size_t)B * (size_t)T * sizeof(int32_t);
    device->ops->follow(device, LKS__QUEUE_COPY, slot->used);
    lks__mirror_to_device(&slot->tokens, LKS__QUEUE_COPY, 0, bytes);
    lks__mirror_to_device(&slot->targets, LKS__QUEUE_COPY, 0, bytes);
    slot->sent = device->ops->mark(device, LKS__QUEUE_COPY);
    device->ops->follow(device, LKS__QUEUE_COMPUTE, slot->sent);
    return (lks__micro_batch){slot->tokens.dev, slot->targets.dev, B, T};
}
