#include "plan/gradients.h"

#include "lockstep/reduce.h"

lks__reducer_config lks__chosen_ddp(const lks__settings *s)
{
    return (lks__reducer_config){
        .V = (int)s->virtual_ranks,
        .A = (int)(s->gradient_accumulation_steps / s->virtual_ranks),
        .zero = s->zero != 0,
        .wire = s->wire == LKS__wire_bfloat16 ? LKS_WIRE_BFLOAT16 : LKS_WIRE_FLOAT32,
        .bucket_bytes = (size_t)(s->bucket_mb * 1048576.0),
        .staging = true,
        .hashes = true,
    };
}

bool lks__chosen_may_join(const lks__settings *s)
{
    return s->exchange != LKS__exchange_staged && lks__settings_not_nccl(s) == NULL;
}

bool lks__chosen_must_join(const lks__settings *s)
{
    return s->exchange == LKS__exchange_nccl;
}

size_t lks__step_message_bytes(int V, int A, int W)
{
    const size_t leaves = (size_t)((V + W - 1) / W);
    return LKS__VOTE_BYTES + leaves * ((size_t)A * sizeof(float) + sizeof(uint64_t));
}
