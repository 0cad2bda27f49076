#include "launch/nodes/nodes.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "comm/store/address.h"
#include "launch/nodes/nodes_state.h"

/* Seconds. */
static const double DUE_S = 1.0;    /* between calls of lks__nodes_next() */
static const double RECENT_S = 5.0; /* a pause more recent than this explains why the job is lost */

/* Time for which a launcher may be silent while others wait for it, if its ranks have no
 * --timeout. */
static const double STILL_S = 60.0;

void lks__nodes_say_refused(struct lks__nodes *n)
{
    const char *from;
    while (n->job->store != NULL && (from = lks__store_refused(n->job->store)) != NULL)
        lks__say(n->job, "refused a node from %s: it has another %s than this node", from,
                 LKS__TOKEN_ENV);
}

lks_status lks__nodes_listen(struct lks__nodes *n, bool printed, int *signal_p)
{
    struct pollfd p[3] = {{.fd = n->job->signals, .events = POLLIN},
                          {.fd = lks__store_fd(n->hear), .events = POLLIN},
                          {.fd = lks__lifeline_fd(n->job), .events = POLLIN}};
    poll(p, 3, 100);
    *signal_p = lks__job_pending_signal(n->job);
    for (bool running = n->running;;) {
        n->event = (struct lks__nodes_event){0};
        LKS__TRY(lks__nodes_hear_all(n));
        if (printed && n->event.signal != 0)
            lks__hurry_most(n->job);
        if ((!n->event.end_ours && n->event.signal == 0) || (running && !n->running))
            return LKS_OK;
    }
}

/* The store ends with this node, so wait until all nodes that joined before the job's end have
 * received it and left, or the user has no patience. A signal that comes at once is the one that
 * ended the job. */
static void let_others_go(struct lks__nodes *n)
{
    const double since = lks__sys_now();
    while ((!n->over || lks__nodes_here(n) > 1) && lks__sys_now() - since < lks__link_s()) {
        int sig;
        if (lks__nodes_listen(n, false, &sig) != LKS_OK ||
            (sig != 0 && lks__sys_now() - since > LKS__SAME_CAUSE_S))
            return;
    }
}

void lks__nodes_close(struct lks__nodes *n)
{
    if (n == NULL)
        return;
    if (n->coordinator && n->ended && !n->again)
        let_others_go(n);
    lks__nodes_leave(n);
    free(n);
}

/* --- while ranks run ---------------------------------------------------------------------- */

/* True if no message can matter any more: the job is over or lost. */
static bool is_done(const struct lks__nodes *n)
{
    return n == NULL || n->over || n->lost_text[0] != '\0';
}

int lks__nodes_fd(const struct lks__nodes *n)
{
    return is_done(n) ? -1 : lks__store_fd(n->hear);
}

double lks__nodes_due(const struct lks__nodes *n)
{
    if (is_done(n))
        return 0;
    const double now = lks__sys_now();
    const bool decides = n->coordinator && n->running && !n->ended;
    return decides && n->end_by > now && n->end_by < now + DUE_S ? n->end_by : now + DUE_S;
}

static void give_job_up(struct lks__nodes *n, lks_status why)
{
    const struct lks__job_node *first = lks__nodes_first(n);
    char name[LKS__INTERFACE_BYTES];
    if (why == LKS_ERR_PEER && lks__address_is_cut(n->job->local_address, name))
        snprintf(n->lost_text, sizeof n->lost_text,
                 "this host (%s) lost its connection to the coordinator's node: its network "
                 "interface %s has no link",
                 n->job->host, name);
    else if (why == LKS_ERR_PEER && n->still_s > 0 && lks__sys_now() - n->woke_at < RECENT_S)
        snprintf(n->lost_text, sizeof n->lost_text,
                 "this node (host %s) stood still for %.0f s; meanwhile the job has ended, or "
                 "continued without this node",
                 n->job->host, n->still_s);
    else if (why == LKS_ERR_TIMEOUT && first != NULL)
        snprintf(n->lost_text, sizeof n->lost_text,
                 "the coordinator's node (host %s) doesn't answer: its launcher is stopped, or its "
                 "machine hangs",
                 first->host);
    else
        snprintf(n->lost_text, sizeof n->lost_text, "%s%s",
                 why != LKS_ERR_NOMEM ? "the coordinator's node is gone: " : "", lks_last_error());
}

bool lks__nodes_next(struct lks__nodes *n, bool stopping, struct lks__nodes_event *event)
{
    if (is_done(n))
        return false;
    lks__nodes_say_refused(n);
    n->stopping |= stopping;
    n->event = (struct lks__nodes_event){0};
    lks__nodes_try_to_decide(n); /* in case our own ranks don't end */
    if (n->asked)
        lks__nodes_show_life(n);
    lks_status st = lks__nodes_hear_all(n);
    if (st != LKS_OK) {
        give_job_up(n, st);
        n->event.end_ours = true;
        snprintf(n->event.why, sizeof n->event.why, "%s", n->lost_text);
    }
    *event = n->event;
    return event->end_ours || event->signal != 0;
}

void lks__nodes_down(struct lks__nodes *n, lks_status status, const char *why)
{
    if (n != NULL)
        n->failing = true;
    if (n != NULL && n->lost_text[0] == '\0')
        lks__nodes_post(n, json_pack("{s:s, s:i, s:i, s:i, s:o}", "is", "down", "node", n->self,
                                     "round", n->round, "status", -status, "why",
                                     lks__json_utf8(why)));
}

void lks__nodes_signal(struct lks__nodes *n, int sig)
{
    if (n != NULL && n->lost_text[0] == '\0')
        lks__nodes_post(
            n, json_pack("{s:s, s:i, s:i}", "is", "signal", "node", n->self, "signal", sig));
}

