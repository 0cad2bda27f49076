/* comm/hier/engine.h - what an engine between hosts provides: the collectives of MPI or Gloo,
 * behind one small table. Modules are compiled against it; it uses nothing else of lockstep.
 *
 * A host is one member: its leader, the first of its ranks, calls the engine, from one thread, one
 * operation at a time. Notes are small messages beside the operations: signs of life, and failures.
 * They come through while an operation stands still. */
#ifndef LKS_COMM_HIER_ENGINE_H
#define LKS_COMM_HIER_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LKS__ENGINE_VERSION = 1, LKS__ENGINE_NOTE = 1024, LKS__ENGINE_HELLO = 128 };

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
    LKS__ENGINE_ALL_TO_ALL, /* send piece h to host h, receive a piece from each other; our own may
                             * be copied or not */
    LKS__ENGINE_ALL_GATHER, /* recv has all pieces, ours in its place when it starts */
    LKS__ENGINE_BROADCAST,  /* of recv_bytes[0] bytes at recv, from host `root` */
};

/* `send` and `recv` never overlap. Pieces lie one behind the other, in the order of hosts; the
 * sizes are known to both sides. All of it lives until the operation is done. */
typedef struct lks__engine_op {
    int kind, root;
    const void *send;
    const size_t *send_bytes; /* [n_hosts] */
    void *recv;
    const size_t *recv_bytes; /* [n_hosts] */
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

    int (*start)(void *engine, const lks__engine_op *op, char *why, size_t why_bytes); /* 0, -1 */
    int (*test)(void *engine, char *why, size_t why_bytes); /* 1 done, 0 in progress, -1 failed */
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
