/* session/agree.c - requests to stop and failures, on which the ranks agree. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/system/sys.h"
#include "comm/liveness.h"
#include "comm/world.h"
#include "session/session.h"
#include "session/signals.h"

static bool on_record; /* static, because a process is one rank */

static void put_on_record(const lks__session *s, const char *why)
{
    lks_comm_abort(s->comm, why);
    on_record = true;
}

static lks_status stopped(int signo)
{
    return lks__fail(LKS_ERR_STOPPED, "signal %d asked to stop", signo);
}

int lks__session_asked_stop(const lks__session *s)
{
    if (lks__world_orphaned())
        lks__comm_ask_stop(s->comm, SIGHUP);
    return lks__comm_asked_stop(s->comm);
}

lks_status lks__session_check_stop(const lks__session *s)
{
    int signo = lks__session_asked_stop(s);
    return signo == 0 ? LKS_OK : stopped(signo);
}

static const lks__session *stoppable; /* static, because a process is one rank */

static bool asked(void)
{
    return lks__session_asked_stop(stoppable) != 0;
}

void lks__session_stoppable(const lks__session *s, bool on)
{
    stoppable = s;
    lks__sys_stop_when(on ? asked : NULL);
}

void lks__session_saving(lks__session *s, bool saving)
{
    lks__signals_hold(saving);
    lks__comm_saving(s->comm, saving);
}

enum { KEPT = 1024 }; /* bytes of a message that is kept during an exchange */

/* A rank's contribution to an agreement; a signal accompanies ERR_STOPPED. */
struct verdict {
    int32_t status, signo;
};

/* Fail on all ranks with the message of rank `first`: mpirun and srun kill all ranks once one has
 * ended, so each must have the reason. `st` and `kept`: this rank's status and message. */
static lks_status fail_together(lks__session *s, lks_status st, int first, const char kept[KEPT])
{
    char host[LKS__HOST_NAME], reason[KEPT + sizeof(lks__place_text) + 16] = "";
    lks__session_host(host);
    snprintf(reason, sizeof reason, "%s failed: %s", lks__session_place(first, host).text, kept);
    if (lks_comm_broadcast(s->comm, reason, sizeof reason, LKS_UINT8, first) != LKS_OK)
        snprintf(reason, sizeof reason, "rank %d failed, and its reason didn't arrive: %s", first,
                 lks_last_error());
    reason[sizeof reason - 1] = '\0';
    /* All ranks know the verdict after this. If the group ended earlier, a rank that is still in
     * the exchange would report its own failure as the first. */
    lks_comm_barrier(s->comm);
    if (first == s->world.rank) {
        put_on_record(s, kept);
        return lks__fail(st, "%s", kept);
    }
    /* Until it has published: a rank that exits earlier would be taken for the cause. */
    lks_comm_barrier(s->comm);
    return lks__fail(LKS_ERR_PEER, "%s", reason);
}

lks_status lks__session_agree(lks__session *s, lks_status st)
{
    int W = s->world.world_size;
    if (W == 1)
        return st;
    /* Other ranks' devices may wait for this one's: then those ranks don't get here. */
    if (st == LKS_ERR_DEVICE)
        return lks__session_fail(s, st);
    char kept[KEPT]; /* the exchange below must not replace the recorded message */
    snprintf(kept, sizeof kept, "%s", lks_last_error());
    struct verdict mine = {(int32_t)st, st == LKS_ERR_STOPPED ? lks__session_asked_stop(s) : 0};
    lks_status comm = LKS_OK;
    struct verdict *all = lks__session_gather(s, &mine, sizeof mine, &comm);
    int first = 0, signo = 0;
    for (int r = 0; comm == LKS_OK && r < W && signo == 0; r++)
        signo = all[r].signo;
    while (comm == LKS_OK && first < W &&
           (all[first].status == LKS_OK || all[first].status == LKS_ERR_STOPPED))
        first++;
    free(all);
    if (comm != LKS_OK)
        return st != LKS_OK && st != LKS_ERR_STOPPED ? lks__fail(st, "%s", kept) : comm;
    if (first == W && signo != 0) {
        lks__comm_ask_stop(s->comm, signo);
        return stopped(signo);
    }
    return first == W ? LKS_OK : fail_together(s, st, first, kept);
}

/* ERR_PEER isn't published: it could hide the rank that really failed. */
lks_status lks__session_fail(const lks__session *s, lks_status st)
{
    if (st != LKS_OK && st != LKS_ERR_PEER && st != LKS_ERR_STOPPED && s->comm != NULL)
        put_on_record(s, lks_last_error());
    return st;
}

void *lks__session_gather(const lks__session *s, const void *mine, size_t bytes, lks_status *st_p)
{
    const int W = s->world.world_size;
    if (*st_p != LKS_OK)
        return NULL;
    void *all = calloc((size_t)W, bytes);
    if (all == NULL)
        *st_p = lks__session_fail(s, lks__no_memory("for %d ranks", W));
    else
        *st_p = lks_comm_all_gather(s->comm, mine, all, bytes, LKS_UINT8);
    if (*st_p == LKS_OK)
        return all;
    free(all);
    return NULL;
}

bool lks__session_on_record(void)
{
    return on_record;
}
