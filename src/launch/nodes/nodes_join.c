/* launch/nodes/nodes_join.c - a node joins the job, and waits for its part in the next attempt. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/store/address.h"
#include "launch/nodes/nodes.h"
#include "launch/nodes/nodes_state.h"

enum { MOST_MESSAGES = 50000 }; /* that a newcomer may find; about half of the store */

/* Seconds. */
static const double CONNECT_S = 300.0; /* wait for the coordinator's answer */
static const double NEXT_S = 0.5;      /* between tries, while a job that has ended still leaves */

/* --- joining ------------------------------------------------------------------------------ */

/* Nothing has been started yet: end by the signal, like a program without handlers. */
static _Noreturn void end_by(struct lks__nodes *n, int sig)
{
    sigprocmask(SIG_SETMASK, &n->job->old_mask, NULL);
    raise(sig);
    _exit(128 + sig);
}

/* Other nodes, or this one, wait for connections that its store can't accept. */
static void say_full(struct lks__nodes *n)
{
    if (n->said_full || n->job->store == NULL || !lks__store_is_full(n->job->store))
        return;
    n->said_full = true;
    lks__say(n->job, "a node can't connect: %s", lks__sys_reason(EMFILE));
}

static const char *endpoint_option(const struct lks__nodes *n)
{
    const char *option = n->job->options->endpoint_option;
    return option != NULL ? option : "--master-addr";
}

/* Explain why nodes on other machines can't join, if the first node listens at an address that they
 * can't reach. */
static void explain_loopback(const struct lks__nodes *n, char text[512])
{
    const char *host = n->job->store_host;
    char number[LKS__NUMBER_BYTES], advice[LKS__NUMBER_BYTES], name[300] = "";
    text[0] = '\0';
    if (!lks__address_is_loopback(host, number))
        return;
    if (strcmp(host, number) != 0)
        snprintf(name, sizeof name, "%s is %s here; ", lks__shown(host, 200), number);
    lks__address_advice(advice);
    snprintf(text, 512,
             "; %sother machines can't reach this address: for nodes there, give all nodes "
             "%s=%s",
             name, endpoint_option(n), advice);
}

/* The node that waits for the first one, and the signal that ends its wait. */
static struct lks__nodes *joining;
static int join_signal;

static int ends_join(int other)
{
    say_full(joining);
    if (join_signal == 0)
        join_signal = lks__job_pending_signal(joining->job);
    if (join_signal == 0)
        join_signal = other;
    return join_signal;
}

static lks_status connect_to_first(struct lks__nodes *n, lks__store **store_p)
{
    const double start = lks__sys_now();
    joining = n;
    for (double try_s = LKS__NODES_PATIENCE_S;; try_s = CONNECT_S - LKS__NODES_PATIENCE_S) {
        lks__sys_give_up_when(ends_join);
        const lks_status st =
            lks__store_open(n->job->store_host, n->job->store_port, n->job->token, try_s, store_p);
        lks__sys_give_up_when(NULL);
        if (join_signal != 0)
            end_by(n, join_signal);
        if (st != LKS_ERR_TIMEOUT)
            return st;
        if (try_s > LKS__NODES_PATIENCE_S)
            return lks__fail_in(st, "no first node was found for %.0f s", lks__sys_now() - start);
        lks__say_here(n->job, "host %s waits up to %.0f s for the first node: %s%s%s%s",
                      n->job->host, CONNECT_S, lks_last_error(),
                      n->not_first[0] != '\0' ? "; this node isn't the first: " : "", n->not_first,
                      n->job->options->endpoint_host == NULL
                          ? "; if it is on another machine, give its address with --master-addr"
                          : "");
    }
}

void lks__nodes_command(const struct lks__nodes *n, char out[LKS__NODES_COMMAND])
{
    char line[LKS__NODES_COMMAND] = "";
    for (char *const *word = n->job->options->argv; *word != NULL; word++)
        lks__append(line, sizeof line, " ", "%s", *word);
    lks__escape(out, LKS__NODES_COMMAND, line, strlen(line));
}

/* A supervisor may start a launcher again and again that the job refuses, or that leaves at once.
 * Keep it out before the store has no room for the job's own messages. */
static lks_status check_room(struct lks__nodes *n)
{
    int64_t n_messages;
    char where[LKS__ADDRESS_BYTES];
    LKS__TRY(lks__store_add(n->say, LKS__NODES_LIST, 0, &n_messages));
    if (n_messages < MOST_MESSAGES)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_NOMEM,
        "the job at %s accepts no more nodes after %d messages: too many have come and "
        "gone. Its first node prints which ones it refuses; start the job again",
        lks__address_text(where, n->job->store_host, n->job->store_port), MOST_MESSAGES);
}

