#include "comm/shm/segment/descriptors.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "comm/backend.h"
#include "comm/tree/combine.h"

static const char *const kind_names[LKS__OP_END] = {
    [LKS__OP_JOIN] = "opening of the group",
    [LKS__OP_ALLOC] = "lks_comm_alloc",
    [LKS__OP_BARRIER] = "barrier",
    [LKS__OP_BROADCAST] = "broadcast",
    [LKS__OP_ALL_GATHER] = "all_gather",
    [LKS__OP_ALL_REDUCE] = "all_reduce",
    [LKS__OP_REDUCE] = "reduction",
    [LKS__OP_REPLICATE] = "replicate",
    [LKS__OP_GATHER_SHARES] = "gather_shares",
    [LKS__OP_REDUCE_SCATTER] = "reduce_scatter",
    [LKS__OP_ALL_GATHER_V] = "all_gather_v",
};

static const char *kind_name(uint32_t kind)
{
    return kind < LKS__OP_END && kind_names[kind] != NULL ? kind_names[kind] : "something unknown";
}

static const char *const callers[LKS__CALLERS] = {
    [LKS__CALLER_DDP_STEP] = "lks_ddp_step",
    [LKS__CALLER_DDP_OPEN] = "lks_ddp_open",
    [LKS__CALLER_DDP_BROADCAST] = "lks_ddp_broadcast",
    [LKS__CALLER_DDP_VERIFY] = "lks_ddp_verify",
    [LKS__CALLER_CHECKPOINT_SAVE] = "lks_checkpoint_save",
    [LKS__CALLER_CHECKPOINT_SAVE_MORE] = "lks_checkpoint_save_more",
    [LKS__CALLER_CHECKPOINT_LOAD] = "lks_checkpoint_load",
    [LKS__CALLER_CHECKPOINT_LOAD_MORE] = "lks_checkpoint_load_more",
    [LKS__CALLER_CHECKPOINT_LIST] = "lks_checkpoint_list",
    [LKS__CALLER_CHECKPOINT_JSON] = "lks_checkpoint_json",
    [LKS__CALLER_SPLIT] = "lks_comm_split",
    [LKS__CALLER_OPTIMIZER_OPEN] = "lks_optimizer_open",
    [LKS__CALLER_OPTIMIZER_STEP] = "lks_optimizer_step",
    [LKS__CALLER_OPTIMIZER_STATE] = "lks_optimizer_state",
};

/* The library call that the operation belongs to; NULL: the program started it. */
static const char *caller_of(const struct lks__shm_descriptor *m)
{
    return m->caller < LKS__CALLERS ? callers[m->caller] : NULL;
}

/* The kind of object that lks__call.object numbers. */
static const char *object_of(const struct lks__shm_descriptor *m)
{
    return m->caller == LKS__CALLER_OPTIMIZER_STEP || m->caller == LKS__CALLER_OPTIMIZER_STATE
               ? "lks_optimizer"
               : "lks_ddp";
}

/* `lockstep train` also reduces gradients through lks_ddp's parts. */
const char *lks__shm_call_name(const struct lks__shm_descriptor *m)
{
    const char *caller = m->kind != LKS__OP_REDUCE ? caller_of(m) : NULL;
    return caller != NULL ? caller : kind_name(m->kind);
}

/* The unit of calls with a data type: args[2] is the type. */
static const char *unit_of(const struct lks__shm_descriptor *m)
{
    switch (m->args[2]) {
#define X(name, value, bytes, text)                                                                \
    case value:                                                                                    \
        return value == LKS_UINT8 ? "bytes" : text " elements";
        LKS_DTYPE_MAP(X)
#undef X
    }
    return "elements of no type";
}

static void add_step(const struct lks__shm_descriptor *m, char *text, size_t bytes)
{
    if (m->has_step)
        lks__append(text, bytes, "", " at step %llu", (unsigned long long)m->step);
}

void lks__shm_title(const struct lks__shm_descriptor *m, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", lks__shm_call_name(m));
    add_step(m, text, bytes);
}

