/* The segment of ranks that another launcher has started (torchrun, mpirun, srun). The host's local
 * rank 0 makes it, and passes it to the others over a socket in the abstract namespace, which has
 * no name in any file system and ends with the process. The socket's name is computed from the
 * launcher's variables; the kernel identifies the process at the other end. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/system/sys.h"
#include "comm/shm/segment/segment.h"
#include "comm/shm/segment/status.h"

enum { HELLO_MAGIC = 0x6c6b7348, RETRY_MS = 5, HELLO_MS = 500, TAKEN = -2, FULL = -3 };
static const double SAY_S = 5.0;   /* time after which a rank prints that it waits, and for whom */
static const double SLICE_S = 0.1; /* time between checks for a signal to stop */
#define START                                                                                      \
    "start all ranks with `lockstep run`, or by hand with one MASTER_PORT for all; for a single "  \
    "process unset RANK and WORLD_SIZE"

/* The message that a rank sends when it has connected; the answer is the segment's token, with the
 * descriptor. */
struct hello {
    uint32_t magic;
    int32_t local_rank, local_world_size;
};

/* Variables that differ between jobs that run on this machine at the same time, or between the
 * hosts for which this machine acts. */
static const char *const job_names[] = {
    "MASTER_ADDR",    "MASTER_PORT",  "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID",       "GROUP_RANK",
    "LOCKSTEP_STORE"};

/* The name and the parent of a process; false if it has ended. */
static bool process_of(int pid, char name[32], int *parent_p)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *first = strchr(text, '('), *last = strrchr(text, ')'); /* "PID (NAME) S PARENT" */
    if (first == NULL || last == NULL || last < first)
        return false;
    snprintf(name, 32, "%.*s", (int)(last - first - 1), first + 1);
    return sscanf(last + 1, " %*c %d", parent_p) == 1;
}

/* MPICH's launcher has a proxy on each host, an ancestor of that host's ranks; 0: no proxy found.
 * Its variables are the same in all jobs. */
static int mpich_proxy(void)
{
    enum { MOST = 64 };
    char name[32];
    int pid = getppid();
    for (int i = 0, parent = 0; i < MOST && pid > 1 && process_of(pid, name, &parent); i++) {
        if (strcmp(name, "hydra_pmi_proxy") == 0)
            return pid;
        pid = parent;
    }
    return 0;
}

static socklen_t make_name(unsigned group, struct sockaddr_un *name)
{
    bool known = false;
    XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    for (size_t i = 0; i < sizeof job_names / sizeof job_names[0]; i++) {
        const char *value = getenv(job_names[i]);
        known = known || value != NULL;
        XXH3_64bits_update(hash, value != NULL ? value : "", value != NULL ? strlen(value) + 1 : 1);
    }
    uint32_t facts[3] = {(uint32_t)geteuid(), group, 0};
    if (getenv("PMI_RANK") != NULL)
        facts[2] = (uint32_t)mpich_proxy();
    if (facts[2] == 0 && !known)
        facts[2] = (uint32_t)getppid();
    XXH3_64bits_update(hash, facts, sizeof facts);
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "lockstep-%016llx",
                     (unsigned long long)XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* True if the process at the other end belongs to this user; *pid_p is its number. */
static bool is_ours(int fd, pid_t *pid_p)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 || peer.uid != geteuid())
        return false;
    *pid_p = peer.pid;
    return true;
}

static bool readable(int fd, double seconds)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return seconds > 0 && poll(&p, 1, (int)(seconds * 1e3) + 1) == 1;
}

static lks_status cannot_share(int err)
{
    return lks__fail(LKS_ERR_IO, "can't share memory with this host's other ranks: %s",
                     lks__sys_reason(err));
}

/* --- local rank 0 ------------------------------------------------------------------------- */

static bool send_segment(int fd, const lks__segment *segment, const char *token)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec text = {.iov_base = (void *)(uintptr_t)token, .iov_len = 16};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof control.space};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int shared = lks__segment_fd(segment);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &shared, sizeof shared);
    return sendmsg(fd, &m, MSG_NOSIGNAL) == 16;
}

/* Report a wait that the user may not expect, for example with variables that another job has
 * left. */
static void say_wait(double *say_at_p, const lks_world *w, int rank, double timeout_s)
{
    fprintf(stderr,
            "lockstep: local rank %d of %d waits up to %g s for local rank %d to start (RANK and "
            "WORLD_SIZE in the environment ask for it; `lockstep run` starts all ranks)\n",
            w->local_rank, w->local_world_size, timeout_s, rank);
    *say_at_p = INFINITY;
}