static lks_status connect_both(struct lks__nodes *n)
{
    char command[LKS__NODES_COMMAND];
    char will[96], range[32], restarts[16], address[64];
    LKS__TRY(connect_to_first(n, &n->say));
    LKS__TRY(connect_to_first(n, &n->hear));
    LKS__TRY(check_room(n));
    LKS__TRY(lks__store_local_address(n->say, address, sizeof address));
    lks__address_bare(n->job->local_address, sizeof n->job->local_address,
                      n->job->options->local_addr != NULL ? n->job->options->local_addr : address);
    LKS__TRY(lks__token_new(n->key));
    snprintf(will, sizeof will, "{\"is\":\"lost\",\"key\":\"%s\"}", n->key);
    /* On the connection of our messages, so that the server reads all of them before it. */
    LKS__TRY(lks__store_will(n->say, LKS__NODES_LIST, will, strlen(will)));
    lks__nodes_range(n, range);
    snprintf(restarts, sizeof restarts, "%d", n->job->options->max_restarts);
    /* The id may be any bytes, but JSON has only text. */
    const char *run_id = lks__shown(n->job->given_id, LKS__NODES_RUN_ID);
    const char *role = lks__shown(n->job->role, 64);
    lks__nodes_command(n, command);
    /* Ranks find each other at the coordinator's address, because it has the first ranks. */
    lks__nodes_post(n, json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:s}", "is",
                                 "hello", "key", n->key, "host", n->job->host, "nproc",
                                 n->job->options->nproc, "rank",
                                 n->coordinator ? 0 : n->job->options->node_rank, "version",
                                 LKS_VERSION_TEXT, "nnodes", range, "run_id", run_id,
                                 "max_restarts", restarts, "command", command, "role", role));
    return lks__nodes_ask_next(n);
}

/* Serve the store if this node is the first, and join the job with an empty list. */
static lks_status join(struct lks__nodes *n)
{
    struct lks__job *job = n->job;
    const lks__launch_options *o = job->options;
    *n = (struct lks__nodes){.job = job,
                             .self = -1,
                             .min = o->min_nodes,
                             .max = o->max_nodes,
                             .gather_since = lks__sys_now(),
                             .joined_at = lks__sys_now()};
    int link_s; /* checked here, so that the store's ERR_CONFIG below is the address's */
    LKS__TRY(lks__link_timeout(&link_s));
    if (o->node_rank <= 0) {
        lks_status st = lks__store_serve(job->store_host, job->store_port, job->token, &job->store);
        if (st == LKS_OK)
            job->store_port = lks__store_port(job->store);
        else if (st == LKS_ERR_CONFIG) /* with --hosts, the name may be only ssh's */
            return lks__fail_in(st, "%s", endpoint_option(n));
        else if (st != LKS_ERR_SUPPORT || o->node_rank == 0)
            return st;
        else
            snprintf(n->not_first, sizeof n->not_first, "%s", lks_last_error());
        n->coordinator = st == LKS_OK;
    }
    return connect_both(n);
}

void lks__nodes_leave(struct lks__nodes *n)
{
    lks__store_close(n->hear);
    lks__store_close(n->say);
    for (int i = 0; i < n->n_nodes; i++)
        lks__job_node_forget(&n->nodes[i]);
    free(n->nodes);
    free(n->tail);
    free(n->table);
}

/* The job that answered had ended before our hello, or ended before it was heard. Join the next one
 * at that address, whose coordinator may not have started yet. */
static lks_status join_next(struct lks__nodes *n)
{
    lks_status st;
    do {
        struct pollfd p = {.fd = n->job->signals, .events = POLLIN};
        poll(&p, 1, (int)(NEXT_S * 1e3));
        lks__nodes_leave(n);
        st = join(n);
    } while (st == LKS_ERR_PEER);
    return st;
}

lks_status lks__nodes_open(struct lks__job *job, struct lks__nodes **nodes_p)
{
    struct lks__nodes *n = calloc(1, sizeof *n);
    LKS__MEMORY(n, "for the job's nodes");
    *nodes_p = n;
    n->job = job;
    lks_status st = join(n);
    return st == LKS_ERR_PEER ? join_next(n) : st;
}

