#include "comm/shm/segment/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/number/checked.h"
#include "base/system/memory.h"
#include "base/system/sys.h"
#include "comm/shm/segment/segment_layout.h"

enum { MAGIC = 0x6c6b7353, VERSION = 7 };

struct region {
    uint64_t offset, bytes;
    void *mem;
    int users;
};

struct lks__segment {
    atomic_int refs;
    int fd;
    struct stat file; /* of fd when it was opened */
    int world_size;
    char *base;
    pthread_mutex_t lock; /* guards the list of regions */
    struct region *regions;
    size_t n_regions;
};

/* Offsets of the parts of the base, computed from the number of ranks. */
struct layout {
    size_t lines, slots, descs, bounces, end;
};

static struct layout layout_for(int world_size)
{
    size_t W = (size_t)world_size;
    struct layout l;
    l.lines = lks__round_up(sizeof(struct lks__segment_header), LKS__SHM_PAGE);
    l.slots = lks__round_up(l.lines + W * sizeof(struct lks__rank_line), LKS__SHM_PAGE);
    l.descs = lks__round_up(l.slots + LKS__SHM_SLOTS * sizeof(struct lks__shm_slot), LKS__SHM_PAGE);
    l.bounces = lks__round_up(l.descs + W * LKS__SHM_SLOTS * sizeof(struct lks__shm_descriptor),
                              LKS__SHM_PAGE);
    l.end = l.bounces + W * 2 * LKS__SHM_BOUNCE;
    return l;
}

uint64_t lks__segment_base_bytes(int world_size)
{
    return layout_for(world_size).end;
}

/* --- offsets ------------------------------------------------------------------------------ */

int lks__segment_fd(const lks__segment *s)
{
    return s->fd;
}

int lks__segment_world_size(const lks__segment *s)
{
    return s->world_size;
}

struct lks__segment_header *lks__segment_header(const lks__segment *s)
{
    return (struct lks__segment_header *)s->base;
}

struct lks__rank_line *lks__segment_line(const lks__segment *s, int rank)
{
    return (struct lks__rank_line *)(s->base + layout_for(s->world_size).lines) + rank;
}

struct lks__shm_slot *lks__segment_slot(const lks__segment *s, uint32_t seq)
{
    return (struct lks__shm_slot *)(s->base + layout_for(s->world_size).slots) +
           seq % LKS__SHM_SLOTS;
}

struct lks__shm_descriptor *lks__segment_descriptor(const lks__segment *s, int rank, uint32_t seq)
{
    return (struct lks__shm_descriptor *)(s->base + layout_for(s->world_size).descs) +
           (size_t)rank * LKS__SHM_SLOTS + seq % LKS__SHM_SLOTS;
}

void *lks__segment_bounce(const lks__segment *s, int rank, int half)
{
    return s->base + layout_for(s->world_size).bounces +
           ((size_t)rank * 2 + (size_t)half) * LKS__SHM_BOUNCE;
}

/* --- memory ------------------------------------------------------------------------------- */

static bool is_same_file(const lks__segment *s)
{
    struct stat info;
    return fstat(s->fd, &info) == 0 && info.st_dev == s->file.st_dev &&
           info.st_ino == s->file.st_ino;
}

/* A program may close descriptors that it doesn't know, and then open files of its own. */
static lks_status check_file(const lks__segment *s)
{
    if (is_same_file(s))
        return LKS_OK;
    return lks__fail(LKS_ERR_IO,
                     "the ranks' shared memory can't grow: the program has closed its descriptor, "
                     "%d, perhaps by closefrom() or close_range(): open the group after that",
                     s->fd);
}

lks_status lks__segment_fits(uint64_t bytes)
{
    uint64_t room = lks__memory_available();
    if (bytes <= room)
        return LKS_OK;
    return lks__fail(LKS_ERR_NOMEM,
                     "can't reserve %.1f MB of shared memory: only %.1f MB are available to "
                     "this machine or container; use a smaller model or batch, fewer ranks, "
                     "or a higher memory limit",
                     (double)bytes / 1e6, (double)room / 1e6);
}

