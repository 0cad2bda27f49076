/* comm/hier/link/engine.h - the interface of an engine between hosts: the collectives of MPI or
 * Gloo in one small table. Modules are compiled against it. It uses nothing else of lockstep but
 * base/system/module.h.
 *
 * Each host is one member: its leader, the first of its ranks, calls the engine, from one thread.
 * All members start the same operations in the same order; a few may be in progress together.
 * Messages are small messages outside the operations, for heartbeats and failures. They arrive even
 * if an operation makes no progress. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/system/module.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LKS__ENGINE_VERSION = 6,
    LKS__ENGINE_MESSAGE = 1024,
    LKS__ENGINE_HELLO = 128,
    LKS__ENGINE_SLOTS = 8, /* operations that may be in progress together */
};

/* The rank of this process, and the facts that all ranks of a host must know before they can
 * connect. */
typedef struct lks__engine_join {
    int rank, world_size, local_rank, local_world_size;
    double timeout_s;
    const int *members; /* [world_size] number() of each rank; NULL: all processes, in rank order */
    int tag; /* with `members`: differs between groups of the same first rank that meet at once */
    /* For engines that need a store: our host's number, our address as others see it, and the
     * store. Keys and values are copied; the caller frees the value that get returns. 0, or
     * another number after a failure, with its reason in store_why. */
    int host, n_hosts;
    char address[64];
    void *store;
    int (*store_set)(void *store, const char *key, const void *data, size_t bytes);
    int (*store_get)(void *store, const char *key, double timeout_s, void **data_p,
                     size_t *bytes_p);
    char store_why[256];
    char hello[LKS__ENGINE_HELLO]; /* in: the leader's hello; out: the same on the host's other
                                      ranks */
} lks__engine_join;

enum lks__engine_kind {
    LKS__ENGINE_ALL_TO_ALL, /* send piece h to host h, and receive a piece from each other host; our
                               own piece isn't moved */
    LKS__ENGINE_ALL_GATHER, /* recv gets all pieces; ours is already in place */
    LKS__ENGINE_BROADCAST,  /* of recv_bytes[0] bytes at recv + recv_at[0], from host `root` */
};

/* Piece h is `bytes[h]` bytes from `at[h]` on; both sides know its size. Pieces of one operation
 * never overlap. All memory must live until the operation is done. An all-to-all's `send` isn't its
 * `recv`, which Open MPI would take for MPI_IN_PLACE. */
typedef struct lks__engine_op {
    int kind, root;
    const void *send;
    const size_t *send_at, *send_bytes; /* [n_hosts] */
    void *recv;
    const size_t *recv_at, *recv_bytes; /* [n_hosts] */
} lks__engine_op;

/* On failure `why` gets half a sentence. */
typedef struct lks__engine {
    int version;
    const char *name;
    int every_rank;  /* all ranks join, not only leaders, as MPI requires */
    int needs_store; /* to find the other hosts */

    /* 1 if it could serve a process that was started like this one, else 0. */
    int (*probe)(char *why, size_t why_bytes);
    /* This process's number among all that the engine's launcher has started; called after a join.
     * NULL: the engine has no such numbers. */
    int (*number)(void);
    /* NULL on failure. On a leader: also returns the host's number, and the number of hosts. */
    void *(*join)(lks__engine_join *join, int *host_p, int *n_hosts_p, char *why, size_t why_bytes);
    /* Leave, `orderly` together with all others, otherwise at once. In both cases the engine
     * touches no memory from then on. */
    void (*leave)(void *engine, int orderly);

    /* Start an operation in a free slot; 0, or -1. Slots are used in turn, and tested in the same
     * order. */
    int (*start)(void *engine, int slot, const lks__engine_op *op, char *why, size_t why_bytes);
    /* 1 done, 0 in progress, -1 failed. */
    int (*test)(void *engine, int slot, char *why, size_t why_bytes);
    /* Sleep until the operation in `slot` has ended, but at most `seconds`. NULL if operations make
     * progress only in test(). */
    void (*rest)(void *engine, int slot, double seconds);
    /* Send a message of LKS__ENGINE_MESSAGE bytes to all other hosts; copied. It may replace an
     * earlier one that hasn't been sent yet. 0: the previous one must be sent first. */
    int (*tell)(void *engine, const void *message);
    /* The next message of `host`: 1 if one has arrived; 0 if not yet; -1 if no more will come. */
    int (*hear)(void *engine, int host, void *message, char *why, size_t why_bytes);

    /* Most bytes of a broadcast or an all-gather of consecutive pieces; 0: any number. */
    size_t most_bytes;
} lks__engine;

#ifdef __cplusplus
}
#endif