/* join_next() for a launcher that has waited since time `since`. */
static lks_status join_in_time(struct lks__nodes *n, double since, bool *said_p)
{
    const double waited = lks__sys_now() - since;
    char where[LKS__ADDRESS_BYTES];
    if (waited >= CONNECT_S)
        return lks__fail(LKS_ERR_TIMEOUT, "only a job that has ended was found for %.0f s", waited);
    if (!*said_p && waited > LKS__NODES_PATIENCE_S)
        lks__say_here(n->job,
                      "host %s waits up to %.0f s for the next job at %s: the job there has ended, "
                      "and waits for slow nodes to leave",
                      n->job->host, CONNECT_S,
                      lks__address_text(where, n->job->store_host, n->job->store_port));
    *said_p |= waited > LKS__NODES_PATIENCE_S;
    return join_next(n);
}

/* --- waiting for a part ------------------------------------------------------------------- */

/* The coordinator gives up while the job waits for nodes: end the others' wait, too. */
static void end_waiting(struct lks__nodes *n, int code, const char *text)
{
    n->again = false;
    lks__nodes_post_end(n, false, code, text, "", "");
}

static void end_on_signal(struct lks__nodes *n, int sig)
{
    char text[200];
    snprintf(text, sizeof text, "signal %d (SIG%s) on host %s ended the job's wait for nodes", sig,
             lks__signal_name(sig), n->job->host);
    end_waiting(n, 128 + sig, text);
}

/* Tell the user once why the job doesn't start. */
static void say_waiting(struct lks__nodes *n)
{
    if (n->said_what || lks__sys_now() - n->gather_since <= LKS__NODES_PATIENCE_S)
        return;
    char where[LKS__ADDRESS_BYTES], most[32], why[512];
    n->said_what = true;
    if (n->running) {
        lks__say(n->job, "the job at %s runs without this node until its next start",
                 lks__address_text(where, n->job->store_host, n->job->store_port));
        return;
    }
    snprintf(most, sizeof most, " to %d", n->max);
    explain_loopback(n, why);
    lks__say(n->job, "waiting for nodes at %s: %d here, %d%s needed%s",
             lks__address_text(where, n->job->store_host, n->job->store_port), lks__nodes_here(n),
             n->min, n->max > n->min ? most : "", why);
}

/* Too few nodes came in time: end the job. */
static lks_status fail_few(struct lks__nodes *n)
{
    const lks_status st = lks__fail(
        LKS_ERR_TIMEOUT,
        "%d of at least %d nodes are here after %g s; start the same command on the others",
        lks__nodes_here(n), n->min, lks__nodes_join_s(n));
    end_waiting(n, 1, lks_last_error());
    return st;
}

/* The job ended by a signal, or if `sig` is 0 by its verdict, before this node took part. Returns
 * the exit code. */
static int end_gathering(struct lks__nodes *n, int sig)
{
    if (sig != 0 && n->coordinator)
        end_on_signal(n, sig);
    else if (sig != 0)
        lks__nodes_post(n, json_pack("{s:s, s:s, s:i, s:b}", "is", "signal", "key", n->key,
                                     "signal", sig, "leaves", true));
    else if (n->verdict.text[0] != '\0')
        lks__say(n->job, "%s", n->verdict.text);
    return sig != 0 ? 128 + sig : n->verdict.exit_code;
}

lks_status lks__nodes_gather(struct lks__nodes *n, int attempt, struct lks__nodes_part *part,
                             bool *over_p, int *exit_code_p)
{
    const double since = lks__sys_now();
    bool said = false;
    int sig = 0;
    n->part.attempt = attempt;
    n->stopping = n->said_what = false;
    *over_p = false;
    while (!(n->running && n->self >= 0 && n->nodes[n->self].in_round)) {
        if (n->coordinator && !n->running && !n->starting && !lks__nodes_gather_more(n))
            return fail_few(n);
        say_waiting(n);
        say_full(n);
        lks__nodes_say_refused(n);
        lks__nodes_show_life(n);
        lks_status st = lks__nodes_listen(n, false, &sig);
        if (sig == 0 && (n->late || (st == LKS_ERR_PEER && n->self < 0))) {
            LKS__TRY(join_in_time(n, since, &said));
            continue;
        }
        LKS__TRY(st);
        if (n->refused[0] != '\0')
            return lks__fail(LKS_ERR_CONFIG, "%s", n->refused);
        if (sig != 0 || (n->over && n->self >= 0)) {
            *over_p = true;
            *exit_code_p = end_gathering(n, sig);
            return LKS_OK;
        }
    }
    *part = n->part;
    return LKS_OK;
}
