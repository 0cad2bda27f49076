/* Passes the user's signals on to the ranks. A rank that has just started has no handler yet, so a
 * signal would end it. Therefore the signal is sent when the rank catches or ignores it. A signal
 * to stop waits at most START_S after the rank's start, because most programs have no handler for
 * it and should end. SIGUSR1 and SIGUSR2 shouldn't end a program, so they wait longer, as all
 * signals but SIGQUIT do for ranks of `lockstep train`, which have handlers sooner or later. */
#include <inttypes.h>
#include <stdio.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "launch/attempt.h"

/* Seconds. */
static const double START_S = 1.0;
static const double LOOK_S = 0.003;
static const double BLOCKED_S = 0.2;
static const double PATIENCE_S = 5.0; /* until a message that a signal waits; then check rarely */
static const double SELDOM_S = 0.1;

static bool is_usr(int sig)
{
    return sig == SIGUSR1 || sig == SIGUSR2;
}

/* The signals (bit n - 1: signal n) for which the rank doesn't have the default action. A blocked
 * signal counts once it has been blocked for a while: then the program keeps it pending on purpose,
 * as the launcher does. A shell blocks all signals only for a moment when it starts a command, or
 * on a busy machine for longer: it then sleeps without interruption until vfork()'s child has
 * begun. */
static uint64_t ready_for(struct lks__rank_process *p, double now)
{
    char path[64], line[256];
    uint64_t blocked = 0, ignored = 0, caught = 0;
    char state = '\0';
    snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return UINT64_MAX; /* not known */
    while (fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "SigBlk: %" SCNx64, &blocked);
        sscanf(line, "SigIgn: %" SCNx64, &ignored);
        sscanf(line, "SigCgt: %" SCNx64, &caught);
    }
    fclose(f);
    if ((blocked & p->waiting >> 1) == 0 || state == 'D')
        p->blocked_since = 0;
    else if (p->blocked_since == 0)
        p->blocked_since = now;
    bool waits_for_it = p->blocked_since > 0 && now - p->blocked_since > BLOCKED_S;
    return ignored | caught | (waits_for_it ? blocked : 0);
}

/* Report that a signal waits; otherwise the user wouldn't know why nothing happens. */
static void say_that_it_waits(struct lks__attempt *a, int rank, int sig)
{
    a->ranks[rank].said_waiting = true;
    lks__say(a->job,
             "signal %d (SIG%s) waits: rank %d (pid %d) doesn't handle it, and it would end", sig,
             lks__signal_name(sig), a->first_global + rank, (int)a->ranks[rank].pid);
}

void lks__deliver(struct lks__attempt *a, int sig)
{
    double now = lks__sys_now();
    for (int r = 0; r < a->n_started; r++) {
        if (a->ranks[r].waiting == 0)
            a->ranks[r].waiting_since = now;
        a->ranks[r].waiting |= UINT64_C(1) << sig;
    }
    lks__deliver_due(a);
}

void lks__deliver_due(struct lks__attempt *a)
{
    double now = lks__sys_now();
    const bool trains = a->job->options->trains;
    for (int r = 0; r < a->n_started; r++) {
        struct lks__rank_process *p = &a->ranks[r];
        if (!p->running || p->waiting == 0)
            continue;
        uint64_t ready = ready_for(p, now);
        for (int sig = 1; p->waiting >> sig != 0; sig++) {
            if (!(p->waiting >> sig & 1))
                continue;
            bool in_time =
                (trains && sig != SIGQUIT) || is_usr(sig) || now - p->started_at < START_S;
            if (!in_time || ready >> (sig - 1) & 1) {
                p->waiting &= ~(UINT64_C(1) << sig);
                kill(-p->pid, sig);
            } else if (!p->said_waiting && now - p->waiting_since > PATIENCE_S) {
                say_that_it_waits(a, r, sig);
            }
        }
    }
}

double lks__deliver_next(const struct lks__attempt *a)
{
    double wait_s = 0;
    for (int r = 0; r < a->n_started; r++)
        if (a->ranks[r].running && a->ranks[r].waiting != 0 && wait_s != LOOK_S)
            wait_s = a->ranks[r].said_waiting ? SELDOM_S : LOOK_S;
    return wait_s > 0 ? lks__sys_now() + wait_s : 0;
}
