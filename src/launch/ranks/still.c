/* Detects that all ranks have stopped making progress: then no other rank can notice it. */
#include <stdio.h>

#include "base/system/sys.h"
#include "launch/ranks/supervisor.h"

/* Ranks that wait for another rank give it up earlier and name it. Over Gloo such a rank then tries
 * for 2.6 s to tell a host that doesn't listen (LAST_SEND_S, last_message). */
static const double MARGIN_S = 6.0;
static const double LOOK_S = 1.0;

/* The deadline of the ranks' waits; 0: none, or the program doesn't use lockstep. */
static double deadline(const struct lks__supervisor *sup)
{
    return lks__segment_timeout_s(sup->attempt->segment);
}

double lks__still_next(const struct lks__supervisor *sup)
{
    return deadline(sup) > 0 && !sup->failed && sup->user_signal == 0 ? lks__sys_now() + LOOK_S : 0;
}

/* True if all running ranks have been without a heartbeat for the deadline. */
static bool all_still(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    double now = lks__sys_now();
    /* We were stopped ourselves; or a rank has ended, for which the others may have waited. */
    if (now - sup->looked_at > 2 * LOOK_S || a->n_running != sup->looked_running)
        sup->look_from = now;
    sup->looked_at = now;
    sup->looked_running = a->n_running;
    for (int r = 0; r < a->n_started; r++) {
        lks__rank_status s;
        if (!a->ranks[r].running)
            continue;
        lks__segment_status(a->segment, r, &s);
        if (s.state != LKS__RANK_JOINED || s.beat_age_s < deadline(sup) + MARGIN_S)
            return false;
    }
    return a->n_running > 0 && now - sup->look_from > deadline(sup) + MARGIN_S;
}

bool lks__still_look(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    char report[LKS__SHM_REPORT];
    if (deadline(sup) <= 0 || sup->failed || sup->user_signal != 0 || !all_still(sup))
        return false;
    sup->first_rank = 0; /* the first that runs */
    while (!a->ranks[sup->first_rank].running)
        sup->first_rank++;
    snprintf(sup->first_text, sizeof sup->first_text,
             "none of the %d running ranks has had a heartbeat for %.0f s, which is longer than "
             "their limit (train: --timeout; other programs: LOCKSTEP_TIMEOUT or timeout_s)",
             a->n_running, deadline(sup) + MARGIN_S);
    lks__segment_table(a->segment, a->nproc, a->first_global, report, sizeof report);
    lks__segment_abort_report(a->segment, LKS_ERR_TIMEOUT, sup->first_rank, sup->first_text,
                              report);
    sup->first_by_rank = sup->stood_still = true;
    return true;
}
