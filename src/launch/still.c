/* Detects that all ranks stand still: then no other rank can notice it. */
#include <stdio.h>

#include "base/sys.h"
#include "launch/process.h"

static const double MARGIN_S = 3.0; /* ranks that wait for another one give it up before */
static const double LOOK_S = 1.0;

/* The deadline of the ranks' waits; 0: none, or the program doesn't use lockstep. */
static double deadline(const struct lks__launch *l)
{
    return lks__segment_timeout_s(l->segment);
}

double lks__still_next(const struct lks__launch *l)
{
    return deadline(l) > 0 && !l->failed && l->user_signal == 0 ? lks__sys_now() + LOOK_S : 0;
}

/* Have all running ranks been without a heartbeat for the deadline? */
static bool all_still(struct lks__launch *l)
{
    double now = lks__sys_now();
    if (now - l->looked_at > 2 * LOOK_S) /* we were stopped ourselves */
        l->look_from = now;
    l->looked_at = now;
    for (int r = 0; r < l->n_started; r++) {
        lks__rank_status s;
        if (!l->ranks[r].running)
            continue;
        lks__segment_status(l->segment, r, &s);
        if (s.state != LKS__RANK_JOINED || s.beat_age_s < deadline(l) + MARGIN_S)
            return false;
    }
    return l->n_running > 0 && now - l->look_from > deadline(l) + MARGIN_S;
}

bool lks__still_look(struct lks__launch *l)
{
    char report[LKS__SHM_REPORT];
    if (deadline(l) <= 0 || l->failed || l->user_signal != 0 || !all_still(l))
        return false;
    while (!l->ranks[l->first_rank = l->first_rank < 0 ? 0 : l->first_rank].running)
        l->first_rank++;
    snprintf(l->first_text, sizeof l->first_text,
             "none of the %d running ranks has had a heartbeat for %.0f s (--timeout and a little)",
             l->n_running, deadline(l) + MARGIN_S);
    lks__segment_table(l->segment, l->nproc, l->first_global, report, sizeof report);
    lks__segment_abort_report(l->segment, LKS_ERR_TIMEOUT, l->first_rank, l->first_text, report);
    l->first_by_rank = l->stood_still = true;
    return true;
}
