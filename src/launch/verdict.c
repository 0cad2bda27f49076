#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launch/process.h"

long lks__oom_kills(void)
{
    long n = 0;
    char key[64];
    FILE *f = fopen("/proc/vmstat", "re");
    while (f != NULL && fscanf(f, "%63s %ld", key, &n) == 2 && strcmp(key, "oom_kill") != 0)
        n = 0;
    if (f != NULL)
        fclose(f);
    return n;
}

void lks__describe_end(const struct lks__launch *l, int rank, char text[LKS__LAUNCH_MESSAGE])
{
    const struct lks__rank_process *p = &l->ranks[rank];
    lks__rank_status s;
    lks__segment_status(l->segment, rank, &s);
    char how[64], where[128] = "";
    if (p->by_signal) {
        const char *name = sigabbrev_np(p->code);
        snprintf(how, sizeof how, "was killed by signal %d (SIG%s)", p->code,
                 name != NULL ? name : "?");
    } else {
        snprintf(how, sizeof how, "exited with code %d", p->code);
    }
    if (s.state != LKS__RANK_ABSENT && s.phase[0] != '\0')
        snprintf(where, sizeof where, " at step %llu, phase %s", (unsigned long long)s.step,
                 s.phase);
    snprintf(text, LKS__LAUNCH_MESSAGE, "rank %d (pid %d, host %s) %s%s", l->first_global + rank,
             (int)p->pid, l->host, how, where);
}

/* "the loss is not finite" of "rank 1 failed at step 3, phase backward: the loss is not finite" */
static const char *why_of(const char *failure)
{
    const char *colon = strstr(failure, ": ");
    return colon == NULL ? failure : colon + 2;
}

bool lks__rank_failed(const struct lks__rank_process *p)
{
    return p->by_signal || p->code != 0;
}

static int exit_code_of(const struct lks__rank_process *p)
{
    return p->by_signal ? 128 + p->code : p->code;
}

/* The first rank that failed by itself: the one that the group's failure names, if it ended badly,
 * else the first that we saw. -1: none. */
static int find_culprit(const struct lks__launch *l)
{
    int first = -1;
    for (int r = 0; r < l->n_started; r++) {
        const struct lks__rank_process *p = &l->ranks[r];
        if (!lks__rank_failed(p))
            continue;
        if (first < 0 || p->order < l->ranks[first].order ||
            (p->order == l->ranks[first].order && p->by_signal && !l->ranks[first].by_signal))
            first = r;
    }
    if (l->first_by_rank && l->first_rank >= 0 && l->first_rank < l->n_started &&
        lks__rank_failed(&l->ranks[l->first_rank]))
        return l->first_rank;
    return first;
}

static int after_user_signal(const struct lks__launch *l)
{
    char text[LKS__LAUNCH_MESSAGE];
    int code = 0;
    for (int r = 0; r < l->n_started; r++) {
        const struct lks__rank_process *p = &l->ranks[r];
        /* a rank that died of the signal itself, before it could handle it, made others fail */
        if (code == 0 || (p->by_signal && p->code == l->user_signal))
            code = exit_code_of(p);
        if (!p->by_signal || p->code == l->user_signal || l->killed)
            continue;
        lks__describe_end(l, r, text);
        lks__say(l, "%s", text);
    }
    if (l->killed)
        lks__say(l, "the ranks were killed");
    return code;
}

void lks__verdict(const struct lks__launch *l, struct lks__verdict *v)
{
    *v = (struct lks__verdict){.culprit = -1};
    if (l->user_signal != 0) {
        v->exit_code = after_user_signal(l);
        return;
    }
    v->culprit = find_culprit(l);
    if (v->culprit < 0)
        return;
    const struct lks__rank_process *p = &l->ranks[v->culprit];
    char text[LKS__LAUNCH_MESSAGE];
    int first = -1;
    for (int r = 0; r < l->n_started; r++)
        if (lks__rank_failed(&l->ranks[r]) &&
            (first < 0 || l->ranks[r].order < l->ranks[first].order))
            first = r;
    lks__describe_end(l, v->culprit, text);
    /* If the others gave a rank up, and we ended it, their report counts. */
    bool hung = l->first_by_rank && p->by_signal && p->late;
    if (hung)
        snprintf(v->text, sizeof v->text, "rank %d (pid %d, host %s) was ended: %s",
                 l->first_global + v->culprit, (int)p->pid, l->host, l->first_text);
    else if (p->by_signal && p->code == SIGKILL && lks__oom_kills() > l->oom_kills)
        snprintf(v->text, sizeof v->text,
                 "%.1200s; meanwhile the kernel has killed processes for lack of memory", text);
    else if (l->first_by_rank && !p->by_signal)
        snprintf(v->text, sizeof v->text, "%.900s: %s", text, why_of(l->first_text));
    else
        snprintf(v->text, sizeof v->text, "%s", text);
    /* If only our own signals ended ranks, no exit code is meaningful. */
    bool no_code = l->stood_still || (hung && l->ranks[first].by_signal);
    v->exit_code = no_code ? 1 : exit_code_of(hung ? &l->ranks[first] : p);
}
