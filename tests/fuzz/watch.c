/* Built without instrumentation, because otherwise it would count its own code. */
#include "watch.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* ---- code: gcc's -fsanitize-coverage=trace-pc calls this in every block ---------------------- */

static unsigned char seen[1 << 16];
static uintptr_t before;
static bool reached_new;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uintptr_t edge = (here * 0x9E3779B1u ^ before) >> 3 & (sizeof seen - 1);
    before = here * 0x9E3779B1u >> 1;
    if (!seen[edge])
        seen[edge] = reached_new = 1;
}

/* ---- memory: counted by the address sanitizer's hooks; otherwise the peak of the process ----- */

static size_t live, peak, allowed;

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *))
    __attribute__((weak));
size_t __sanitizer_get_allocated_size(const volatile void *p) __attribute__((weak));

static void on_malloc(const volatile void *p, size_t bytes)
{
    size_t now = __atomic_add_fetch(&live, bytes, __ATOMIC_RELAXED);
    if (p != NULL && (intptr_t)now > (intptr_t)peak)
        peak = now;
}

static void on_free(const volatile void *p)
{
    if (p != NULL)
        __atomic_sub_fetch(&live, __sanitizer_get_allocated_size(p), __ATOMIC_RELAXED);
}

static size_t process_peak(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}

static bool hooked(void)
{
    static int state;
    if (state == 0)
        state = __sanitizer_install_malloc_and_free_hooks != NULL &&
                        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0
                    ? 1
                    : -1;
    return state > 0;
}

void watch_begin(size_t bytes)
{
    allowed = 2 * bytes + ((size_t)64 << 20);
    before = 0;
    reached_new = false;
    if (hooked())
        live = peak = 0;
    else if (peak == 0)
        peak = process_peak(); /* of a process that has done nothing yet */
}

bool watch_end(void)
{
    size_t taken = hooked() ? peak : process_peak() - peak;
    if (taken > allowed) {
        fprintf(stderr, "it took %zu bytes of memory, %zu are allowed\n", taken, allowed);
        abort();
    }
    return reached_new;
}
