/* ddp/memory/group.c - sums buckets in host memory through the ranks' group. */
#include "base/system/sys.h"
#include "base/trace.h"
#include "comm/backend.h"
#include "ddp/memory/mode.h"
#include "lockstep/reduce.h"

lks_status lks__group_open(lks__memory *m, int n_sent)
{
    const size_t bytes = m->table->trained_count * sizeof(float);
    for (int i = 0; i < n_sent; i++)
        LKS__TRY(lks_comm_alloc(m->comm, LKS_MEM_OWN, bytes, (void **)&m->sent[i]));
    return lks_comm_alloc(m->comm, LKS_MEM_COMMON, m->table->trained_blocks * sizeof(double),
                          (void **)&m->block_sumsq);
}

/* The sum is stored in sent[0] of the host's leader. */
static float *sum_of(const lks__memory *m)
{
    return lks_comm_peer(m->comm, m->sent[0], lks_comm_leader(m->comm));
}

lks_status lks__group_start(lks__memory *m, int i)
{
    const lks__memory_config *c = &m->config;
    const lks__bucket *b = &c->buckets->list[i];
    lks_part parts[LKS__MAX_ARENAS];
    for (int k = 0; k < c->nodes.n; k++)
        parts[k] = (lks_part){c->nodes.node[k], m->sent[k] + b->start};
    lks_reduction r = {
        .label = i,
        .n_leaves = c->V,
        .parts = parts,
        .n_parts = c->nodes.n,
        .scale = c->scale,
        .count = b->count,
        .scatter = c->zero ? LKS_SCATTER_HOSTS : LKS_SCATTER_NONE,
        .wire = c->wire,
        .block_start = b->block_start,
        .n_blocks = b->n_blocks,
        .block_sumsq = m->block_sumsq + b->first_block,
        .dst = sum_of(m) + b->start,
    };
    m->under_way[i].started = lks__sys_now();
    lks_work *work;
    LKS__CALLED_BY(DDP_STEP);
    LKS__TRY(lks_comm_reduce_start(m->comm, &r, &work));
    m->under_way[i].work = work;
    return LKS_OK;
}

/* Wait for all buckets, because each wait releases its operation. Return the first failure. */
lks_status lks__group_sum(lks__memory *m, const float **grads_p)
{
    lks_status first = LKS_OK;
    for (int i = 0; i < m->config.buckets->n; i++) {
        if (m->under_way[i].work == NULL)
            continue;
        lks_status st = lks_work_wait(m->under_way[i].work);
        m->under_way[i].work = NULL;
        lks__trace_past(LKS__SPAN_BUCKET, i, m->under_way[i].started);
        if (first == LKS_OK)
            first = st;
    }
    *grads_p = sum_of(m);
    return first;
}

double lks__group_squares(const lks__memory *m, size_t block)
{
    return m->block_sumsq[block];
}

lks_status lks__group_release(lks__memory *m)
{
    return lks_comm_barrier(m->comm);
}

/* lks_comm_close() has freed the operations of a closed group. */
void lks__group_forget(lks__memory *m)
{
    for (int i = 0; m->under_way != NULL && i < m->config.buckets->n; i++) {
        if (!lks__comm_is_closed(m->comm))
            lks__work_forget(m->under_way[i].work);
        m->under_way[i].work = NULL;
    }
}
