/* lockstep_mpi.so: MPI as an engine between hosts (link/engine.h). All ranks are processes of
 * one MPI job; the leaders have one communicator for operations and one for messages. */
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/hier/link/engine.h"

#if defined(OPEN_MPI)
#define FLAVOUR "Open MPI"
#elif defined(MPICH_VERSION)
#define FLAVOUR "MPICH"
#else
#define FLAVOUR "MPI"
#endif

enum { MESSAGE_TAG = 1 };

struct messages {
    MPI_Request recv, send;
    char in[LKS__ENGINE_MESSAGE];
};

struct member {
    MPI_Comm leaders, for_messages;
    int host, n_hosts;
    MPI_Request ops[LKS__ENGINE_SLOTS];
    int *counts; /* [LKS__ENGINE_SLOTS][4][n_hosts]: sizes and offsets of sends, then of receives */
    struct messages *messages; /* [n_hosts] */
    char out[LKS__ENGINE_MESSAGE];
};

/* MPI can be initialized once per process, but a program may open several groups. So this module
 * finalizes MPI, if it has initialized it, when the process ends, provided that all groups were
 * left in order: otherwise the other processes may never come to finalize it. */
static struct {
    pthread_mutex_t lock; /* guards the other fields; `serial` is also read without it */
    pid_t initialized_by; /* 0: MPI belongs to the program. Not a forked child */
    int n_members;
    bool torn; /* a group was left out of order */
    atomic_bool serial;
    atomic_int n_opening; /* joins of all ranks in progress; not guarded */
    int n_joining;
    MPI_Errhandler programs; /* of MPI_COMM_WORLD, while groups join */
} mpi = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Held during each call if MPI allows only one thread at a time: each group has its own. */
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;

static bool begin_call(void)
{
    const bool serial = mpi.serial; /* another group may join now */
    if (serial)
        pthread_mutex_lock(&calls);
    return serial;
}

static void end_call(const bool *serial)
{
    if (*serial)
        pthread_mutex_unlock(&calls);
}

/* As the first line of a function or block that calls MPI. */
#define MPI_CALL() __attribute__((cleanup(end_call), unused)) const bool serial_ = begin_call()

/* A thread of each group calls MPI while the program computes, so a program that has initialized
 * MPI must have allowed that. */
static int allows_threads(char *why, size_t why_bytes)
{
    int there, over, level = MPI_THREAD_MULTIPLE;
    if (mpi.n_opening > 0) { /* only the other ranks can end it, even if its caller has given up */
        snprintf(why, why_bytes,
                 "another call of this process still waits for other ranks inside MPI: open groups "
                 "one after another, and if ranks start late, give the first call a longer "
                 "timeout");
        return 0;
    }
    pthread_mutex_lock(&mpi.lock);
    MPI_Initialized(&there);
    MPI_Finalized(&over);
    if (there && !over && mpi.initialized_by == 0)
        MPI_Query_thread(&level);
    pthread_mutex_unlock(&mpi.lock);
    if (over)
        snprintf(why, why_bytes, "this process has called MPI_Finalize()");
    else if (level < MPI_THREAD_MULTIPLE)
        snprintf(why, why_bytes,
                 "the program has initialized MPI for fewer threads: call MPI_Init_thread() with "
                 "MPI_THREAD_MULTIPLE instead of MPI_Init()");
    return !over && level >= MPI_THREAD_MULTIPLE;
}

static int mpi_probe(char *why, size_t why_bytes)
{
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "PMI_SIZE"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (getenv(signs[i]) != NULL)
            return allows_threads(why, why_bytes);
    snprintf(why, why_bytes,
             "it is built in, but this process was not started by mpirun (or srun with MPI)");
    return 0;
}

/* 0 if `code` is no error. */
static int failed(int code, char *why, size_t why_bytes)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, text, &length);
    snprintf(why, why_bytes, "%s", text);
    return 1;
}

/* --- joining and leaving ------------------------------------------------------------------ */

/* Make a communicator of our host's ranks, in rank order. If one machine acts as several hosts,
 * each of them begins at a local rank 0. */
static int split_host(const lks__engine_join *join, MPI_Comm world, MPI_Comm *host_p)
{
    MPI_Comm machine;
    const int leads = join->local_rank == 0;
    int color; /* the number of leaders up to this rank */
    int rc = MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, join->rank, MPI_INFO_NULL, &machine);
    if (rc != MPI_SUCCESS)
        return rc;
    rc = MPI_Scan(&leads, &color, 1, MPI_INT, MPI_SUM, machine);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_split(machine, color, join->rank, host_p);
    MPI_Comm_free(&machine);
    return rc;
}

