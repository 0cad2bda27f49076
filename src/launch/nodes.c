#include "launch/nodes.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/sys.h"
#include "launch/nodes_state.h"
#include "net/address.h"

/* Seconds. */
static const double CONNECT_S = 300.0; /* for the coordinator to answer */
static const double PATIENCE_S = 5.0;  /* until a message about what we wait for */

static const double TRY_S = 2.0; /* for one try, between checks for signals */

/* --- joining ------------------------------------------------------------------------------ */

/* A signal to stop that has arrived, or 0. */
static int pending_signal(struct lks__launch *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        int sig = (int)info.ssi_signo;
        if (sig == LKS__FRONT_GONE)
            lks__front_is_gone(l);
        if (sig == SIGTSTP)
            raise(SIGSTOP);
        else if (sig == SIGUSR1 || sig == SIGUSR2)
            l->early |= 1u << sig; /* for ranks that don't run yet */
        else if (sig != SIGCHLD)
            return sig;
    }
    return lks__lifeline_signal(l);
}

/* Nothing has been started yet: end by the signal, as a program without handlers does. */
static _Noreturn void end_by(struct lks__launch *l, int sig)
{
    sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
    raise(sig);
    _exit(128 + sig);
}

static lks_status connect_to_first(struct lks__launch *l, lks__store **store_p)
{
    double start = lks__sys_now();
    for (bool said = false;;) {
        lks_status st = lks__store_open(l->store_host, l->store_port, l->token, TRY_S, store_p);
        double waited = lks__sys_now() - start;
        if (st != LKS_ERR_TIMEOUT)
            return st;
        if (waited >= CONNECT_S)
            return lks__fail_in(st, "no first node was found for %.0f s", waited);
        int sig = pending_signal(l);
        if (sig != 0)
            end_by(l, sig);
        if (!said && waited > PATIENCE_S)
            lks__say(l, "waiting for the first node: %s", lks_last_error());
        said |= waited > PATIENCE_S;
    }
}

static lks_status connect_both(struct lks__launch *l, struct lks__nodes *n)
{
    char will[96], range[32], restarts[16], address[64];
    LKS__TRY(connect_to_first(l, &n->say));
    LKS__TRY(connect_to_first(l, &n->hear));
    LKS__TRY(lks__store_local_address(n->say, address, sizeof address));
    snprintf(l->local_address, sizeof l->local_address, "%s",
             l->options->local_addr != NULL ? l->options->local_addr : address);
    LKS__TRY(lks__token_new(n->key));
    snprintf(will, sizeof will, "{\"is\":\"lost\",\"key\":\"%s\"}", n->key);
    LKS__TRY(lks__store_will(n->hear, LKS__NODES_LIST, will, strlen(will)));
    snprintf(range, sizeof range, "%d:%d", n->min, n->max);
    snprintf(restarts, sizeof restarts, "%d", l->options->max_restarts);
    /* Ranks find each other at the coordinator's address, because it has the first ranks. */
    lks__nodes_post(n, json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:s}", "is",
                                 "hello", "key", n->key, "host", l->host, "address",
                                 l->local_address, "nproc", l->options->nproc, "rank",
                                 n->coordinator ? 0 : l->options->node_rank, "version", LKS_VERSION,
                                 "nnodes", range, "run_id", l->given_id, "max_restarts", restarts));
    return lks__nodes_ask_next(n);
}