static void show_table(const struct lks__nodes *n, const char *table)
{
    if (table != NULL && !n->job->options->quiet)
        lks__show(n->job, table);
}

/* Print the nodes whose ends we wait for: their ranks still run, or their launchers don't
 * respond. */
static void say_whom(const struct lks__nodes *n)
{
    const struct lks__job_node *m = NULL;
    char more[32] = "";
    int others = 0;
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *other = &n->nodes[i];
        if (i == n->self || !other->in_round || other->settled)
            continue;
        others += m != NULL;
        m = m == NULL || other->group_rank < m->group_rank ? other : m;
    }
    if (m == NULL) /* all have reported: wait for the decision */
        m = lks__nodes_first(n);
    if (m == NULL || m == &n->nodes[n->self])
        return;
    if (others > 0)
        snprintf(more, sizeof more, " and %d more", others);
    lks__say(n->job, "waiting for node %d (host %s)%s", m->group_rank, m->host, more);
}

/* Check the other launchers while we wait for them, since time `since`. */
static void look_at_others(struct lks__nodes *n, double since, bool *said_p)
{
    bool long_ago = lks__sys_now() - since >= LKS__NODES_PATIENCE_S;
    lks__nodes_show_life(n);
    if (long_ago && !*said_p)
        say_whom(n);
    *said_p |= long_ago;
    if (long_ago || n->failing)
        lks__nodes_ask_for_life(n);
}

/* Report how our ranks ended. `own`: their failure is of this node. */
static void post_verdict(struct lks__nodes *n, const struct lks__nodes_report *r,
                         const struct lks__verdict *v, bool own, const char *tail)
{
    lks__nodes_post(
        n, json_pack(
               "{s:s, s:i, s:i, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:i, s:i, s:i, s:o, s:o, s:o}",
               "is", "verdict", "node", n->self, "round", n->round, "ok",
               v->culprit < 0 && r->user_signal == 0, "by_signal", r->by_signal, "killed",
               r->killed, "lasting", r->lasting, "leaves", r->leaves, "follows", r->follows,
               "still", r->still, "left", r->left, "code", v->exit_code, "user_signal",
               r->user_signal, "text", lks__json_utf8(own || r->user_signal != 0 ? v->text : ""),
               "tail", lks__json_utf8(tail), "table", lks__json_utf8(r->table)));
}

/* Wait for the decision or the end of the connection. *asked_p: the first signal that came
 * meanwhile; 0: none. */
static lks_status wait_for_decision(struct lks__nodes *n, int *asked_p)
{
    const double since = lks__sys_now();
    double asked_at = 0;
    bool said = false;
    *asked_p = 0;
    while (n->lost_text[0] == '\0' && n->refused[0] == '\0' && n->running) {
        int sig;
        look_at_others(n, since, &said);
        lks__nodes_try_to_decide(n);
        lks_status st = lks__nodes_listen(n, true, &sig);
        if (st != LKS_OK) {
            give_job_up(n, st);
        } else if (sig != 0 && *asked_p == 0) {
            lks__nodes_signal(n, sig);
            n->stopping = true; /* we may decide before we hear it */
            *asked_p = sig;
            asked_at = lks__sys_now();
        } else if (sig != 0 && lks__sys_now() - asked_at > LKS__SAME_CAUSE_S) {
            return lks__fail(LKS_ERR_PEER, "stopped by a signal while other nodes still ran");
        }
        if (n->end_by > 0 && !n->stopping && lks__sys_now() >= n->end_by + lks__link_s())
            return lks__fail(LKS_ERR_TIMEOUT, "the coordinator has sent no decision about the job");
    }
    return n->refused[0] == '\0' ? LKS_OK : lks__fail(LKS_ERR_PEER, "%s", n->refused);
}

/* The connection is lost. Our own verdict is better than none, unless our rank only noticed that
 * others had gone. */
static void decide_alone(const struct lks__nodes *n, const struct lks__nodes_report *r, bool own,
                         struct lks__verdict *v, char tail[2 * LKS__TAIL_BYTES])
{
    v->alone = true;
    if (own && !r->follows)
        return;
    if (r->user_signal == 0 || v->exit_code == 0)
        v->exit_code = 1;
    tail[0] = '\0';
    snprintf(v->text, sizeof v->text, "%s", n->lost_text);
}

lks_status lks__nodes_settle(struct lks__nodes *n, const struct lks__nodes_report *r,
                             struct lks__verdict *v, char tail[2 * LKS__TAIL_BYTES], bool *again_p)
{
    int asked;
    /* A rank that we ended because of another node isn't a failure of this node. */
    const bool own = v->culprit >= 0 && !r->ended_by_others;
    *again_p = false;
    n->stopping |= r->user_signal != 0;
    n->patience_s = fmax(r->timeout_s > 0 ? r->timeout_s : STILL_S, LKS__LEAST_STILL_S);
    if (n->lost_text[0] == '\0' && n->refused[0] == '\0')
        post_verdict(n, r, v, own, tail);
    LKS__TRY(wait_for_decision(n, &asked));
    if (n->lost_text[0] != '\0') {
        show_table(n, r->still ? r->table : "");
        decide_alone(n, r, own, v, tail);
        return LKS_OK;
    }
    show_table(n, n->table);
    if (n->again && asked != 0) /* too late for the decision: end the wait for the next round */
        raise(asked);
    *again_p = n->again;
    *v = n->verdict;
    snprintf(tail, 2 * LKS__TAIL_BYTES, "%s", n->tail != NULL ? n->tail : "");
    return LKS_OK;
}