static int meet_host(lks__engine_join *join, MPI_Comm world, char *why, size_t why_bytes)
{
    MPI_Comm host;
    int n, me;
    if (failed(split_host(join, world, &host), why, why_bytes))
        return -1;
    MPI_Comm_size(host, &n);
    MPI_Comm_rank(host, &me);
    int rc = MPI_Bcast(join->hello, LKS__ENGINE_HELLO, MPI_CHAR, 0, host);
    MPI_Comm_free(&host);
    if (failed(rc, why, why_bytes))
        return -1;
    if (n == join->local_world_size && me == join->local_rank)
        return 0;
    snprintf(why, why_bytes,
             "MPI finds local rank %d of %d on this machine, but the environment has %d of %d "
             "(LOCAL_RANK, LOCAL_WORLD_SIZE)",
             me, n, join->local_rank, join->local_world_size);
    return -1;
}

static int meet_leaders(struct member *m, const lks__engine_join *join, MPI_Comm world, char *why,
                        size_t why_bytes)
{
    int leads = join->local_rank == 0;
    int rc = MPI_Comm_split(world, leads ? 0 : MPI_UNDEFINED, join->rank, &m->leaders);
    if (rc == MPI_SUCCESS && leads)
        rc = MPI_Comm_dup(m->leaders, &m->for_messages);
    if (failed(rc, why, why_bytes))
        return -1;
    if (!leads)
        return 0;
    MPI_Comm_set_errhandler(m->leaders, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(m->for_messages, MPI_ERRORS_RETURN);
    MPI_Comm_size(m->leaders, &m->n_hosts);
    MPI_Comm_rank(m->leaders, &m->host);
    m->counts = calloc((size_t)m->n_hosts * 4 * LKS__ENGINE_SLOTS, sizeof *m->counts);
    m->messages = calloc((size_t)m->n_hosts, sizeof *m->messages);
    if (m->counts == NULL || m->messages == NULL) {
        snprintf(why, why_bytes, "no memory for %d hosts", m->n_hosts);
        return -1;
    }
    for (int h = 0; h < m->n_hosts && rc == MPI_SUCCESS; h++) {
        struct messages *n = &m->messages[h];
        n->send = n->recv = MPI_REQUEST_NULL;
        if (h != m->host)
            rc = MPI_Irecv(n->in, LKS__ENGINE_MESSAGE, MPI_BYTE, h, MESSAGE_TAG, m->for_messages,
                           &n->recv);
    }
    return failed(rc, why, why_bytes) ? -1 : 0;
}

static void count_members(int change, bool torn)
{
    pthread_mutex_lock(&mpi.lock);
    mpi.n_members += change;
    mpi.torn |= torn;
    pthread_mutex_unlock(&mpi.lock);
}

static void finalize(void)
{
    int done = 0;
    if (pthread_mutex_trylock(&mpi.lock) != 0) /* a thread joins: its caller has given up */
        return;
    const bool last = mpi.initialized_by == getpid() && mpi.n_members == 0 && !mpi.torn;
    pthread_mutex_unlock(&mpi.lock);
    if (!last)
        return;
    MPI_Finalized(&done);
    if (!done)
        MPI_Finalize();
}

static void mpi_leave(void *engine, int orderly)
{
    MPI_CALL();
    struct member *m = engine;
    count_members(m != NULL ? -1 : 0, !orderly);
    /* Not in order: leave MPI alone. Only our calls move data, and operations in flight still point
     * into `m`. The process is about to end. */
    if (m == NULL || !orderly)
        return;
    for (int h = 0; h < m->n_hosts; h++) {
        struct messages *n = &m->messages[h];
        if (n->recv != MPI_REQUEST_NULL)
            MPI_Cancel(&n->recv);
        MPI_Wait(&n->recv, MPI_STATUS_IGNORE);
        MPI_Wait(&n->send, MPI_STATUS_IGNORE);
    }
    if (m->for_messages != MPI_COMM_NULL)
        MPI_Comm_free(&m->for_messages);
    if (m->leaders != MPI_COMM_NULL)
        MPI_Comm_free(&m->leaders);
    free(m->counts);
    free(m->messages);
    free(m);
}

/* Initialize MPI for several threads, unless it is already initialized. */
static int need_mpi(char *why, size_t why_bytes)
{
    int there, level;
    MPI_Initialized(&there);
    if (there) {
        MPI_Query_thread(&level);
    } else {
        if (failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), why, why_bytes))
            return -1;
        mpi.initialized_by = getpid();
        atexit(finalize);
    }
    mpi.serial = level < MPI_THREAD_MULTIPLE;
    return 0;
}

/* While any thread joins, errors on MPI_COMM_WORLD are returned; then the program's handler is
 * restored. */
