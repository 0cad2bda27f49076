#include "base/number/checked.h"
#include "compute/layers.h"

_Static_assert((uint64_t)LKS__ATTENTION_MAX_T *LKS__ATTENTION_MAX_T == LKS__ATTENTION_MAX_SCORES,
               "no T that check() accepts is larger");

lks__attention_in lks__attention_packed(const lks__attention_shape *shape, const lks__act *qkv,
                                        size_t act_bytes)
{
    const size_t c = shape->NH * shape->hs;
    return (lks__attention_in){qkv, lks__act_at(qkv, c, act_bytes),
                               lks__act_at(qkv, 2 * c, act_bytes), 3 * c, 3 * c};
}

lks__attention_grads lks__attention_packed_grads(const lks__attention_shape *shape, lks__act *dqkv,
                                                 size_t act_bytes)
{
    const size_t c = shape->NH * shape->hs;
    return (lks__attention_grads){dqkv, lks__act_at(dqkv, c, act_bytes),
                                  lks__act_at(dqkv, 2 * c, act_bytes), 3 * c, 3 * c};
}

lks_status lks__attention_check(const lks__attention_shape *shape)
{
    uint64_t scores, bytes;
    if (shape->B == 0 || shape->T == 0 || shape->NH == 0 || shape->hs == 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "attention needs a batch, a block, heads and a head size of at least 1, "
                         "not %zu, %zu, %zu and %zu",
                         shape->B, shape->T, shape->NH, shape->hs);
    if (shape->NKV != 0 && shape->NH % shape->NKV != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "attention with %zu heads can't share %zu key/value heads equally: make "
                         "their number a divisor of the heads'",
                         shape->NH, shape->NKV);
    if (!lks__mul(shape->T, shape->T, &scores) || !lks__mul(scores, shape->B, &scores) ||
        !lks__mul(scores, shape->NH, &scores) || scores > LKS__ATTENTION_MAX_SCORES)
        return lks__fail(LKS_ERR_CONFIG,
                         "attention of %zu sequences and %zu heads over %zu tokens squared has "
                         "more than 2^34 scores, which dropout can't number; make the batch or "
                         "the block smaller",
                         shape->B, shape->NH, shape->T);
    if (!lks__mul(shape->B * shape->T, 3 * sizeof(float), &bytes) ||
        !lks__mul(bytes, shape->NH, &bytes) || !lks__mul(bytes, shape->hs, &bytes) ||
        bytes > PTRDIFF_MAX)
        return lks__fail(LKS_ERR_CONFIG,
                         "attention of %zu sequences of %zu tokens with %zu heads of size %zu does "
                         "not fit the address space; make it smaller",
                         shape->B, shape->T, shape->NH, shape->hs);
    return LKS_OK;
}