static const char *reserve_advice(int err)
{
    return err == EFBIG ? "raise the limit on file sizes (ulimit -f)"
           : err == ENOMEM || err == ENOSPC
               ? "use a smaller model or batch, fewer ranks, or a higher memory limit"
               : "the system, or a sandbox around this process, must allow fallocate()";
}

lks_status lks__segment_reserve(lks__segment *s, uint64_t offset, uint64_t bytes)
{
    if (bytes == 0)
        return LKS_OK;
    LKS__TRY(check_file(s));
    sigset_t before;
    lks__sys_limit_begin(&before);
    const int rc = lks__sys_fallocate(s->fd, offset, bytes), err = errno;
    lks__sys_limit_end(&before);
    if (rc == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_NOMEM,
                     "can't reserve %.1f MB of shared memory (at %.1f MB of the job's segment): "
                     "%s; %s",
                     (double)bytes / 1e6, (double)offset / 1e6, strerror(err), reserve_advice(err));
}

lks_status lks__segment_extend(lks__segment *s, uint64_t end)
{
    struct stat info;
    LKS__TRY(check_file(s));
    if (fstat(s->fd, &info) == 0 && (uint64_t)info.st_size >= end)
        return LKS_OK;
    if (lks__sys_truncate(s->fd, end) == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_NOMEM, "can't make the ranks' shared segment %.1f MB long: %s",
                     (double)end / 1e6, strerror(errno));
}

void lks__segment_release(lks__segment *s, uint64_t offset, uint64_t bytes)
{
    if (bytes > 0 && is_same_file(s))
        (void)fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                        (off_t)bytes);
}

static void *map_shared(lks__segment *s, uint64_t offset, uint64_t bytes)
{
    return lks__sys_mmap(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, offset);
}

lks_status lks__segment_map(lks__segment *s, uint64_t offset, uint64_t bytes, void **mem_p)
{
    lks_status st = check_file(s);
    if (st != LKS_OK)
        return st;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_regions; i++) {
        if (s->regions[i].offset != offset || s->regions[i].bytes != bytes)
            continue;
        s->regions[i].users++;
        *mem_p = s->regions[i].mem;
        goto out;
    }
    struct region *regions = realloc(s->regions, (s->n_regions + 1) * sizeof *regions);
    void *mem = NULL;
    if (regions != NULL) {
        s->regions = regions;
        mem = map_shared(s, offset, bytes);
    }
    if (mem == NULL) {
        st = lks__fail(LKS_ERR_NOMEM,
                       "can't map %.1f MB of shared memory: %s; raise the limit on address space "
                       "(ulimit -v) or use a smaller model",
                       (double)bytes / 1e6, strerror(errno));
        goto out;
    }
    regions[s->n_regions++] = (struct region){offset, bytes, mem, 1};
    *mem_p = mem;
out:
    pthread_mutex_unlock(&s->lock);
    return st;
}

void lks__segment_unmap(lks__segment *s, void *mem)
{
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_regions; i++) {
        struct region *r = &s->regions[i];
        if (r->mem != mem || --r->users > 0)
            continue;
        lks__sys_munmap(r->mem, r->bytes);
        *r = s->regions[--s->n_regions];
        break;
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- create, inherit, close --------------------------------------------------------------- */

/* Map the base of `fd`. Takes the descriptor over on success. */
static lks_status adopt(int fd, int world_size, lks__segment **segment_p)
{
    const size_t base_bytes = layout_for(world_size).end;
    lks__segment *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "for the shared segment's handle");
    s->fd = fd;
    (void)fstat(fd, &s->file);
    s->world_size = world_size;
    s->base = map_shared(s, 0, base_bytes);
    if (s->base == NULL) {
        free(s);
        return lks__fail(LKS_ERR_NOMEM, "can't map the %.1f MB of the ranks' shared segment: %s",
                         (double)base_bytes / 1e6, strerror(errno));
    }
    atomic_init(&s->refs, 1);
    pthread_mutex_init(&s->lock, NULL);
    *segment_p = s;
    return LKS_OK;
}

