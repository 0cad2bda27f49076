/* compute/cuda/exchange/nccl.c - the module lockstep_nccl.so: NCCL's calls. The communicator
 * doesn't block: a call that takes long returns at once, and state() tells when it is done. */
#include "compute/cuda/exchange/nccl.h"

#include <nccl.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(ncclUniqueId) <= sizeof(lks__exchange_id), "NCCL's id fits");

static bool is_good(ncclComm_t comm, const char *call, ncclResult_t result, char *why,
                    size_t why_bytes)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return true;
    const char *more = ncclGetLastError(comm);
    snprintf(why, why_bytes, "%s failed: %s%s%s", call, ncclGetErrorString(result),
             more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
    return false;
}

#define CALL(comm, call, ...) is_good((comm), #call, call(__VA_ARGS__), why, why_bytes)

static void about(char *text, size_t bytes)
{
    int version = 0;
    (void)ncclGetVersion(&version);
    snprintf(text, bytes, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static bool make_id(lks__exchange_id *id, char *why, size_t why_bytes)
{
    ncclUniqueId nccl;
    if (!CALL(NULL, ncclGetUniqueId, &nccl))
        return false;
    memset(id, 0, sizeof *id);
    memcpy(id, &nccl, sizeof nccl);
    return true;
}

static void *join(int rank, int n_ranks, const lks__exchange_id *id, char *why, size_t why_bytes)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId nccl;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    memcpy(&nccl, id, sizeof nccl);
    return CALL(NULL, ncclCommInitRankConfig, &comm, n_ranks, nccl, rank, &config) ? comm : NULL;
}

static int state(void *comm, char *why, size_t why_bytes)
{
    ncclResult_t result = ncclSuccess;
    if (!CALL(comm, ncclCommGetAsyncError, comm, &result) ||
        !is_good(comm, "NCCL", result, why, why_bytes))
        return -1;
    return result == ncclSuccess;
}

/* One piece of a group. A send and a receive without each other would wait for ever, and so all are
 * put together. */
static bool put(ncclComm_t comm, cudaStream_t stream, const lks__move *m, char *why,
                size_t why_bytes)
{
    switch (m->kind) {
    case LKS__MOVE_SEND:
        return CALL(comm, ncclSend, m->mem, m->bytes, ncclUint8, m->rank, comm, stream);
    case LKS__MOVE_RECEIVE:
        return CALL(comm, ncclRecv, m->mem, m->bytes, ncclUint8, m->rank, comm, stream);
    case LKS__MOVE_SPREAD:
        return CALL(comm, ncclBroadcast, m->mem, m->mem, m->bytes, ncclUint8, m->rank, comm,
                    stream);
    }
    return false;
}

static bool move(void *comm, void *stream, const lks__move *list, size_t n, char *why,
                 size_t why_bytes)
{
    char after[300];
    if (!CALL(comm, ncclGroupStart))
        return false;
    bool good = true;
    for (size_t i = 0; i < n && good; i++)
        good = put(comm, stream, &list[i], why, why_bytes);
    /* The first failure's sentence stays. */
    return is_good(comm, "ncclGroupEnd", ncclGroupEnd(), good ? why : after,
                   good ? why_bytes : sizeof after) &&
           good;
}

static bool finalize(void *comm, char *why, size_t why_bytes)
{
    return CALL(comm, ncclCommFinalize, comm);
}

static void destroy(void *comm)
{
    (void)ncclCommDestroy(comm);
}

static void end_now(void *comm)
{
    (void)ncclCommAbort(comm);
}

LKS__MODULE_EXPORT const lks__nccl_module lks__module_table = {
    .version = LKS__NCCL_MODULE_VERSION,
    .about = about,
    .id = make_id,
    .join = join,
    .state = state,
    .move = move,
    .finalize = finalize,
    .destroy = destroy,
    .abort = end_now,
};