static void count_joining(int change)
{
    pthread_mutex_lock(&mpi.lock);
    if (change > 0 && mpi.n_joining == 0) {
        MPI_Comm_get_errhandler(MPI_COMM_WORLD, &mpi.programs);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    mpi.n_joining += change;
    if (change < 0 && mpi.n_joining == 0) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, mpi.programs);
        MPI_Errhandler_free(&mpi.programs);
    }
    pthread_mutex_unlock(&mpi.lock);
}

/* A number that two groups which meet at the same time share only if no rank is in both. */
static int tag_of(const lks__engine_join *join)
{
    int size, found, *most;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    const uint64_t number = (uint64_t)join->tag * (uint64_t)size + (uint64_t)join->members[0];
    return (int)(number % (found ? (uint64_t)*most : 32767));
}

/* A communicator of the group's ranks. Only they call this function, and it comes from the world's:
 * communicators of other groups may have been freed. */
static int make_world(const lks__engine_join *join, MPI_Comm *world_p)
{
    MPI_Group all, some;
    *world_p = MPI_COMM_WORLD;
    if (join->members == NULL)
        return MPI_SUCCESS;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    int rc = MPI_Group_incl(all, join->world_size, join->members, &some);
    MPI_Group_free(&all);
    if (rc != MPI_SUCCESS)
        return rc;
    rc = MPI_Comm_create_group(MPI_COMM_WORLD, some, tag_of(join), world_p);
    MPI_Group_free(&some);
    return rc;
}

/* If a rank has failed (rc -1), all fail with the reason of the first of them: none waits for it in
 * the next operation. */
static int agree(MPI_Comm world, int rc, char *why, size_t why_bytes)
{
    char said[512] = "";
    int rank, size;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    int first = rc == 0 ? size : rank;
    snprintf(said, sizeof said, "rank %d: %s", rank, why);
    int st = MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, world);
    if (st == MPI_SUCCESS && first < size)
        st = MPI_Bcast(said, sizeof said, MPI_CHAR, first, world);
    if (failed(st, why, why_bytes))
        return -1;
    if (first < size && first != rank)
        snprintf(why, why_bytes, "%s", said);
    return first < size ? -1 : 0;
}

/* `m` is NULL if there is no memory for it. */
static int meet(struct member *m, lks__engine_join *join, char *why, size_t why_bytes)
{
    int size;
    MPI_Comm world;
    if (failed(make_world(join, &world), why, why_bytes))
        return -1;
    MPI_Comm_size(world, &size);
    int rc = meet_host(join, world, why, why_bytes);
    if (size != join->world_size)
        snprintf(why, why_bytes, "MPI has %d processes, WORLD_SIZE is %d: start all by one mpirun",
                 size, join->world_size);
    else if (m == NULL)
        snprintf(why, why_bytes, "no memory");
    rc = agree(world, m == NULL || size != join->world_size ? -1 : rc, why, why_bytes);
    if (rc == 0)
        rc = agree(world, meet_leaders(m, join, world, why, why_bytes), why, why_bytes);
    if (world != MPI_COMM_WORLD)
        MPI_Comm_free(&world);
    return rc;
}

static int mpi_number(void)
{
    MPI_CALL();
    int number;
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    return number;
}

static void *mpi_join(lks__engine_join *join, int *host_p, int *n_hosts_p, char *why,
                      size_t why_bytes)
{
    struct member *m = calloc(1, sizeof *m);
    if (m != NULL)
        m->leaders = m->for_messages = MPI_COMM_NULL;
    const int opens = join->members == NULL;
    mpi.n_opening += opens;
    pthread_mutex_lock(&mpi.lock);
    int rc = need_mpi(why, why_bytes);
    mpi.n_members++;
    pthread_mutex_unlock(&mpi.lock);
    if (rc == 0) {
        MPI_CALL();
        count_joining(1);
        rc = meet(m, join, why, why_bytes);
        count_joining(-1);
    }
    mpi.n_opening -= opens;
    if (rc != 0) /* MPI may still write to `m` */
        return NULL;
    *host_p = m->host;
    *n_hosts_p = m->n_hosts;
    return m;
}

/* --- operations --------------------------------------------------------------------------- */

static size_t extent(const size_t *at, const size_t *bytes, int n)
{
    size_t end = 0;
    for (int i = 0; i < n; i++)
        if (bytes[i] > 0 && at[i] + bytes[i] > end)
            end = at[i] + bytes[i];
    return end;
}

static bool whole_floats(const size_t *at, const size_t *bytes, int n)
{
    for (int i = 0; i < n; i++)
        if (at[i] % sizeof(float) != 0 || bytes[i] % sizeof(float) != 0)
            return false;
    return true;
}

