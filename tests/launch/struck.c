/* Preloaded into the processes of the fault table: faults that no signal of the system makes.
 *
 *     LKS_STRIKE_EXIT     exit(7), wherever the process is
 *     LKS_STRIKE_MEMORY   take memory, until there is none
 *     LKS_STRIKE_CLOCK    set the machine's clock a day ahead, and back with the next signal */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "struck.h"

static volatile sig_atomic_t days;

static void take_memory(void)
{
    enum { PIECE = 1 << 20 };
    for (;;) {
        void *p = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            _exit(1);
        memset(p, 1, PIECE);
    }
}

static void on_strike(int sig)
{
    if (sig == LKS_STRIKE_EXIT)
        _exit(7);
    if (sig == LKS_STRIKE_MEMORY)
        take_memory();
    days = days == 1 ? -1 : 1;
}

__attribute__((constructor)) static void begin(void)
{
    /* On the handlers' own stack, if there is one: oneDNN's products leave no room on theirs. */
    struct sigaction sa = {.sa_handler = on_strike, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaction(LKS_STRIKE_EXIT, &sa, NULL);
    sigaction(LKS_STRIKE_MEMORY, &sa, NULL);
    sigaction(LKS_STRIKE_CLOCK, &sa, NULL);
}

/* --- the clock, for all of the process's libraries ----------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int result = (int)syscall(SYS_clock_gettime, clock, t);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += (time_t)days * 86400;
    return result;
}

time_t time(time_t *result)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_REALTIME, &t);
    if (result != NULL)
        *result = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec t = {0};
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}
