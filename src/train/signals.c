#include "train/signals.h"

#include <string.h>

#include "base/early.h"

volatile sig_atomic_t lks__stop_requested, lks__save_requested;

/* The first signal asks for an orderly stop after the step at hand; who asks again means now. */
static void on_stop(int signo)
{
    if (lks__stop_requested != 0) {
        signal(signo, SIG_DFL);
        raise(signo); /* delivered when this handler returns */
    }
    lks__stop_requested = signo;
}

static void on_save(int signo)
{
    lks__save_requested = 1;
}

static void handle(int signo, const struct sigaction *action)
{
    if (!lks__signal_is_ignored(signo))
        sigaction(signo, action, NULL);
}

/* The handler has a stack of its own: oneDNN's generated matrix products use the stack pointer as
 * one more register, pointing into their work space, and a handler on the ordinary stack would
 * write its frame over that (seen with 2.6.3, as a corrupted heap after a signal). Other threads
 * have all signals blocked (base/pool.c). */
void lks__signals_install(const char *stop_signal)
{
    static char stack[64 << 10];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction sa = {.sa_handler = on_stop, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct sigaction save = {.sa_handler = on_save, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaltstack(&own, NULL);
    sigemptyset(&sa.sa_mask);
    sigemptyset(&save.sa_mask);
    handle(SIGTERM, &sa);
    handle(SIGINT, &sa);
    handle(SIGHUP, &sa);
    handle(SIGUSR1, strcmp(stop_signal, "USR1") == 0 ? &sa : &save);
    handle(SIGUSR2, strcmp(stop_signal, "USR2") == 0 ? &sa : &save);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write that fails, with its message */
    lks__early_release();
}