lks_status lks__segment_create(int world_size, lks__segment **segment_p)
{
    if (world_size < 1 || world_size > LKS__SEGMENT_MAX_RANKS)
        return lks__fail(LKS_ERR_ARG, "%d ranks on one host: 1 to %d are possible", world_size,
                         LKS__SEGMENT_MAX_RANKS);
    const size_t base_bytes = layout_for(world_size).end;
    LKS__TRY(lks__segment_fits(base_bytes));
    uint64_t token;
    if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        return lks__fail(LKS_ERR_IO, "can't draw the job's token: %s", strerror(errno));
    int fd = lks__sys_memfd("lockstep");
    if (fd < 0)
        return lks__fail(LKS_ERR_NOMEM,
                         "can't make shared memory for %d ranks (memfd_create): %s; the kernel "
                         "must allow memfds",
                         world_size, lks__sys_reason(errno));
    struct lks__segment probe = {.fd = fd};
    (void)fstat(fd, &probe.file);
    lks_status st = lks__segment_reserve(&probe, 0, base_bytes);
    if (st == LKS_OK && fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        st = lks__fail(LKS_ERR_IO, "can't mark the shared segment close-on-exec: %s",
                       strerror(errno));
    if (st == LKS_OK && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
        st = lks__fail(LKS_ERR_SUPPORT, "can't seal the shared segment against shrinking: %s",
                       strerror(errno));
    LKS__THEN(st, adopt(fd, world_size, segment_p));
    if (st != LKS_OK) {
        lks__sys_close(fd);
        return st;
    }
    struct lks__segment_header *h = lks__segment_header(*segment_p);
    h->magic = MAGIC;
    h->version = VERSION;
    h->world_size = (uint32_t)world_size;
    h->token = token;
    h->base_bytes = base_bytes;
    return LKS_OK;
}

void lks__segment_env(const lks__segment *s, char *text)
{
    snprintf(text, LKS__SEGMENT_ENV_BYTES, "%d:%016llx", s->fd,
             (unsigned long long)lks__segment_header(s)->token);
}

static bool parse_env(const char *text, int *fd_p, uint64_t *token_p)
{
    char *end;
    errno = 0;
    long fd = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != ':' || fd < 0 || fd > INT32_MAX)
        return false;
    const char *digits = end + 1;
    if (strlen(digits) != 16 || strspn(digits, "0123456789abcdef") != 16)
        return false;
    *fd_p = (int)fd;
    *token_p = strtoull(digits, NULL, 16);
    return true;
}

/* Check that `fd` is the segment that has this token and is made for `world_size` ranks. */
static lks_status check_segment(int fd, uint64_t token, int world_size)
{
    static const char lost[] =
        "; a program between the launcher and this one may have closed the descriptor: start "
        "the ranks directly with `lockstep train` or `lockstep run`";
    const size_t base_bytes = layout_for(world_size).end;
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &info) != 0 ||
        !S_ISREG(info.st_mode))
        return lks__fail(LKS_ERR_FORMAT,
                         "descriptor %d of " LKS__SEGMENT_ENV " is not the job's shared segment%s",
                         fd, lost);
    struct lks__segment_header h;
    if ((uint64_t)info.st_size < sizeof h || lks__sys_read_at(fd, &h, sizeof h, 0) != 0 ||
        h.magic != MAGIC || h.token != token)
        return lks__fail(LKS_ERR_FORMAT,
                         "descriptor %d of " LKS__SEGMENT_ENV " holds another job's memory%s", fd,
                         lost);
    if (h.version != VERSION)
        return lks__fail(LKS_ERR_FORMAT,
                         "the shared segment has version %u, this program needs version %d: the "
                         "launcher and the program come from different builds of lockstep",
                         h.version, VERSION);
    if (h.world_size != (uint32_t)world_size)
        return lks__fail(LKS_ERR_CONFIG,
                         "WORLD_SIZE is %d, but the launcher made shared memory for %u ranks",
                         world_size, h.world_size);
    if (h.base_bytes != base_bytes || (uint64_t)info.st_size < base_bytes)
        return lks__fail(LKS_ERR_FORMAT,
                         "the shared segment has a base of %llu bytes, %zu are expected: the "
                         "launcher and the program come from different builds of lockstep",
                         (unsigned long long)h.base_bytes, base_bytes);
    return LKS_OK;
}

