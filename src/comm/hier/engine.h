/* comm/hier/engine.h - what an engine between hosts provides: the collectives of MPI or Gloo,
 * behind one small table. Modules are compiled against it; it uses nothing else of lockstep.
 *
 * A host is one member: its leader, the first of its ranks, calls the engine, from one thread. All
 * members start the same operations in the same order; a few may be in progress together. Notes are
 * small messages beside the operations: signs of life, and failures. They come through while an
 * operation stands still. */
#ifndef LKS_COMM_HIER_ENGINE_H
#define LKS_COMM_HIER_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LKS__ENGINE_VERSION = 2,
    LKS__ENGINE_NOTE = 1024,
    LKS__ENGINE_HELLO = 128,
    LKS__ENGINE_SLOTS = 8, /* operations that may be in progress together */
};

/* Where this process stands, and what all of one host must know before they can meet. */
typedef struct lks__engine_join {
    int rank, world_size, local_rank, local_world_size;
    double timeout_s;
    /* For engines that need a store: our place, our address as others see it, and the store. Keys
     * and values are copied, what get gives is to be freed; 0, or -1 after a deadline. */
    int host, n_hosts;
    char address[64];
    void *store;
    int (*store_set)(void *store, const char *key, const void *data, size_t bytes);
    int (*store_get)(void *store, const char *key, double timeout_s, void **data_p,
                     size_t *bytes_p);
    char hello[LKS__ENGINE_HELLO]; /* in: the leader's; out: the same on the host's other ranks */
} lks__engine_join;

enum lks__engine_kind {
    LKS__ENGINE_ALL_TO_ALL, /* send piece h to host h, receive a piece from each other; our own
                             * stays where it is */
    LKS__ENGINE_ALL_GATHER, /* recv has all pieces, ours in its place when it starts */
    LKS__ENGINE_BROADCAST,  /* of recv_bytes[0] bytes at recv + recv_at[0], from host `root` */
};

/* Piece h is `bytes[h]` bytes from `at[h]` on; its size is known to both sides. Pieces of one
 * operation never overlap. All of it lives until the operation is done. */
typedef struct lks__engine_op {
    int kind, root;
    const void *send;
    const size_t *send_at, *send_bytes; /* [n_hosts] */
    void *recv;
    const size_t *recv_at, *recv_bytes; /* [n_hosts] */
} lks__engine_op;

/* `why` gets half a sentence where something fails. */
typedef struct lks__engine {
    int version;
    const char *name;
    int every_rank;  /* all ranks join, not the leaders alone: MPI has it so */
    int needs_store; /* to find the other hosts */

    /* Could it serve a process started as this one was? 1 or 0. */
    int (*probe)(char *why, size_t why_bytes);
    /* NULL on failure. On a leader: which host of how many. */
    void *(*join)(lks__engine_join *join, int *host_p, int *n_hosts_p, char *why, size_t why_bytes);
    /* Orderly: all leave. Otherwise at once; in any case no memory is touched from then on. */
    void (*leave)(void *engine, int orderly);

    /* In a slot that is free; 0, or -1. Slots are taken in turn, and tested in the same order. */
    int (*start)(void *engine, int slot, const lks__engine_op *op, char *why, size_t why_bytes);
    /* 1 done, 0 in progress, -1 failed. */
    int (*test)(void *engine, int slot, char *why, size_t why_bytes);
    /* Sleep until the operation in `slot` has ended, at most so long. NULL: operations move on only
     * while they are tested. */
    void (*rest)(void *engine, int slot, double seconds);
    /* The engine's own sum of `count` floats over all members, in place and in an order of its own;
     * it blocks. What `lockstep bench comm` measures reductions by. 0, or -1. */
    int (*own_sum)(void *engine, float *buf, size_t count, char *why, size_t why_bytes);
    /* Send a note of LKS__ENGINE_NOTE bytes to all other hosts; copied. 0 where the one before is
     * still on its way. */
    int (*tell)(void *engine, const void *note);
    /* The next note of `host`: 1; 0 none has come; -1 and none will come any more. */
    int (*hear)(void *engine, int host, void *note, char *why, size_t why_bytes);
} lks__engine;

typedef const lks__engine *lks__engine_fn(void);
#define LKS__ENGINE_ENTRY "lks__engine_get"

#ifdef __cplusplus
}
#endif
#endif
