#include "memory.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A mapping of whole pages; the last page, and the space before `data`, belong to nobody. */
struct block {
    char *map, *data;
    size_t map_bytes, bytes;
    bool released;
};

enum { MOST_BLOCKS = 4096, ALIGN = 64 };

static struct block blocks[MOST_BLOCKS];
static int n_blocks;
static const char *running;
static struct sigaction before;

void deferred_die(const char *fmt, ...)
{
    const char *rank = getenv("RANK");
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "deferred%s%s: ", rank == NULL ? "" : ", rank ", rank == NULL ? "" : rank);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    fflush(stderr);
    abort();
}

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static const struct block *block_at(const void *p)
{
    for (int i = 0; i < n_blocks; i++)
        if ((const char *)p >= blocks[i].map &&
            (const char *)p < blocks[i].map + blocks[i].map_bytes)
            return &blocks[i];
    return NULL;
}

/* The fault comes again after this, and ends the process. */
static void on_fault(int signo, siginfo_t *info, void *context)
{
    char text[300] = "";
    const struct block *b = block_at(info->si_addr);
    sigaction(SIGSEGV, &before, NULL);
    if (b == NULL)
        return;
    int n = snprintf(
        text, sizeof text, "deferred: %s touched %p: byte %td of device memory %d, %zu bytes%s\n",
        running == NULL ? "the host" : running, info->si_addr, (char *)info->si_addr - b->data,
        (int)(b - blocks) + 1, b->bytes, b->released ? ", which has been released" : "");
    (void)!write(2, text, (size_t)n);
}

void deferred_memory_start(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, &before);
}

void deferred_memory_stop(void)
{
    for (int i = 0; i < n_blocks; i++)
        munmap(blocks[i].map, blocks[i].map_bytes);
    n_blocks = 0;
    sigaction(SIGSEGV, &before, NULL);
}

void *deferred_memory_alloc(size_t bytes)
{
    if (n_blocks == MOST_BLOCKS)
        deferred_die("more than %d allocations", MOST_BLOCKS);
    size_t used = up(bytes > 0 ? bytes : 1, ALIGN), pages = up(used, page());
    struct block b = {.map_bytes = pages + page(), .bytes = bytes};
    b.map = mmap(NULL, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED)
        return NULL;
    b.data = b.map + pages - used;
    blocks[n_blocks++] = b;
    return b.data;
}

static struct block *live_block(const char *what, const void *p)
{
    struct block *b = (struct block *)block_at(p);
    if (b != NULL && b->released)
        deferred_die("%s names device memory %d, which has been released", what,
                     (int)(b - blocks) + 1);
    return b;
}

void deferred_memory_release(void *p, size_t bytes)
{
    struct block *b = live_block("release", p);
    if (b == NULL || b->data != p || b->bytes != bytes)
        deferred_die("release of %zu bytes that were not allocated so", bytes);
    b->released = true;
    madvise(b->map, b->map_bytes, MADV_DONTNEED);
}

void deferred_memory_open(const char *what)
{
    if ((running == NULL) != (what == NULL))
        for (int i = 0; i < n_blocks; i++)
            if (!blocks[i].released)
                mprotect(blocks[i].map, blocks[i].map_bytes - page(),
                         what == NULL ? PROT_NONE : PROT_READ | PROT_WRITE);
    running = what;
}

int deferred_memory_block(const char *what, const void *p, size_t bytes)
{
    const char *from = p, *end = from + (bytes > 0 ? bytes : 1);
    const struct block *b = live_block(what, from), *last = live_block(what, end - 1);
    if (b == NULL && last == NULL)
        return 0;
    if (b != last || from < b->data || end > b->data + up(b->bytes > 0 ? b->bytes : 1, ALIGN))
        deferred_die("%s: %zu bytes at %p are not inside device memory %d", what, bytes, p,
                     (int)((b != NULL ? b : last) - blocks) + 1);
    return (int)(b - blocks) + 1;
}

int deferred_memory_count(void)
{
    int n = 0;
    for (int i = 0; i < n_blocks; i++)
        n += !blocks[i].released;
    return n;
}
