/* comm/shm/segment/descriptors.h - a rank's description of one operation, and its text in messages.
 */
#pragma once

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/comm.h"

enum {
    LKS__SHM_IN_FLIGHT = 64, /* maximal number of reductions in flight */
    LKS__SHM_PAYLOAD = 960,  /* bytes of data in a descriptor */
    /* Places of a reduction's `wire` and `scatter` in args[0], above the number of leaves. */
    LKS__SHM_WIRE_BIT = 30,
    LKS__SHM_SCATTER_BIT = 31,
};

enum lks__shm_kind {
    LKS__OP_JOIN = 1,
    LKS__OP_ALLOC,
    LKS__OP_BARRIER,
    LKS__OP_BROADCAST,
    LKS__OP_ALL_GATHER,
    LKS__OP_ALL_REDUCE,
    LKS__OP_REDUCE,
    LKS__OP_REPLICATE,
    LKS__OP_GATHER_SHARES,
    LKS__OP_REDUCE_SCATTER,
    LKS__OP_ALL_GATHER_V,
    LKS__OP_END
};

/* A rank's description of one operation, which all ranks read. Kind, size, args, caller and object
 * must be equal on all ranks. */
struct lks__shm_descriptor {
    alignas(64) uint32_t seq;
    uint32_t kind;    /* enum lks__shm_kind */
    uint64_t size;    /* bytes, or elements for the reductions */
    uint64_t args[4]; /* root, memory kind, offsets, hash of borders, the backend's name at the
                         start ..., depending on kind */
    uint32_t n_parts; /* entries at the payload's start: parts of LKS__OP_REDUCE, counts of
                       * LKS__OP_ALL_GATHER_V, or the ranks of the job at the start; may differ */
    uint8_t has_step, caller; /* enum lks__caller */
    uint16_t object;          /* of lks__call */
    uint64_t step;            /* of the rank's last lks_comm_note(), for messages */
    alignas(64) unsigned char payload[LKS__SHM_PAYLOAD];
};

/* Add this thread's call and the rank's step. */
void lks__shm_sign(struct lks__shm_descriptor *desc, const lks_comm *comm);

/* Describe an all-gather of `counts` [n], for messages with the counts if they fit. */
void lks__shm_describe_counts(struct lks__shm_descriptor *desc, const size_t *counts, size_t n);
/* Describe a gathering of the shares that these blocks form; args[2] is the memory's place. */
void lks__shm_describe_shares(struct lks__shm_descriptor *desc, const size_t *block_start,
                              size_t n_blocks, int to_first);
/* Bytes of the counts in the payload. */
size_t lks__shm_counts_bytes(const struct lks__shm_descriptor *desc);

/* Name a call for messages: "broadcast at step 3". */
void lks__shm_title(const struct lks__shm_descriptor *desc, char *text, size_t bytes);
/* Name the operation that a rank waits for: "operation 57 (broadcast at step 3)", or, if `desc` is
 * NULL, an exchange between devices. */
void lks__shm_name_wait(const struct lks__shm_descriptor *desc, uint64_t number, char *text,
                        size_t bytes);
/* Describe an operation by its public call: "lks_comm_broadcast of 8 bytes from rank 0 at step 3".
 * `other` is the call that it doesn't match. */
void lks__shm_describe(const struct lks__shm_descriptor *desc,
                       const struct lks__shm_descriptor *other, char *text, size_t bytes);
/* True if two calls match. */
bool lks__shm_same_call(const struct lks__shm_descriptor *a, const struct lks__shm_descriptor *b);
/* The call that the operation is, or belongs to: "barrier", "lks_ddp_step". */
const char *lks__shm_call_name(const struct lks__shm_descriptor *desc);
