#include "session/signals.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"

atomic_int lks__stop_requested;
volatile sig_atomic_t lks__save_requested;

static volatile sig_atomic_t held, n_requests;
static void (*volatile on_first)(void *ctx, int signo);
static void *volatile on_first_ctx;
static const char *volatile answer;

void lks__signals_hold(bool hold)
{
    held = hold;
}

void lks__signals_answer(const char *text)
{
    answer = text;
}

/* A slow reader must not block the handler. */
static void write_answer(void)
{
    const char *text = answer;
    const int kept = errno;
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (text != NULL && poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) != 0 &&
        write(STDERR_FILENO, text, strlen(text)) < 0)
        answer = NULL; /* the reader is gone */
    errno = kept;
}

void lks__signals_rearm(void)
{
    n_requests = 0;
    lks__stop_requested = 0;
}

void lks__signals_on_stop(void (*fn)(void *ctx, int signo), void *ctx)
{
    on_first = NULL; /* first, so that a function never gets another one's context */
    on_first_ctx = ctx;
    on_first = fn;
    if (fn != NULL && lks__stop_requested != 0)
        fn(ctx, lks__stop_requested);
}

/* The first signal asks for an orderly stop, the second ends the process at once. While a
 * checkpoint is being written, only the third ends it. */
static void on_stop(int signo)
{
    static double last;
    double now = lks__sys_now();
    if (n_requests > 0 && now - last < LKS__SAME_CAUSE_S)
        return;
    last = now;
    n_requests++;
    if (n_requests == 1) {
        lks__stop_requested = signo;
        write_answer();
        if (on_first != NULL)
            on_first(on_first_ctx, signo);
    } else if (n_requests > 2 || !held) {
        sigset_t own;
        sigemptyset(&own);
        sigaddset(&own, signo);
        signal(signo, SIG_DFL);
        raise(signo);
        sigprocmask(SIG_UNBLOCK, &own, NULL); /* the signal ends the process here */
        _exit(128 + signo); /* but not the first process of a container, which ignores it */
    }
}

static void on_save(int signo)
{
    lks__save_requested = 1;
}

static void handle(int signo, const struct sigaction *action, sigset_t *handled)
{
    if (lks__signal_is_ignored(signo))
        return;
    sigaction(signo, action, NULL);
    sigaddset(handled, signo);
}

/* The handler has its own stack. oneDNN's generated matrix products use the stack pointer as one
 * more register, which points into their work space. A handler on the ordinary stack would write
 * its frame there (seen with 2.6.3, as a corrupted heap after a signal). Other threads block all
 * signals (base/pool.c). */
void lks__signals_install(const char *stop_signal)
{
    static char stack[64 << 10];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction sa = {.sa_handler = on_stop, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct sigaction save = {.sa_handler = on_save, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigset_t handled;
    sigemptyset(&handled);
    sigaltstack(&own, NULL);
    sigfillset(&sa.sa_mask); /* handlers run one after the other */
    sigemptyset(&save.sa_mask);
    handle(SIGTERM, &sa, &handled);
    handle(SIGINT, &sa, &handled);
    handle(SIGHUP, &sa, &handled);
    handle(SIGUSR1, strcmp(stop_signal, "USR1") == 0 ? &sa : &save, &handled);
    handle(SIGUSR2, strcmp(stop_signal, "USR2") == 0 ? &sa : &save, &handled);
    signal(SIGPIPE, SIG_IGN); /* writing to a closed pipe fails with an error */
    lks__early_release();
    /* A program that starts us may have blocked signals, and not know that we inherit that. */
    sigprocmask(SIG_UNBLOCK, &handled, NULL);
}
