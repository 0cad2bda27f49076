#include "base/system/early.h"

#include <string.h>

static sigset_t added; /* all zeros: the empty set */

void lks__early_hold(void)
{
    static const int held[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t before;
    sigprocmask(SIG_SETMASK, NULL, &before);
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        if (!sigismember(&before, held[i]))
            sigaddset(&added, held[i]);
    sigprocmask(SIG_BLOCK, &added, NULL);
}

void lks__early_release(void)
{
    sigprocmask(SIG_UNBLOCK, &added, NULL);
    sigemptyset(&added);
}

void lks__early_subtract(sigset_t *mask)
{
    for (int sig = 1; sig < 64; sig++)
        if (sigismember(&added, sig) == 1)
            sigdelset(mask, sig);
}

void lks__late_add(const sigset_t *blocked, sigset_t *mask)
{
    static const int requests[] = {SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        if (sigismember(blocked, requests[i]) == 1)
            sigaddset(mask, requests[i]);
}

bool lks__signal_is_ignored(int sig)
{
    struct sigaction now;
    return sigaction(sig, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
           now.sa_handler == SIG_IGN;
}

const char *lks__signal_name(int sig)
{
    const char *name = sigabbrev_np(sig);
    return name != NULL ? name : "?";
}

int lks__thread_start(pthread_t *thread, void *(*run)(void *), void *ctx)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int err = pthread_create(thread, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}
