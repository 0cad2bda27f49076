#include "base/system/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- faults, for tests ------------------------------------------------------------------- */

enum call {
#define X(name) CALL_##name,
    LKS__SYS_CALLS(X)
#undef X
        CALL_any,
    N_CALLS
};

static const char *const call_names[N_CALLS] = {
#define X(name) #name,
    LKS__SYS_CALLS(X)
#undef X
        "any",
};

enum fault {
    FAULT_NONE,
    FAULT_ERRNO,
    FAULT_SHORT,
    FAULT_DIE,
    FAULT_DIE_AFTER,
    FAULT_SIGNAL,
    FAULT_LATE
};

struct rule {
    enum call call;
    unsigned long n;
    enum fault fault;
    int err;
};

enum { MAX_RULES = 16 };
#define EVERY ULONG_MAX /* n of a rule that hits every call */

static struct rule rules[MAX_RULES];
static int n_rules;
static atomic_ulong counts[N_CALLS];
static pthread_once_t rules_once = PTHREAD_ONCE_INIT;

static const struct {
    const char *name;
    enum fault fault;
    int err;
} fault_names[] = {
    {"ENOSPC", FAULT_ERRNO, ENOSPC}, {"EDQUOT", FAULT_ERRNO, EDQUOT},
    {"EIO", FAULT_ERRNO, EIO},       {"ENOMEM", FAULT_ERRNO, ENOMEM},
    {"EMFILE", FAULT_ERRNO, EMFILE}, {"EACCES", FAULT_ERRNO, EACCES},
    {"EPERM", FAULT_ERRNO, EPERM},   {"EOPNOTSUPP", FAULT_ERRNO, EOPNOTSUPP},
    {"EROFS", FAULT_ERRNO, EROFS},   {"EINVAL", FAULT_ERRNO, EINVAL},
    {"EXDEV", FAULT_ERRNO, EXDEV},   {"short", FAULT_SHORT, ENOSPC},
    {"die", FAULT_DIE, EIO},         {"die-after", FAULT_DIE_AFTER, EIO},
    {"term", FAULT_SIGNAL, SIGTERM}, {"usr1", FAULT_SIGNAL, SIGUSR1},
    {"slow", FAULT_LATE, 400},       {"slower", FAULT_LATE, 2500},
    {"hang", FAULT_LATE, -1}, /* milliseconds */
};

static void restart_counts(void)
{
    for (int i = 0; i < N_CALLS; i++)
        atomic_store(&counts[i], 0);
}

static bool parse_rule(char *text, struct rule *rule)
{
    char *n_text = strchr(text, ':');
    char *what = n_text ? strchr(n_text + 1, ':') : NULL;
    if (!what)
        return false;
    *n_text++ = '\0';
    *what++ = '\0';

    int call = 0;
    while (call < N_CALLS && strcmp(call_names[call], text) != 0)
        call++;
    char *end = n_text;
    const bool every = strcmp(n_text, "*") == 0;
    unsigned long n = every ? EVERY : strtoul(n_text, &end, 10);
    size_t f = 0, n_faults = sizeof fault_names / sizeof fault_names[0];
    while (f < n_faults && strcmp(fault_names[f].name, what) != 0)
        f++;
    if (call == N_CALLS || n == 0 || (!every && *end) || f == n_faults)
        return false;
    *rule = (struct rule){(enum call)call, n, fault_names[f].fault, fault_names[f].err};
    return true;
}

static void parse_rules(void)
{
    const char *env = getenv("LOCKSTEP_FAULT");
    char text[1024], *save = NULL;
    if (!env || !*env)
        return;
    bool ok = strlen(env) < sizeof text;
    if (ok) {
        memcpy(text, env, strlen(env) + 1);
        for (char *r = strtok_r(text, ",", &save); r && ok; r = strtok_r(NULL, ",", &save))
            ok = n_rules < MAX_RULES && parse_rule(r, &rules[n_rules]) && ++n_rules;
    }
    /* An unused rule would let a test pass without testing anything. */
    if (!ok)
        fprintf(stderr,
                "lockstep: rule %d of LOCKSTEP_FAULT is not CALL:N:WHAT, with the words of "
                "src/base/system/sys.h, or it is one too many\n",
                n_rules + 1);
    /* Each process counts its own calls, including a rank that the launcher forked. */
    if (n_rules > 0)
        pthread_atfork(NULL, NULL, restart_counts);
}