static void count_in(const size_t *at, const size_t *bytes, int n, size_t unit, int *counts,
                     int *displacements)
{
    for (int i = 0; i < n; i++) {
        counts[i] = (int)(bytes[i] / unit);
        displacements[i] = bytes[i] > 0 ? (int)(at[i] / unit) : 0;
    }
}

static int mpi_start(void *engine, int slot, const lks__engine_op *op, char *why, size_t why_bytes)
{
    MPI_CALL();
    struct member *m = engine;
    MPI_Request *request = &m->ops[slot];
    int n = op->kind == LKS__ENGINE_BROADCAST ? 1 : m->n_hosts;
    int n_sent = op->kind == LKS__ENGINE_ALL_TO_ALL ? n : 0;
    int *c[4];
    for (int i = 0; i < 4; i++)
        c[i] = m->counts + (slot * 4 + i) * m->n_hosts;
    /* MPI counts in int, so counting floats allows larger pieces than counting bytes. */
    bool floats = whole_floats(op->send_at, op->send_bytes, n_sent) &&
                  whole_floats(op->recv_at, op->recv_bytes, n);
    MPI_Datatype type = floats ? MPI_FLOAT : MPI_BYTE;
    size_t unit = floats ? sizeof(float) : 1;
    const size_t got = extent(op->recv_at, op->recv_bytes, n);
    const size_t sent = extent(op->send_at, op->send_bytes, n_sent);
    if (got / unit > INT_MAX || sent / unit > INT_MAX) {
        snprintf(why, why_bytes, "%zu bytes at once are more than MPI can count",
                 got > sent ? got : sent);
        return -1;
    }
    count_in(op->recv_at, op->recv_bytes, n, unit, c[2], c[3]);
    int rc = MPI_SUCCESS;
    switch (op->kind) {
    case LKS__ENGINE_ALL_TO_ALL:
        count_in(op->send_at, op->send_bytes, n, unit, c[0], c[1]);
        c[0][m->host] = c[2][m->host] = 0;
        rc = MPI_Ialltoallv(op->send, c[0], c[1], type, op->recv, c[2], c[3], type, m->leaders,
                            request);
        break;
    case LKS__ENGINE_ALL_GATHER:
        rc =
            MPI_Iallgatherv(MPI_IN_PLACE, 0, type, op->recv, c[2], c[3], type, m->leaders, request);
        break;
    case LKS__ENGINE_BROADCAST:
        rc = MPI_Ibcast((char *)op->recv + op->recv_at[0], c[2][0], type, op->root, m->leaders,
                        request);
        break;
    }
    return failed(rc, why, why_bytes) ? -1 : 0;
}

static int mpi_test(void *engine, int slot, char *why, size_t why_bytes)
{
    MPI_CALL();
    struct member *m = engine;
    int done = 0;
    if (failed(MPI_Test(&m->ops[slot], &done, MPI_STATUS_IGNORE), why, why_bytes))
        return -1;
    return done != 0;
}

/* --- messages -------------------------------------------------------------------------------- */

static int mpi_tell(void *engine, const void *message)
{
    MPI_CALL();
    struct member *m = engine;
    for (int h = 0; h < m->n_hosts; h++) {
        int sent = 1;
        MPI_Test(&m->messages[h].send, &sent, MPI_STATUS_IGNORE);
        if (!sent)
            return 0;
    }
    memcpy(m->out, message, sizeof m->out);
    for (int h = 0; h < m->n_hosts; h++)
        if (h != m->host)
            MPI_Isend(m->out, LKS__ENGINE_MESSAGE, MPI_BYTE, h, MESSAGE_TAG, m->for_messages,
                      &m->messages[h].send);
    return 1;
}

static int mpi_hear(void *engine, int host, void *message, char *why, size_t why_bytes)
{
    MPI_CALL();
    struct member *m = engine;
    struct messages *n = &m->messages[host];
    int heard = 0;
    if (failed(MPI_Test(&n->recv, &heard, MPI_STATUS_IGNORE), why, why_bytes))
        return -1;
    if (!heard)
        return 0;
    memcpy(message, n->in, LKS__ENGINE_MESSAGE);
    int rc = MPI_Irecv(n->in, LKS__ENGINE_MESSAGE, MPI_BYTE, host, MESSAGE_TAG, m->for_messages,
                       &n->recv);
    return failed(rc, why, why_bytes) ? -1 : 1;
}

LKS__MODULE_EXPORT const lks__engine lks__module_table = {
    .version = LKS__ENGINE_VERSION,
    .name = FLAVOUR,
    .every_rank = 1,
    .probe = mpi_probe,
    .number = mpi_number,
    .join = mpi_join,
    .leave = mpi_leave,
    .start = mpi_start,
    .test = mpi_test,
    .tell = mpi_tell,
    .hear = mpi_hear,
    .most_bytes = 1 << 30, /* sizes are int */
};
