/* Opens and closes an attempt's resources, and describes how its ranks ended. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "launch/attempt.h"

lks_status lks__attempt_open(struct lks__attempt *a)
{
    a->guard = a->guard_fd = -1;
    a->oom_kills = lks__oom_kills();
    LKS__TRY(lks__segment_create(a->nproc, &a->segment));
    a->ranks = calloc((size_t)a->nproc, sizeof *a->ranks);
    LKS__MEMORY(a->ranks, "for %d ranks", a->nproc);
    return lks__files_attempt(a);
}

void lks__attempt_close(struct lks__attempt *a)
{
    lks__guard_stop(a);
    lks__files_close(a);
    free(a->ranks);
    lks__segment_close(a->segment);
}

bool lks__rank_failed(const struct lks__rank_process *p)
{
    return p->by_signal || p->code != 0;
}

long lks__oom_kills(void)
{
    uint64_t n = 0;
    return lks__sys_field("/proc/vmstat", "oom_kill", &n) ? (long)n : 0;
}

void lks__describe_end(const struct lks__attempt *a, int rank, char text[LKS__LAUNCH_MESSAGE])
{
    const struct lks__rank_process *p = &a->ranks[rank];
    lks__rank_status s;
    lks__segment_status(a->segment, rank, &s);
    char how[64], where[128] = "";
    if (p->by_signal)
        snprintf(how, sizeof how, "was killed by signal %d (SIG%s)", p->code,
                 lks__signal_name(p->code));
    else
        snprintf(how, sizeof how, "exited with code %d", p->code);
    if (s.state != LKS__RANK_ABSENT && s.phase[0] != '\0')
        snprintf(where, sizeof where, " at step %llu, phase %s", (unsigned long long)s.step,
                 s.phase);
    snprintf(text, LKS__LAUNCH_MESSAGE, "rank %d (pid %d, host %s) %s%s", a->first_global + rank,
             (int)p->pid, a->job->host, how, where);
}
