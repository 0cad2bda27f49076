#include "memory.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A mapping of whole pages; the last page, and the space before `data`, are not used. */
struct block {
    char *map, *data; /* NULL: not in use */
    size_t map_bytes, bytes;
    bool released, open;
    const char **running; /* of the device that it belongs to */
};

enum { MOST_BLOCKS = 4096, ALIGN = 64 };

static struct block blocks[MOST_BLOCKS];
static int n_blocks; /* ever in use */
static int n_devices;
static struct sigaction before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the above */

static _Thread_local const char *running; /* what this thread's device runs */
static _Thread_local size_t live, peak;   /* bytes of this thread's device */

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

static struct block *block_at(const void *p)
{
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].map != NULL && (const char *)p >= blocks[i].map &&
            (const char *)p < blocks[i].map + blocks[i].map_bytes)
            return &blocks[i];
    return NULL;
}

static int number_of(const struct block *b)
{
    return (int)(b - blocks) + 1;
}

/* The fault happens again after this, and ends the process. */
static void on_fault(int signo, siginfo_t *info, void *context)
{
    char text[300] = "";
    const struct block *b = block_at(info->si_addr);
    sigaction(SIGSEGV, &before, NULL);
    if (b == NULL)
        return;
    int n = snprintf(text, sizeof text,
                     "deferred: %s touched %p: byte %td of device memory %d, %zu bytes%s\n",
                     *b->running == NULL ? "the host" : *b->running, info->si_addr,
                     (char *)info->si_addr - b->data, number_of(b), b->bytes,
                     b->released ? ", which has been released" : "");
    (void)!write(2, text, (size_t)n);
}

void deferred_memory_start(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    pthread_mutex_lock(&lock);
    if (n_devices++ == 0)
        sigaction(SIGSEGV, &action, &before);
    pthread_mutex_unlock(&lock);
}

void deferred_memory_stop(void)
{
    live = peak = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].map != NULL && blocks[i].running == &running) {
            munmap(blocks[i].map, blocks[i].map_bytes);
            blocks[i] = (struct block){.map = NULL};
        }
    if (--n_devices == 0)
        sigaction(SIGSEGV, &before, NULL);
    pthread_mutex_unlock(&lock);
}

/* A free place for another block. */
static struct block *unused(void)
{
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].map == NULL) {
            n_blocks = i < n_blocks ? n_blocks : i + 1;
            return &blocks[i];
        }
    deferred_die("more than %d allocations", MOST_BLOCKS);
}

void *deferred_memory_alloc(size_t bytes)
{
    size_t used = up(bytes > 0 ? bytes : 1, ALIGN), pages = up(used, page());
    struct block b = {.map_bytes = pages + page(), .bytes = bytes, .running = &running};
    b.map = mmap(NULL, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED)
        return NULL;
    b.data = b.map + pages - used;
    pthread_mutex_lock(&lock);
    *unused() = b;
    pthread_mutex_unlock(&lock);
    live += bytes;
    peak = live > peak ? live : peak;
    return b.data;
}

static struct block *live_block(const char *what, const void *p)
{
    pthread_mutex_lock(&lock);
    struct block *b = block_at(p);
    pthread_mutex_unlock(&lock);
    if (b != NULL && b->released)
        deferred_die("%s names device memory %d, which has been released", what, number_of(b));
    if (b != NULL && b->running != &running)
        deferred_die("%s names device memory %d, which is another device's", what, number_of(b));
    return b;
}

void deferred_memory_release(void *p, size_t bytes)
{
    struct block *b = live_block("release", p);
    if (b == NULL || b->data != p || b->bytes != bytes)
        deferred_die("release of %zu bytes that were not allocated so", bytes);
    b->released = true;
    live -= bytes;
    madvise(b->map, b->map_bytes, MADV_DONTNEED);
}

void deferred_memory_open(const char *what, const int numbers[], int n)
{
    running = what;
    for (int i = 0; i < n; i++) {
        struct block *b = &blocks[numbers[i] - 1]; /* this device's alone, so without the lock */
        if (!b->open)
            mprotect(b->map, b->map_bytes - page(), PROT_READ | PROT_WRITE);
        b->open = true;
    }
}

void deferred_memory_close(void)
{
    if (running == NULL)
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].running == &running && blocks[i].open) {
            mprotect(blocks[i].map, blocks[i].map_bytes - page(), PROT_NONE);
            blocks[i].open = false;
        }
    pthread_mutex_unlock(&lock);
    running = NULL;
}

int deferred_memory_block(const char *what, const void *p, size_t bytes)
{
    const char *from = p, *end = from + (bytes > 0 ? bytes : 1);
    const struct block *b = live_block(what, from), *last = live_block(what, end - 1);
    if (b == NULL && last == NULL)
        return 0;
    if (b != last || from < b->data || end > b->data + up(b->bytes > 0 ? b->bytes : 1, ALIGN))
        deferred_die("%s: %zu bytes at %p are not inside device memory %d", what, bytes, p,
                     number_of(b != NULL ? b : last));
    return number_of(b);
}

size_t deferred_memory_peak(void)
{
    return peak;
}

int deferred_memory_count(void)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_blocks; i++)
        n += blocks[i].running == &running && !blocks[i].released;
    pthread_mutex_unlock(&lock);
    return n;
}