/* Report it once: the other process may belong to another job with the same variables. */
static void say_differs(const struct hello *h, const lks_world *w, pid_t pid, bool *said)
{
    if (!*said)
        fprintf(stderr,
                "lockstep: process %d counts %d ranks on this host, and local rank 0 counts %d: "
                "WORLD_SIZE and LOCAL_WORLD_SIZE must be the same for all\n",
                (int)pid, (int)h->local_world_size, w->local_world_size);
    *said = true;
}

/* A connection from another job gets no answer, and a second process with the same local rank a
 * shorter one. */
static void serve_one(int fd, const lks_world *w, lks__segment *segment, bool *served,
                      int *n_served, bool *said)
{
    struct hello h;
    char env[LKS__SEGMENT_ENV_BYTES];
    pid_t pid;
    if (!is_ours(fd, &pid) || !readable(fd, HELLO_MS * 1e-3) ||
        recv(fd, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != HELLO_MAGIC)
        return;
    if (h.local_world_size != w->local_world_size) {
        say_differs(&h, w, pid, said);
        return;
    }
    if (h.local_rank < 1 || h.local_rank >= w->local_world_size)
        return;
    if (served[h.local_rank]) {
        (void)send(fd, "", 1, MSG_NOSIGNAL);
        return;
    }
    lks__segment_env(segment, env);                  /* "FD:TOKEN" */
    lks__segment_expect(segment, h.local_rank, pid); /* until it joins */
    if (!send_segment(fd, segment, strchr(env, ':') + 1))
        return;
    served[h.local_rank] = true;
    ++*n_served;
}

/* Serve one process that has connected. */
static lks_status serve_next(int fd, const lks_world *w, lks__segment *segment, bool *served,
                             int *n_served, bool *said)
{
    const int peer = lks__sys_accept(fd);
    if (peer < 0) /* it may have given up */
        return errno == EAGAIN || errno == ECONNABORTED ? LKS_OK : cannot_share(errno);
    serve_one(peer, w, segment, served, n_served, said);
    lks__sys_close(peer);
    return LKS_OK;
}

static int first_missing(const lks_world *w, const bool *served)
{
    int r = 1;
    while (r + 1 < w->local_world_size && served[r])
        r++;
    return r;
}

static lks_status missing(const lks_world *w, const bool *served, double timeout_s)
{
    return lks__fail(LKS_ERR_TIMEOUT,
                     "local rank %d of %d on this host has not attached to the shared memory "
                     "within %g s: it has ended, or has another job's variables; " START,
                     first_missing(w, served), w->local_world_size, timeout_s);
}

static lks_status offer(int fd, const lks_world *w, double timeout_s, const char *failure,
                        lks__segment **segment_p)
{
    double end = lks__sys_now() + timeout_s, failed_at = INFINITY;
    lks__segment *segment;
    LKS__TRY(lks__segment_create(w->local_world_size, &segment));
    lks__segment_expect(segment, 0, getpid());
    if (failure[0] != '\0')
        lks__segment_abort(segment, LKS_ERR_PEER, w->local_rank, failure);
    bool *served = calloc((size_t)w->local_world_size, sizeof *served);
    int n_served = 1;
    bool said_differs = false;
    lks_status st = LKS_OK;
    if (served == NULL)
        st = lks__no_memory("for %d ranks", w->local_world_size);
    double say_at = lks__sys_now() + SAY_S;
    while (st == LKS_OK && n_served < w->local_world_size &&
           lks__sys_now() < failed_at + LKS__TOLD_S) {
        if (lks__segment_aborted(segment))
            failed_at = fmin(failed_at, lks__sys_now());
        const bool asked = readable(fd, fmin(fmin(say_at, end) - lks__sys_now(), SLICE_S));
        st = lks__sys_give_up_check();
        if (st == LKS_OK && asked)
            st = serve_next(fd, w, segment, served, &n_served, &said_differs);
        else if (st == LKS_OK && lks__sys_now() >= end)
            st = missing(w, served, timeout_s);
        else if (st == LKS_OK && lks__sys_now() >= say_at)
            say_wait(&say_at, w, first_missing(w, served), timeout_s);
    }
    free(served);
    if (st == LKS_OK) {
        *segment_p = segment;
        return LKS_OK;
    }
    /* Ranks that have attached wait for this one. */
    lks__segment_ask_stop(segment, lks__sys_give_up_signal(0));
    lks__segment_abort(segment, st, -1, lks_last_error());
    lks__segment_close(segment);
    return st;
}

static lks_status serve(const lks_world *w, unsigned group, double timeout_s, const char *failure,
                        lks__segment **segment_p)
{
    struct sockaddr_un name;
    socklen_t n = make_name(group, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    lks_status st;
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, n) != 0 ||
        listen(fd, w->local_world_size) != 0)
        st = lks__fail(LKS_ERR_IO, "can't offer shared memory to this host's other ranks: %s%s",
                       lks__sys_reason(errno),
                       errno == EADDRINUSE ? "; a second process has LOCAL_RANK 0, or another job "
                                             "here has the same variables (MASTER_PORT and the "
                                             "like), or its end is not over"
                                           : "");
    else
        st = offer(fd, w, timeout_s, failure, segment_p);
    lks__sys_close(fd);
    return st;
}