/* Count a call. If a planted fault hits it, set errno to the call's error. */
static enum fault fault_of(enum call call)
{
    pthread_once(&rules_once, parse_rules);
    if (n_rules == 0)
        return FAULT_NONE;
    unsigned long n = atomic_fetch_add(&counts[call], 1) + 1;
    unsigned long n_any = atomic_fetch_add(&counts[CALL_any], 1) + 1;
    for (int i = 0; i < n_rules; i++) {
        const struct rule *rule = &rules[i];
        if (rule->call != CALL_any && rule->call != call)
            continue;
        if (rule->n != EVERY && rule->n != (rule->call == CALL_any ? n_any : n))
            continue;
        const char *only = getenv("LOCKSTEP_FAULT_RANK"), *rank = getenv("RANK");
        if (only && (!rank || strcmp(only, rank) != 0))
            continue;
        if (rule->fault == FAULT_DIE)
            kill(getpid(), SIGKILL);
        if (rule->fault == FAULT_SIGNAL)
            kill(getpid(), rule->err);
        /* A signal, which may come late, doesn't end a hang. */
        while (rule->fault == FAULT_LATE && poll(NULL, 0, rule->err) < 0 && rule->err < 0)
            ;
        if (rule->fault == FAULT_SIGNAL || rule->fault == FAULT_LATE)
            return FAULT_NONE;
        errno = rule->err;
        return rule->fault;
    }
    return FAULT_NONE;
}

/* Wraps every call: cause a fault instead of it, or make the call (again on EINTR), or die after
 * it. */
#define FAULTY(name, failed, expr)                                                                 \
    do {                                                                                           \
        __typeof__(expr) result;                                                                   \
        const enum fault fault = fault_of(CALL_##name);                                            \
        if (fault == FAULT_ERRNO || fault == FAULT_SHORT)                                          \
            return (failed);                                                                       \
        do                                                                                         \
            result = (expr);                                                                       \
        while (result == (failed) && errno == EINTR);                                              \
        if (fault == FAULT_DIE_AFTER)                                                              \
            kill(getpid(), SIGKILL);                                                               \
        return result;                                                                             \
    } while (0)

/* ---- progress ---------------------------------------------------------------------------- */

static _Thread_local lks__beat progress;

/* Bytes per system call: any disk transfers this much in less than a deadline. */
enum { TRANSFER = 16 << 20 };

void lks__sys_on_progress(lks__beat beat)
{
    progress = beat;
}

void lks__sys_progress(void)
{
    lks__beat_now(&progress);
}

static size_t piece(size_t bytes)
{
    return bytes < TRANSFER ? bytes : TRANSFER;
}

static _Thread_local bool (*stop_asked)(void);

void lks__sys_stop_when(bool (*asked)(void))
{
    stop_asked = asked;
}

static bool stopped(void)
{
    if (stop_asked == NULL || !stop_asked())
        return false;
    errno = ECANCELED;
    return true;
}

lks_status lks__sys_stop_check(void)
{
    return stopped() ? lks__fail(LKS_ERR_STOPPED, "the work was stopped") : LKS_OK;
}

static _Thread_local int (*give_up_asked)(int other);

void lks__sys_give_up_when(int (*asked)(int other))
{
    give_up_asked = asked;
}

int lks__sys_give_up_signal(int other)
{
    return give_up_asked != NULL ? give_up_asked(other) : 0;
}

lks_status lks__sys_give_up_check(void)
{
    return lks__sys_give_up_signal(0) != 0 ? lks__fail(LKS_ERR_STOPPED, "the wait was given up")
                                           : LKS_OK;
}

/* ---- the calls --------------------------------------------------------------------------- */

int lks__sys_open(const char *path, int flags, mode_t mode)
{
    FAULTY(open, -1, open(path, flags | O_CLOEXEC, mode));
}

int lks__sys_close(int fd)
{
    /* Linux has closed it even on EINTR: never try again. */
    return fd < 0 ? 0 : close(fd);
}

int lks__sys_read_at(int fd, void *buf, size_t bytes, uint64_t offset)
{
    enum fault fault = fault_of(CALL_read);
    if (fault == FAULT_ERRNO)
        return -1;
    size_t want = fault == FAULT_SHORT ? bytes / 2 : bytes, done = 0;
    if (offset > INT64_MAX || bytes > INT64_MAX - offset) {
        errno = EOVERFLOW;
        return -1;
    }
    while (done < want) {
        if (stopped())
            return -1;
        ssize_t n = pread(fd, (char *)buf + done, piece(want - done), (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
        lks__beat_now(&progress);
    }
    if (fault == FAULT_DIE_AFTER)
        kill(getpid(), SIGKILL);
    if (done == bytes)
        return 0;
    errno = 0;
    return -1;
}

ssize_t lks__sys_read_some(int fd, void *buf, size_t bytes)
{
    enum { LOOK_MS = 100 }; /* interval between checks for a request to stop */
    if (fault_of(CALL_read) == FAULT_ERRNO)
        return -1;
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (stopped())
            return -1;
        int n = poll(&ready, 1, LOOK_MS);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n <= 0)
            continue;
        ssize_t got = read(fd, buf, piece(bytes));
        if (got >= 0 || (errno != EINTR && errno != EAGAIN))
            return got;
    }
}

int lks__sys_write_all(int fd, const void *buf, size_t bytes)
{
    enum fault fault = fault_of(CALL_write);
    if (fault == FAULT_ERRNO)
        return -1;
    size_t want = fault == FAULT_SHORT ? bytes / 2 : bytes, done = 0;
    while (done < want) {
        if (stopped())
            return -1;
        ssize_t n = write(fd, (const char *)buf + done, piece(want - done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        done += (size_t)n;
        lks__beat_now(&progress);
    }
    if (fault == FAULT_DIE_AFTER)
        kill(getpid(), SIGKILL);
    if (fault == FAULT_SHORT) {
        errno = ENOSPC;
        return -1;
    }
    return 0;
}

static int sync_file(int fd)
{
    FAULTY(fsync, -1, fsync(fd));
}

int lks__sys_fsync(int fd)
{
    int result = sync_file(fd), err = errno;
    lks__beat_now(&progress);
    errno = err;
    return result;
}

int lks__sys_fdatasync(int fd)
{
    FAULTY(fdatasync, -1, fdatasync(fd));
}

int lks__sys_rename(const char *from, const char *to)
{
    FAULTY(rename, -1, rename(from, to));
}

int lks__sys_mkdir(const char *path, mode_t mode)
{
    FAULTY(mkdir, -1, mkdir(path, mode));
}

int lks__sys_unlink(const char *path)
{
    FAULTY(unlink, -1, unlink(path));
}

int lks__sys_rmdir(const char *path)
{
    FAULTY(unlink, -1, rmdir(path));
}

int lks__sys_symlink(const char *target, const char *path)
{
    FAULTY(symlink, -1, symlink(target, path));
}

int lks__sys_truncate(int fd, uint64_t bytes)
{
    FAULTY(truncate, -1, ftruncate(fd, (off_t)bytes));
}

int lks__sys_lock(int fd, int part)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = part, .l_len = 1};
    FAULTY(lock, -1, fcntl(fd, F_OFD_SETLK, &lock));
}

bool lks__sys_is_locked(int fd, int part)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = part, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int lks__sys_memfd(const char *name)
{
    FAULTY(memfd, -1, memfd_create(name, MFD_ALLOW_SEALING));
}

int lks__sys_fallocate(int fd, uint64_t offset, uint64_t bytes)
{
    FAULTY(fallocate, -1, fallocate(fd, 0, (off_t)offset, (off_t)bytes));
}

static void *map_or_null(size_t bytes, int prot, int flags, int fd, uint64_t offset)
{
    void *p = mmap(NULL, bytes, prot, flags, fd, (off_t)offset);
    return p == MAP_FAILED ? NULL : p;
}

void *lks__sys_mmap(size_t bytes, int prot, int flags, int fd, uint64_t offset)
{
    FAULTY(mmap, NULL, map_or_null(bytes, prot, flags, fd, offset));
}

void lks__sys_munmap(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes);
}