void lks__shm_name_wait(const struct lks__shm_descriptor *m, uint64_t number, char *text,
                        size_t bytes)
{
    char title[64];
    if (m == NULL) {
        snprintf(text, bytes, "an exchange between GPUs");
        return;
    }
    lks__shm_title(m, title, sizeof title);
    snprintf(text, bytes, "operation %llu (%s)", (unsigned long long)number, title);
}

void lks__shm_sign(struct lks__shm_descriptor *m, const lks_comm *comm)
{
    const lks__call call = lks__comm_call();
    m->caller = call.caller;
    m->object = call.object;
    m->has_step = comm->has_step;
    m->step = comm->step;
}

/* Leaves room for the data of small calls. */
enum { MOST_COUNTS = LKS__SHM_PAYLOAD / 2 / sizeof(size_t) };

void lks__shm_describe_counts(struct lks__shm_descriptor *desc, const size_t *counts, size_t n)
{
    desc->kind = LKS__OP_ALL_GATHER_V;
    desc->size = 0;
    for (size_t i = 0; i < n; i++)
        desc->size += counts[i];
    desc->args[3] = XXH3_64bits(counts, n * sizeof *counts);
    desc->n_parts = n <= MOST_COUNTS ? (uint32_t)n : 0;
    memcpy(desc->payload, counts, lks__shm_counts_bytes(desc));
}

void lks__shm_describe_shares(struct lks__shm_descriptor *desc, const size_t *block_start,
                              size_t n_blocks, int to_first)
{
    desc->kind = LKS__OP_GATHER_SHARES;
    desc->size = block_start[n_blocks] - block_start[0];
    desc->args[0] = n_blocks;
    desc->args[1] = to_first != 0;
    desc->args[3] = XXH3_64bits(block_start, (n_blocks + 1) * sizeof *block_start);
}

size_t lks__shm_counts_bytes(const struct lks__shm_descriptor *desc)
{
    return desc->kind == LKS__OP_ALL_GATHER_V ? desc->n_parts * sizeof(size_t) : 0;
}

/* Add the first count that differs. */
static void add_count(const struct lks__shm_descriptor *m, const struct lks__shm_descriptor *other,
                      char *text, size_t bytes)
{
    if (m->kind != other->kind || m->args[3] == other->args[3])
        return;
    for (uint32_t i = 0; i < m->n_parts && i < other->n_parts && i < MOST_COUNTS; i++) {
        size_t mine, others;
        memcpy(&mine, m->payload + i * sizeof mine, sizeof mine);
        memcpy(&others, other->payload + i * sizeof others, sizeof others);
        if (mine != others) {
            lks__append(text, bytes, "", " with counts[%u] = %zu", (unsigned)i, mine);
            return;
        }
    }
    lks__append(text, bytes, "", " with other counts");
}

/* Add a difference that the sizes of two reductions, or gatherings of shares, don't show. */
static void add_difference(const struct lks__shm_descriptor *m,
                           const struct lks__shm_descriptor *other, char *text, size_t bytes)
{
    const uint32_t low = (uint32_t)m->args[0], bits = (uint32_t)(m->args[0] >> 32);
    const uint32_t leaves = low % (1u << LKS__SHM_WIRE_BIT);
    float scale;
    if (m->kind != other->kind || m->size != other->size || m->object != other->object)
        return;
    if (m->kind == LKS__OP_GATHER_SHARES)
        lks__append(text, bytes, "", " (%llu blocks to %s, borders %016llx)",
                    (unsigned long long)m->args[0],
                    m->args[1] != 0 ? "the first host" : "all hosts",
                    (unsigned long long)m->args[3]);
    if (m->kind != LKS__OP_REDUCE)
        return;
    memcpy(&scale, &bits, sizeof scale);
    if (leaves != (uint32_t)other->args[0] % (1u << LKS__SHM_WIRE_BIT))
        lks__append(text, bytes, "", " over %u leaves", (unsigned)leaves);
    else if (low != (uint32_t)other->args[0])
        lks__append(text, bytes, "", " with wire %u and scatter %u",
                    (unsigned)(low >> LKS__SHM_WIRE_BIT & 1),
                    (unsigned)(low >> LKS__SHM_SCATTER_BIT));
    else if (m->args[0] != other->args[0])
        lks__append(text, bytes, "", " with scale %.9g", (double)scale);
    else if (memcmp(m->args, other->args, sizeof m->args) != 0)
        lks__append(text, bytes, "", " (borders %016llx, to %llx and %llx)",
                    (unsigned long long)m->args[1], (unsigned long long)m->args[2],
                    (unsigned long long)m->args[3]);
}