/* --- the others --------------------------------------------------------------------------- */

/* Receive the descriptor and the token; -1 if they don't arrive, TAKEN if another process has this
 * local rank, FULL if this process may have no more descriptors. */
static int receive(int fd, char token[17])
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec text = {.iov_base = token, .iov_len = 16};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof control.space};
    int shared = -1;
    const ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    if (n != 16)
        return n == 1 ? TAKEN : -1;
    if (m.msg_flags & MSG_CTRUNC)
        return FULL;
    token[16] = '\0';
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&shared, CMSG_DATA(c), sizeof shared);
    return shared;
}

/* Wait until time `end`, or until the caller gives up. A signal doesn't end the wait: the other
 * process answers only once. */
static bool is_answered(int fd, double end)
{
    bool yes = false;
    for (double left; !yes && (left = end - lks__sys_now()) > 0 && lks__sys_give_up_signal(0) == 0;)
        yes = readable(fd, fmin(left, SLICE_S));
    return yes;
}

/* Ask the process that listens at that name; false: try again. */
static bool ask(const lks_world *w, const struct sockaddr_un *name, socklen_t n, double end,
                lks_status *st_p, lks__segment **segment_p)
{
    struct hello h = {HELLO_MAGIC, w->local_rank, w->local_world_size};
    char token[17], env[LKS__SEGMENT_ENV_BYTES];
    pid_t pid;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), shared = -1;
    if (fd < 0 && errno == EMFILE)
        shared = FULL;
    bool connected = fd >= 0 && connect(fd, (const struct sockaddr *)name, n) == 0;
    if (connected && !is_ours(fd, &pid)) {
        *st_p = lks__fail(LKS_ERR_IO, "a process of another user offers this job's shared memory");
        lks__sys_close(fd);
        return true;
    }
    if (connected && send(fd, &h, sizeof h, MSG_NOSIGNAL) == (ssize_t)sizeof h &&
        is_answered(fd, end))
        shared = receive(fd, token);
    lks__sys_close(fd);
    if (shared == TAKEN)
        *st_p = lks__fail(LKS_ERR_ARG,
                          "another process has joined as local rank %d of this host: each rank "
                          "joins once; " START,
                          w->local_rank);
    else if (shared == FULL)
        *st_p = cannot_share(EMFILE);
    if (shared < 0)
        return shared != -1;
    snprintf(env, sizeof env, "%d:%s", shared, token);
    *st_p = lks__segment_attach(env, w->local_world_size, segment_p);
    if (*st_p != LKS_OK)
        lks__sys_close(shared);
    return true;
}

static lks_status fetch(const lks_world *w, unsigned group, double timeout_s,
                        lks__segment **segment_p)
{
    struct sockaddr_un name;
    socklen_t n = make_name(group, &name);
    double end = lks__sys_now() + timeout_s, say_at = lks__sys_now() + SAY_S;
    lks_status st = LKS_OK;
    while (!ask(w, &name, n, end, &st, segment_p)) {
        LKS__TRY(lks__sys_give_up_check());
        if (lks__sys_now() >= end)
            return lks__fail(LKS_ERR_TIMEOUT,
                             "local rank 0 of this host has offered no shared memory within %g s: "
                             "it has ended, has another job's variables, or has all its ranks "
                             "already, one of them with this process's LOCAL_RANK=%d; " START,
                             timeout_s, w->local_rank);
        if (lks__sys_now() >= say_at)
            say_wait(&say_at, w, 0, timeout_s);
        poll(NULL, 0, RETRY_MS);
    }
    return st;
}

lks_status lks__segment_share(const lks_world *w, unsigned group, double timeout_s,
                              const char *failure, lks__segment **segment_p)
{
    return w->local_rank == 0 ? serve(w, group, timeout_s, failure, segment_p)
                              : fetch(w, group, timeout_s, segment_p);
}