char lks__sys_process_state(pid_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    /* "PID (NAME) STATE ..."; the name may contain brackets */
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

int lks__sys_socket(int domain, int type)
{
    FAULTY(socket, -1, socket(domain, type | SOCK_CLOEXEC, 0));
}

int lks__sys_bind(int fd, const struct sockaddr *addr, socklen_t bytes)
{
    FAULTY(bind, -1, bind(fd, addr, bytes));
}

int lks__sys_listen(int fd, int backlog)
{
    FAULTY(listen, -1, listen(fd, backlog));
}

int lks__sys_accept(int fd)
{
    FAULTY(accept, -1, accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

int lks__sys_connect(int fd, const struct sockaddr *addr, socklen_t bytes)
{
    FAULTY(connect, -1, connect(fd, addr, bytes));
}

ssize_t lks__sys_send(int fd, const void *buf, size_t bytes)
{
    FAULTY(send, -1, send(fd, buf, bytes, MSG_NOSIGNAL));
}

ssize_t lks__sys_recv(int fd, void *buf, size_t bytes)
{
    FAULTY(recv, -1, recv(fd, buf, bytes, 0));
}

bool lks__sys_field(const char *path, const char *key, uint64_t *value_p)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    char line[256];
    size_t key_len = strlen(key);
    bool found = false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, key_len) != 0 || (line[key_len] != ':' && line[key_len] != ' '))
            continue;
        char *end;
        errno = 0;
        unsigned long long v = strtoull(line + key_len + 1, &end, 10);
        found = errno == 0 && end != line + key_len + 1;
        if (found)
            *value_p = strstr(end, "kB") != NULL ? v * 1024 : v;
    }
    fclose(f);
    return found;
}

uint64_t lks__sys_proc_bytes(const char *path, const char *key)
{
    uint64_t bytes = 0;
    return lks__sys_field(path, key, &bytes) ? bytes : 0;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double lks__sys_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

size_t lks__sys_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

double lks__sys_cpu_seconds(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

double lks__sys_wall(void)
{
    return seconds_of(CLOCK_REALTIME);
}
