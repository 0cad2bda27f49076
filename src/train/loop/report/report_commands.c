/* train/loop/report/report_commands.c - tells the commands of exec_on and systemd about a run's
 * events. */
#include <errno.h>
#include <math.h>

#include "base/system/sys.h"
#include "train/loop/report/report.h"

static void say(void *ctx, const char *text)
{
    lks__report *r = ctx;
    lks__log_message(&r->log, "%s", text);
}

lks_status lks__report_hooks_open(lks__report *r, const lks__run *run)
{
    if (!lks__notify_open(&r->notify))
        lks__log_message(
            &r->log,
            "systemd's socket (NOTIFY_SOCKET) can't be reached: %s; the run continues without it",
            lks__sys_reason(errno));
    return lks__commands_open(&run->s, say, r, &r->commands);
}

void lks__report_alive(lks__report *r, const char *text)
{
    if (!r->on)
        return;
    lks__notify_alive(&r->notify, text);
    lks__commands_poll(r->commands);
}

static lks__command_facts facts_of(const lks__report *r, const lks__state *state)
{
    return (lks__command_facts){.iter = (int64_t)state->iter,
                                .loss = r->newest.loss,
                                .val_loss = r->newest.val_loss,
                                .signal = r->stop_signal,
                                .exit_code = -1};
}

void lks__report_saved(lks__report *r, const lks__state *state, bool best)
{
    const lks__command_facts facts = facts_of(r, state);
    lks__commands_on(r->commands, LKS__ON_CHECKPOINT, &facts);
    if (best)
        lks__commands_on(r->commands, LKS__ON_BEST, &facts);
    lks__report_alive(r, NULL);
}

void lks__report_best(lks__report *r, const lks__state *state)
{
    const lks__command_facts facts = facts_of(r, state);
    lks__commands_on(r->commands, LKS__ON_BEST, &facts);
}

void lks__report_stopping(lks__report *r)
{
    if (r->on)
        lks__notify_stopping(&r->notify);
}

struct waiting {
    lks__report *r;
    lks_comm *comm;
};

/* Beat, so that the waiting ranks don't give this one up. */
static void alive(void *ctx)
{
    const struct waiting *w = ctx;
    lks_comm_beat(w->comm);
    lks__notify_alive(&w->r->notify, NULL);
}

void lks__report_hooks_close(lks__report *r, lks__session *ses, const lks__state *state)
{
    const lks__command_facts facts = facts_of(r, state);
    struct waiting waiting = {r, ses->comm};
    if (!r->ended)
        return;
    lks__commands_on(r->commands, LKS__ON_END, &facts);
    lks__session_saving(ses, false);
    const int n = lks__commands_waiting(r->commands);
    if (n > 0 && r->stop_signal != 0)
        lks__log_message(&r->log,
                         "waiting for %d command%s of --exec_on; a second signal ends the run", n,
                         n == 1 ? "" : "s");
    lks__commands_wait(r->commands, alive, &waiting);
    lks__notify_stopping(&r->notify);
}
