/* Preloaded into a child: makes its n-th allocation fail, also those of the C library and of other
 * libraries.
 *
 *     LKS_FAIL_ALLOC=N    the N-th allocation fails; N+: and all later ones
 *     LKS_FAIL_RANK=R     only in the process with RANK=R ("": in the one without)
 *     LKS_ALLOC_COUNT=F   at its end the process writes the number of its allocations to file F */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's functions, under the names that it exports for this purpose. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t unit, size_t bytes);

static atomic_ulong count;
static unsigned long fail_at;
static bool all_behind;
static const char *count_file;

__attribute__((constructor)) static void begin(void)
{
    const char *n = getenv("LKS_FAIL_ALLOC"), *rank = getenv("RANK");
    const char *only = getenv("LKS_FAIL_RANK");
    if (only != NULL && strcmp(only, rank != NULL ? rank : "") != 0)
        return;
    count_file = getenv("LKS_ALLOC_COUNT");
    if (n != NULL) {
        fail_at = strtoul(n, NULL, 10);
        all_behind = strchr(n, '+') != NULL;
    }
    atomic_store(&count, 0);
}

__attribute__((destructor)) static void end(void)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%lu\n", atomic_load(&count));
    int fd = count_file != NULL ? open(count_file, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd >= 0) {
        (void)!write(fd, text, (size_t)n);
        close(fd);
    }
}

static bool fails(void)
{
    unsigned long n = atomic_fetch_add(&count, 1) + 1;
    if (fail_at == 0 || (all_behind ? n < fail_at : n != fail_at))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(p, bytes);
}

void *memalign(size_t unit, size_t bytes);
void *memalign(size_t unit, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(unit, bytes);
}

void *aligned_alloc(size_t unit, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(unit, bytes);
}

int posix_memalign(void **p, size_t unit, size_t bytes)
{
    if (fails())
        return ENOMEM;
    void *block = __libc_memalign(unit, bytes);
    if (block == NULL)
        return ENOMEM;
    *p = block;
    return 0;
}