lks_status lks__nodes_open(struct lks__launch *l)
{
    const lks__launch_options *o = l->options;
    struct lks__nodes *n = calloc(1, sizeof *n);
    if (n == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the job's nodes");
    l->nodes = n;
    n->self = -1;
    n->min = o->min_nodes;
    n->max = o->max_nodes;
    n->gather_since = n->joined_at = lks__sys_now();
    if (o->node_rank <= 0) {
        lks_status st = lks__store_serve(l->store_host, l->store_port, l->token, &l->store);
        if (st == LKS_OK)
            l->store_port = lks__store_port(l->store);
        else if (st != LKS_ERR_SUPPORT || o->node_rank == 0)
            return st;
        n->coordinator = st == LKS_OK;
    }
    return connect_both(l, n);
}

/* The store ends with this node, so wait until all other nodes have received the job's end and
 * left. */
static void let_others_go(struct lks__launch *l)
{
    double until = lks__sys_now() + LKS__STORE_DEAD_S;
    while (lks__nodes_here(l->nodes) > 1 && lks__sys_now() < until) {
        struct pollfd p = {.fd = lks__store_fd(l->nodes->hear), .events = POLLIN};
        poll(&p, 1, 100);
        if (lks__nodes_hear_all(l) != LKS_OK)
            return;
    }
}

void lks__nodes_close(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    if (n == NULL)
        return;
    if (n->coordinator && n->ended)
        let_others_go(l);
    lks__store_close(n->hear);
    lks__store_close(n->say);
    for (int i = 0; i < n->n_nodes; i++)
        lks__node_forget(&n->nodes[i]);
    free(n->nodes);
    free(n->tail);
    free(n->table);
    free(n);
    l->nodes = NULL;
}

/* Wait for a message of the list or for a signal, at most `ms`. */
static lks_status listen_for(struct lks__launch *l, int ms, int *signal_p)
{
    struct pollfd p[3] = {{.fd = l->signals, .events = POLLIN},
                          {.fd = lks__store_fd(l->nodes->hear), .events = POLLIN},
                          {.fd = lks__lifeline_fd(l), .events = POLLIN}};
    poll(p, 3, ms);
    *signal_p = pending_signal(l);
    return lks__nodes_hear_all(l);
}

lks_status lks__nodes_gather(struct lks__launch *l, bool *over_p, int *exit_code_p)
{
    struct lks__nodes *n = l->nodes;
    int sig = 0;
    *over_p = false;
    while (!(n->running && n->self >= 0 && n->nodes[n->self].in_round)) {
        if (n->coordinator && !n->running && !n->starting && !lks__nodes_gather_more(l))
            return lks__fail(LKS_ERR_TIMEOUT,
                             "%d of at least %d nodes are here after %g s; start the same command "
                             "on the others",
                             lks__nodes_here(n), n->min, lks__nodes_join_s(n));
        if (!n->said_what && lks__sys_now() - n->gather_since > PATIENCE_S) {
            char where[LKS__ADDRESS_BYTES];
            n->said_what = true;
            lks__say(l, "waiting for nodes at %s: %d here, %d to %d needed",
                     lks__address_text(where, l->store_host, l->store_port), lks__nodes_here(n),
                     n->min, n->max);
        }
        LKS__TRY(listen_for(l, 100, &sig));
        if (n->refused[0] != '\0')
            return lks__fail(LKS_ERR_CONFIG, "the job refuses this node: %s", n->refused);
        bool done = n->ended && !n->again && n->self >= 0 && !n->running;
        if (sig == 0 && !done)
            continue;
        *over_p = true;
        *exit_code_p = sig != 0 ? 128 + sig : n->verdict.exit_code;
        return LKS_OK;
    }
    return LKS_OK;
}

/* --- while ranks run ---------------------------------------------------------------------- */

int lks__nodes_fd(const struct lks__launch *l)
{
    return l->nodes != NULL && l->nodes->lost_text[0] == '\0' ? lks__store_fd(l->nodes->hear) : -1;
}

static void give_job_up(struct lks__launch *l, lks_status why)
{
    snprintf(l->nodes->lost_text, sizeof l->nodes->lost_text, "%s%s",
             why != LKS_ERR_NOMEM ? "the coordinator's node is gone: " : "", lks_last_error());
    lks__end_with_others(l);
}

void lks__nodes_step(struct lks__launch *l)
{
    if (l->nodes == NULL || l->nodes->lost_text[0] != '\0')
        return;
    lks_status st = lks__nodes_hear_all(l);
    if (st != LKS_OK)
        give_job_up(l, st);
}

void lks__nodes_down(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    if (n != NULL && n->lost_text[0] == '\0')
        lks__nodes_post(
            n, json_pack("{s:s, s:i, s:i}", "is", "down", "node", n->self, "round", n->round));
}

void lks__nodes_signal(struct lks__launch *l, int sig)
{
    struct lks__nodes *n = l->nodes;
    if (n != NULL && n->lost_text[0] == '\0')
        lks__nodes_post(
            n, json_pack("{s:s, s:i, s:i}", "is", "signal", "node", n->self, "signal", sig));
}

static void show_table(const struct lks__launch *l, const char *table)
{
    if (table != NULL && !l->options->quiet)
        lks__show(l, table);
}

/* Have our ranks ended because of another host's? Then none of them is the cause. */
static bool follows_others(const struct lks__launch *l)
{
    lks_status st = LKS_OK;
    int rank = -1;
    if (lks__segment_aborted(l->segment))
        lks__segment_failure(l->segment, &st, &rank, NULL, 0);
    return rank < 0 && (st == LKS_ERR_TIMEOUT || st == LKS_ERR_PEER);
}

/* Any bytes as a JSON text. */
static json_t *text_json(const char *text, const char *instead)
{
    json_t *json = json_string(text);
    return json != NULL ? json : json_string(instead);
}

lks_status lks__nodes_settle(struct lks__launch *l, struct lks__verdict *v, const char *table,
                             char tail[2 * LKS__TAIL_BYTES], bool *again_p)
{
    struct lks__nodes *n = l->nodes;
    const struct lks__rank_process *p = v->culprit >= 0 ? &l->ranks[v->culprit] : NULL;
    bool told = false;
    *again_p = false;
    /* A rank that we ended because of another node has no failure of its own. */
    bool own = v->culprit >= 0 && !l->ended_by_others;
    if (n->lost_text[0] == '\0')
        lks__nodes_post(
            n, json_pack(
                   "{s:s, s:i, s:i, s:b, s:b, s:b, s:i, s:i, s:s, s:o, s:o}", "is", "verdict",
                   "node", n->self, "round", n->round, "ok", v->culprit < 0 && l->user_signal == 0,
                   "by_signal", p != NULL && p->by_signal, "follows", follows_others(l), "code",
                   v->exit_code, "user_signal", l->user_signal, "text", own ? v->text : "", "tail",
                   text_json(tail, "    (not text)\n"), "table", text_json(table, "")));
    double until = lks__sys_now() + LKS__SETTLE_S + l->options->shutdown_timeout_s;
    while (n->lost_text[0] == '\0' && n->running) {
        int sig;
        lks__nodes_try_to_decide(l);
        lks_status st = listen_for(l, 100, &sig);
        if (st != LKS_OK)
            give_job_up(l, st);
        else if (sig != 0 && told)
            return lks__fail(LKS_ERR_PEER, "stopped by a signal while other nodes still ran");
        else if (sig != 0)
            lks__nodes_signal(l, sig);
        told |= sig != 0;
        bool failing = !n->nodes[n->self].ok || n->end_by > 0;
        if (failing && lks__sys_now() >= until)
            return lks__fail(LKS_ERR_TIMEOUT, "the coordinator has sent no decision about the job");
        if (!failing)
            until = lks__sys_now() + LKS__SETTLE_S + l->options->shutdown_timeout_s;
    }
    show_table(l, n->lost_text[0] != '\0' ? table : n->table);
    if (n->lost_text[0] != '\0') {
        if (own) /* our own verdict is better than none */
            return LKS_OK;
        v->exit_code = 1;
        tail[0] = '\0';
        snprintf(v->text, sizeof v->text, "%s", n->lost_text);
        return LKS_OK;
    }
    *again_p = n->again;
    *v = n->verdict;
    snprintf(tail, 2 * LKS__TAIL_BYTES, "%s", n->tail != NULL ? n->tail : "");
    return LKS_OK;
}