lks_status lks__segment_attach(const char *text, int world_size, lks__segment **segment_p)
{
    int fd;
    uint64_t token;
    if (!parse_env(text, &fd, &token))
        return lks__fail(LKS_ERR_FORMAT,
                         LKS__SEGMENT_ENV " is not of the form FD:TOKEN; it is set by lockstep's "
                                          "launcher and not to be set by hand");
    LKS__TRY(check_segment(fd, token, world_size));
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return lks__fail(LKS_ERR_IO, "can't mark descriptor %d close-on-exec: %s", fd,
                         strerror(errno));
    return adopt(fd, world_size, segment_p);
}

lks_status lks__segment_inherit(int world_size, lks__segment **segment_p)
{
    const char *env = getenv(LKS__SEGMENT_ENV);
    if (env == NULL || env[0] == '\0')
        return lks__fail(LKS_ERR_SUPPORT,
                         "the %d ranks have no shared memory (" LKS__SEGMENT_ENV
                         " is not set, or was used already): start them with `lockstep train "
                         "--nproc_per_node=%d` or "
                         "`lockstep run --nproc-per-node=%d PROGRAM`",
                         world_size, world_size, world_size);
    LKS__TRY(lks__segment_attach(env, world_size, segment_p));
    /* The descriptor is ours now: hide it from a second group and from our children. */
    unsetenv(LKS__SEGMENT_ENV);
    return LKS_OK;
}

void lks__segment_offer(const lks__segment *s, char offer[LKS__SEGMENT_OFFER_BYTES])
{
    char env[LKS__SEGMENT_ENV_BYTES];
    lks__segment_env(s, env);
    snprintf(offer, LKS__SEGMENT_OFFER_BYTES, "%d:%s", (int)getpid(), env);
}

lks_status lks__segment_take(const char *offer, int world_size, lks__segment **segment_p)
{
    int pid, fd;
    char token[20], path[64], env[LKS__SEGMENT_ENV_BYTES];
    if (sscanf(offer, "%d:%d:%17s", &pid, &fd, token) != 3)
        return lks__fail(LKS_ERR_FORMAT, "the first rank of this host sent no segment's name");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    const int own = lks__sys_open(path, O_RDWR, 0);
    if (own < 0 && errno == ENOENT)
        return lks__fail(LKS_ERR_PEER, "the first rank of this host, process %d, has ended", pid);
    if (own < 0)
        return lks__sys_fail("can't open the shared memory of this host's first rank,", path);
    snprintf(env, sizeof env, "%d:%s", own, token);
    lks_status st = lks__segment_attach(env, world_size, segment_p);
    if (st != LKS_OK)
        lks__sys_close(own);
    return st;
}

lks__segment *lks__segment_ref(lks__segment *s)
{
    atomic_fetch_add(&s->refs, 1);
    return s;
}

void lks__segment_close(lks__segment *s)
{
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    for (size_t i = 0; i < s->n_regions; i++)
        lks__sys_munmap(s->regions[i].mem, s->regions[i].bytes);
    lks__sys_munmap(s->base, layout_for(s->world_size).end);
    if (is_same_file(s))
        lks__sys_close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s->regions);
    free(s);
}