void lks__shm_describe(const struct lks__shm_descriptor *m, const struct lks__shm_descriptor *other,
                       char *text, size_t bytes)
{
    unsigned long long size = m->size;
    const char *name = kind_name(m->kind), *caller = caller_of(m);
    const uint32_t kind = caller != NULL ? LKS__OP_END : m->kind;
    switch (kind) {
    case LKS__OP_BARRIER:
        snprintf(text, bytes, "lks_comm_barrier");
        break;
    case LKS__OP_BROADCAST:
        snprintf(text, bytes, "lks_comm_broadcast of %llu %s from rank %llu", size, unit_of(m),
                 (unsigned long long)m->args[0]);
        break;
    case LKS__OP_ALL_GATHER:
        snprintf(text, bytes, "lks_comm_all_gather of %llu %s", size, unit_of(m));
        break;
    case LKS__OP_REPLICATE:
    case LKS__OP_GATHER_SHARES:
        snprintf(text, bytes, "%s of %llu bytes", name, size);
        break;
    case LKS__OP_ALL_REDUCE:
    case LKS__OP_REDUCE_SCATTER:
        snprintf(text, bytes, "lks_comm_%s%s of %llu %s by %s", name,
                 m->caller == LKS__CALLER_ALL_REDUCE_START ? "_start" : "", size, unit_of(m),
                 lks__op_name((lks_op)m->args[1]));
        break;
    case LKS__OP_ALL_GATHER_V:
        snprintf(text, bytes, "lks_comm_all_gather_v of %llu %s", size, unit_of(m));
        add_count(m, other, text, bytes);
        break;
    case LKS__OP_ALLOC:
        snprintf(text, bytes, "%s of %llu bytes of %s memory", name, size,
                 m->args[0] == LKS_MEM_OWN      ? "own"
                 : m->args[0] == LKS_MEM_COMMON ? "common"
                                                : "lazy");
        break;
    case LKS__OP_REDUCE:
        snprintf(text, bytes, "lks_comm_reduce_start of %llu elements", size);
        break;
    case LKS__OP_END:
        if (m->caller != other->caller)
            snprintf(text, bytes, "%s", caller);
        else if (m->object != other->object)
            snprintf(text, bytes, "%s of %s number %u", caller, object_of(m), (unsigned)m->object);
        else /* two operations of one call differ only in the data that they move */
            snprintf(text, bytes, "%s (its %s of size %llu)", caller, name, size);
        break;
    default:
        snprintf(text, bytes, "%s", name);
    }
    add_step(m, text, bytes);
    add_difference(m, other, text, bytes);
}

/* lks_comm_all_reduce() matches lks_comm_all_reduce_start(). */
static int caller_to_match(const struct lks__shm_descriptor *m)
{
    return m->caller == LKS__CALLER_ALL_REDUCE_START ? LKS__CALLER_PROGRAM : m->caller;
}

bool lks__shm_same_call(const struct lks__shm_descriptor *a, const struct lks__shm_descriptor *b)
{
    return a->seq == b->seq && a->kind == b->kind && a->size == b->size &&
           caller_to_match(a) == caller_to_match(b) && a->object == b->object &&
           memcmp(a->args, b->args, sizeof a->args) == 0;
}
