/* ddp/memory/mode.h - one table of functions per mode (host, staged, joined: memory.h), and the
 * functions that two modes share. Only this folder's files, and the sizes in plan/bytes, use it. */
#pragma once

#include "ddp/memory/state.h"

typedef struct lks__memory_mode {
    bool own_memory; /* the device has its own memory, with a replica per rank */
    bool all_divide; /* all ranks divide an update by buckets, even if a host shares a replica */
    bool in_caches;  /* merged leaves go through a staging buffer that stays in the caches */

    /* Number of arenas in the group's memory, for a rank with `n_arenas` arenas and `n_nodes`
     * nodes. */
    int (*group_arenas)(int n_arenas, int n_nodes);
    /* Device bytes for data from other ranks, for rank `rank` of W; NULL: none. Only V, owners and
     * buckets of `config` count. */
    lks_status (*exchange_bytes)(const lks__memory_config *config, const lks__table *table, int W,
                                 int rank, double *bytes_p);

    lks_status (*open)(lks__memory *m); /* collective */
    /* Functions of memory.h with these names; NULL: nothing to do. */
    void (*ready)(lks__memory *m, int b);
    lks_status (*start)(lks__memory *m, int b); /* start bucket b's reduction */
    lks_status (*sum)(lks__memory *m, const float **grads_p);
    double (*squares)(const lks__memory *m, size_t block);
    lks_status (*release)(lks__memory *m);
    const float *(*begin_update)(lks__memory *m, const float *grads);
    lks_status (*end_update)(lks__memory *m);
    lks_status (*publish)(lks__memory *m); /* after the barrier */
    void (*fetch)(lks__memory *m);         /* put on the copy queue */
    lks_status (*upload)(lks__memory *m, bool moments);
    const float *(*whole)(lks__memory *m, const float *grads);
    lks_status (*hash)(lks__memory *m, size_t first, size_t count, uint64_t *hash_p);
    const char *(*exchange)(const lks__memory *m, bool asked);
} lks__memory_mode;

extern const lks__memory_mode lks__memory_host, lks__memory_staged, lks__memory_joined;

/* A bucket whose reduction hasn't ended. */
struct lks__under_way {
    lks__mark copied; /* this rank's nodes of the bucket have been copied to sent[] */
    lks_work *work;   /* the group's operation */
    double started;   /* time from lks__sys_now() */
};

/* Reductions by the group, in host memory: the modes host and staged (group.c). */
lks_status lks__group_open(lks__memory *m, int n_sent);
lks_status lks__group_start(lks__memory *m, int b);
lks_status lks__group_sum(lks__memory *m, const float **grads_p);
double lks__group_squares(const lks__memory *m, size_t block);
lks_status lks__group_release(lks__memory *m);
/* Let the group complete its operations in flight without this rank. */
void lks__group_forget(lks__memory *m);

/* A device with its own memory: the modes staged and joined (staged.c). */
lks_status lks__own_open_arenas(lks__memory *m);
lks_status lks__own_upload(lks__memory *m, bool moments);
lks_status lks__own_hash(lks__memory *m, size_t first, size_t count, uint64_t *hash_p);
