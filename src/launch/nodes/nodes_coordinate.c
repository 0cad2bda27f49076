#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/memstream.h"
#include "comm/store/address.h"
#include "launch/nodes/nodes_state.h"

enum { MOST_TABLES = 256 << 10 }; /* in bytes; fits into one value of the store */

/* Seconds. */
static const double JOIN_S = 600.0;    /* for enough nodes at the start, as in torchrun */
static const double REJOIN_S = 60.0;   /* ... and after a failure */
static const double LAST_CALL_S = 3.0; /* after a newcomer, once there are enough, for more */
static const double ASK_S = 1.0;
static const double STOPPED_S = 3.0; /* after a pause this long, this process itself was stopped */
static const double SILENT_S = 2.5;  /* a running launcher shows it more often, once asked */
static const double SAME_TIME_S = 0.5; /* events within it may have happened in any order */

double lks__nodes_join_s(const struct lks__nodes *n)
{
    return n->round == 0 ? JOIN_S : REJOIN_S;
}

void lks__nodes_range(const struct lks__nodes *n, char range[32])
{
    snprintf(range, 32, "%d:%d", n->min, n->max);
}

/* True if the node was started with the job's settings. */
static bool fits_settings(const struct lks__nodes *n, const json_t *hello,
                          const struct lks__job_node *node, char why[600])
{
    char theirs[LKS__NODES_COMMAND], ours[128], range[32];
    lks__nodes_range(n, range);
    snprintf(ours, sizeof ours, "%d", n->job->options->max_restarts);
    const char *run_id = lks__shown(n->job->given_id, LKS__NODES_RUN_ID);
    const struct {
        const char *key, *name, *value;
    } settings[] = {{"version", "lockstep's version", LKS_VERSION_TEXT},
                    {"run_id", "--rdzv-id", run_id},
                    {"nnodes", "--nnodes", range},
                    {"max_restarts", "--max-restarts", ours}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strcmp(lks__nodes_text(hello, settings[i].key), settings[i].value) == 0)
            continue;
        lks__nodes_copy(theirs, sizeof theirs, hello, settings[i].key);
        snprintf(why, 600,
                 "%s is \"%s\" on host %s and \"%s\" on host %s: all nodes of a job must "
                 "agree",
                 settings[i].name, theirs, node->host, settings[i].value, n->job->host);
        return false;
    }
    return true;
}

/* True if the job has the rank that the node wants, and no other node wants it. */
static bool fits_rank(const struct lks__nodes *n, const struct lks__job_node *node, char why[600])
{
    char range[32];
    lks__nodes_range(n, range);
    if (node->wanted_rank >= n->max) {
        snprintf(why, 600,
                 "--node-rank is %d on host %s, and --nnodes is %s: node ranks count from "
                 "0",
                 node->wanted_rank, node->host, range);
        return false;
    }
    for (int i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].here && &n->nodes[i] != node && node->wanted_rank >= 0 &&
            n->nodes[i].wanted_rank == node->wanted_rank) {
            snprintf(why, 600,
                     "--node-rank is %d on host %s and on host %s: each node needs its own",
                     node->wanted_rank, n->nodes[i].host, node->host);
            return false;
        }
    return true;
}

/* False for a node of a second job at this address: it would wait as a spare, and do nothing. */
static bool fits_command(const struct lks__nodes *n, const json_t *hello, char why[600])
{
    char theirs[LKS__NODES_COMMAND], command[LKS__NODES_COMMAND];
    lks__nodes_command(n, command);
    if (!n->running || lks__nodes_here(n) <= n->max ||
        strcmp(lks__nodes_text(hello, "command"), command) == 0)
        return true;
    lks__nodes_copy(theirs, sizeof theirs, hello, "command");
    snprintf(
        why, 600,
        "the job at this address has all its nodes, and runs `%s`, not `%s`: another job needs "
        "another port (--master-port)",
        command, theirs);
    return false;
}

bool lks__nodes_fit(const struct lks__nodes *n, const json_t *hello,
                    const struct lks__job_node *node, char why[600])
{
    return fits_settings(n, hello, node, why) && fits_rank(n, node, why) &&
           fits_command(n, hello, why);
}

/* The node for group rank `g`: the one that asks for it, else the first without a preference. */
static int pick(const struct lks__nodes *n, int g, const bool *taken)
{
    for (int i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].here && !taken[i] && n->nodes[i].wanted_rank == g)
            return i;
    for (int i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].here && !taken[i] && n->nodes[i].wanted_rank < 0)
            return i;
    return -1;
}

/* The largest number of ranks that divides the virtual ranks evenly; all ranks if the number of
 * virtual ranks isn't given. */
static int world_size_of(const struct lks__nodes *n, int most)
{
    int V = n->job->options->virtual_ranks;
    if (V == 0 || most == 0)
        return most;
    int W = most < V ? most : V;
    while (!n->job->options->allow_uneven && V % W != 0)
        W--;
    return W;
}

/* Choose n->max nodes at most, in the order of their group ranks; others that are here wait for a
 * later round. Returns their number, and the number of their ranks; -1: no memory. */
static int choose(const struct lks__nodes *n, int *chosen, int *ranks_p)
{
    bool *taken = calloc((size_t)n->n_nodes, sizeof *taken);
    int count = taken != NULL ? 0 : -1;
    *ranks_p = 0;
    for (int g = 0; taken != NULL && g < n->max; g++) {
        const int i = pick(n, g, taken);
        if (i < 0)
            continue; /* with fewer than all nodes, some ranks are missing: renumber */
        taken[i] = true;
        chosen[count++] = i;
        *ranks_p += n->nodes[i].nproc;
    }
    free(taken);
    return count;
}

static void start_round(struct lks__nodes *n)
{
    int *chosen = calloc((size_t)n->n_nodes, sizeof *chosen);
    json_t *members = json_array();
    int total = 0, first = 0, n_groups = 0;
    const int count = chosen != NULL ? choose(n, chosen, &total) : -1;
    bool whole = count >= 0;
    const int W = world_size_of(n, total);
    for (int k = 0; whole && k < count; k++) {
        const int nproc = n->nodes[chosen[k]].nproc, ranks = nproc < W - first ? nproc : W - first;
        whole = json_array_append_new(members,
                                      json_pack("{s:i, s:i, s:i, s:i}", "node", chosen[k], "group",
                                                n_groups, "first", first, "ranks", ranks)) == 0;
        first += ranks;
        n_groups += ranks > 0;
    }
    free(chosen);
    if (!whole) {
        json_decref(members);
        lks__nodes_post(n, NULL);
        return;
    }
    lks__nodes_post(n, json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:o}", "is", "round", "round",
                                 n->round, "attempt", n->part.attempt, "world", W, "groups",
                                 n_groups, "port", lks__free_port(n->job->store_host), "job",
                                 n->job->id, "members", members));
}

bool lks__nodes_gather_more(struct lks__nodes *n)
{
    double now = lks__sys_now();
    int here = lks__nodes_here(n);
    /* At the end of a round all remaining nodes have reported, so only newcomers may follow. */
    bool newcomers = n->round == 0 || n->joined_at > n->gather_since;
    if (here >= n->max || (here >= n->min && (!newcomers || now - n->joined_at >= LAST_CALL_S))) {
        n->starting = true;
        start_round(n);
        return true;
    }
    return here >= n->min || now - n->gather_since < lks__nodes_join_s(n);
}

/* How likely a node's end is the cause: other ends are consequences. */
static int weight(const struct lks__job_node *m)
{
    return m->lost ? 3 : m->by_signal ? 2 : 1;
}

/* True if the node has failed and may be named. Nodes that only followed others count only if all
 * failed nodes did. */
static bool may_be_first(const struct lks__job_node *m, bool followers)
{
    return m->in_round && !m->ok && m->text != NULL && (followers || !m->follows);
}

/* The rows of a table, after its head; NULL if there is no table. */
static const char *rows_of(const struct lks__job_node *m)
{
    return m->table != NULL ? strchr(m->table, '\n') : NULL;
}

/* A host's rows, or a line that says why it sent none. */
static void add_rows(FILE *f, const struct lks__job_node *m)
{
    const char *rows = rows_of(m);
    fprintf(f, " host %s%s", m->host,
            rows != NULL ? rows
            : m->lost    ? ": it is gone\n"
            : m->settled ? ": its ranks have ended\n"
            : m->silent  ? ": it doesn't answer\n"
                         : ": its ranks don't end\n");
}

/* One status table of all nodes' ranks, with one head; "" if all made progress. The caller frees
 * it. */
static char *all_tables(const struct lks__nodes *n)
{
    const struct lks__job_node *still = NULL;
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    for (int i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].in_round && n->nodes[i].still && rows_of(&n->nodes[i]) != NULL)
            still = &n->nodes[i];
    if (f != NULL && still != NULL)
        fprintf(f, "%.*s\n", (int)(rows_of(still) - still->table), still->table);
    for (int g = 0; f != NULL && still != NULL && g < n->n_nodes; g++)
        for (int i = 0; i < n->n_nodes; i++) {
            const struct lks__job_node *m = &n->nodes[i];
            size_t more = m->table != NULL ? strlen(m->table) : 0;
            if (m->in_round && m->group_rank == g && (size_t)ftell(f) + more <= MOST_TABLES)
                add_rows(f, m);
        }
    return f != NULL ? lks__memstream_end(f, &text) : NULL;
}

/* The node whose end the message names. Among the nodes that failed at about the same time as the
 * first, it is the most likely cause. */
static const struct lks__job_node *find_first(const struct lks__nodes *n)
{
    const struct lks__job_node *first = NULL;
    double earliest = INFINITY;
    bool cause = false;
    for (int i = 0; i < n->n_nodes; i++)
        cause |= may_be_first(&n->nodes[i], false);
    for (int i = 0; i < n->n_nodes; i++)
        if (may_be_first(&n->nodes[i], !cause) && n->nodes[i].down_at > 0)
            earliest = fmin(earliest, n->nodes[i].down_at);
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        if (!may_be_first(m, !cause) || m->down_at > earliest + SAME_TIME_S)
            continue;
        if (first == NULL || weight(m) > weight(first) ||
            (weight(m) == weight(first) && m->down_at < first->down_at))
            first = m;
    }
    return first;
}

/* The job's exit code: 0 if every node of the round has reported that all its ranks exited with 0,
 * else `code`, or 1. */
static int exit_code(const struct lks__nodes *n, int code)
{
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        bool zero = m->code == 0 && (m->ok || m->user_signal != 0);
        if (m->in_round && !zero)
            return code != 0 ? code : 1;
    }
    return 0;
}

/* True if this host has lost all others, and so is itself the cause. A host that doesn't answer
 * counts as lost: it would be lost a moment later. */
static bool describe_own_loss(const struct lks__nodes *n, char text[LKS__LAUNCH_MESSAGE])
{
    char name[LKS__INTERFACE_BYTES], why[96] = "its own network fails, or all their launchers were "
                                               "killed or stopped at once";
    int others = 0, gone = 0;
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        others += m->in_round && i != n->self;
        gone += m->in_round && i != n->self && (m->lost || m->silent);
    }
    if (gone == 0 || gone < others)
        return false;
    if (lks__address_is_cut(n->job->local_address, name))
        snprintf(why, sizeof why, "its network interface %s has no link", name);
    else if (gone == 1)
        return false;
    snprintf(text, LKS__LAUNCH_MESSAGE, "this host (%s) lost its connection to all other nodes: %s",
             n->job->host, why);
    return true;
}

/* True if the node's first rank has ended on the user's signal, as it should. */
static bool has_stopped(const struct lks__job_node *m)
{
    return m->user_signal != 0 && m->code == 128 + m->user_signal;
}

/* The node that determines the exit code of a stop: the first whose ranks haven't only followed
 * others, because if any rank has saved, rank 0 has. NULL if all codes are 0. */
static const struct lks__job_node *find_stop(const struct lks__nodes *n)
{
    const struct lks__job_node *found = NULL;
    bool found_follows = true;
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        const bool follows = m->follows && !has_stopped(m);
        if (!m->in_round || m->user_signal == 0 || m->code == 0)
            continue;
        if (found != NULL &&
            (follows != found_follows ? follows : m->group_rank > found->group_rank))
            continue;
        found = m;
        found_follows = follows;
    }
    return found;
}

/* Ranks have failed only because they lost another host's first rank, which `failure` names as
 * comm/hier/link/heartbeat.c does. If it had exited with code 0 by then, it is the cause. */
static void describe_leaver(const struct lks__nodes *n, const char *failure,
                            char text[LKS__LAUNCH_MESSAGE])
{
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        char lost[48];
        snprintf(lost, sizeof lost, "rank %d (the first of ", m->left - 1);
        if (!m->in_round || m->left == 0 || strstr(failure, lost) == NULL)
            continue;
        snprintf(text, LKS__LAUNCH_MESSAGE,
                 "rank %d (host %s) exited with code 0 while other ranks still waited for it: "
                 "%.900s. All ranks must make the same calls: find out why rank %d ended so early",
                 m->left - 1, m->host, failure, m->left - 1);
        return;
    }
}

/* Describe the end in a sentence: the first failure, and any node without which the job continues;
 * during a stop, the nodes that have not stopped. */
static void describe(const struct lks__nodes *n, const struct lks__job_node *first, bool stop,
                     char text[LKS__LAUNCH_MESSAGE])
{
    if (describe_own_loss(n, text))
        return;
    snprintf(text, LKS__LAUNCH_MESSAGE, "%s",
             first != NULL && first->text != NULL ? first->text : "");
    if (!stop && first != NULL && first->text != NULL && first->follows && !first->still)
        describe_leaver(n, first->text, text);
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        const bool lost = m->dropped || ((stop || first == NULL) && m->lost);
        if (m->in_round && (lost || (stop && m->killed && !m->follows)) && m != first &&
            m->text != NULL)
            lks__append(text, LKS__LAUNCH_MESSAGE, "; ", "%s", m->text);
    }
}

void lks__nodes_post_end(struct lks__nodes *n, bool again, int code, const char *text,
                         const char *tail, const char *table)
{
    n->ended = true;
    lks__nodes_post(n, json_pack("{s:s, s:i, s:b, s:i, s:o, s:s, s:s}", "is", "end", "round",
                                 n->round, "again", again, "code", code, "text",
                                 lks__json_utf8(text), "tail", tail, "table", table));
}

static void decide(struct lks__nodes *n)
{
    char text[LKS__LAUNCH_MESSAGE];
    const struct lks__job_node *first = NULL;
    bool lasting = false, stop = false, killed = false;
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        lasting |= m->in_round && m->lasting;
        stop |= m->in_round && m->user_signal != 0;
        killed |= m->in_round && m->killed;
    }
    first = stop ? find_stop(n) : find_first(n);
    if (first == NULL && exit_code(n, 0) != 0) /* others have exited with 0 on the signal */
        first = find_first(n);
    int code = first == NULL ? 0 : killed && !has_stopped(first) ? 128 + SIGKILL : first->code;
    /* A coordinator whose own ranks don't end can't begin another round. */
    bool stuck = n->self >= 0 && n->nodes[n->self].dropped;
    bool again = first != NULL && !n->stopping && !lasting && !stuck &&
                 n->part.attempt < n->job->options->max_restarts;
    char *table = all_tables(n);
    describe(n, first, stop, text);
    lks__nodes_post_end(n, again, exit_code(n, code), text,
                        first != NULL && first->tail != NULL ? first->tail : "",
                        table != NULL ? table : "");
    free(table);
}

/* Seconds since a node's launcher, which was asked, has last shown that it runs. */
static double silence_of(const struct lks__nodes *n, const struct lks__job_node *m)
{
    return n->asked_at > 0 ? lks__sys_now() - fmax(m->alive_at, n->asked_at) : 0;
}

/* Stop waiting for a node, and leave it out of the next round. It learns so when it runs again. */
static void drop(struct lks__nodes *n, struct lks__job_node *m)
{
    char how[96], why[96], ranks[48];
    m->silent = silence_of(n, m) > SILENT_S;
    snprintf(how, sizeof how,
             m->silent ? "doesn't answer: its launcher is stopped, or its machine hangs"
                       : "didn't end its ranks within %d s",
             LKS__SETTLE_S);
    snprintf(why, sizeof why,
             m->silent ? "it didn't answer"
                       : "its ranks didn't end within %d s of the first failure",
             LKS__SETTLE_S);
    m->dropped = true;
    m->down_at = lks__sys_now();
    m->code = 1;
    lks__job_node_forget(m);
    if (asprintf(&m->text, "node %d (host %s, %s) %s", m->group_rank, m->host,
                 lks__nodes_ranks(m, ranks), how) < 0)
        m->text = NULL;
    lks__nodes_post(
        n, json_pack("{s:s, s:i, s:s}", "is", "drop", "node", (int)(m - n->nodes), "why", why));
}

void lks__nodes_try_to_decide(struct lks__nodes *n)
{
    bool all = true, late = n->end_by > 0 && lks__sys_now() >= n->end_by;
    if (!n->coordinator || !n->running || n->ended)
        return;
    for (int i = 0; i < n->n_nodes; i++) {
        struct lks__job_node *m = &n->nodes[i];
        if (!m->in_round || m->settled || m->dropped)
            continue;
        /* During a stop, launchers give their ranks time; then they report that they kill them. */
        if (late && (!n->stopping || m->down_at > 0))
            drop(n, m);
        else
            all = false;
    }
    if (all)
        decide(n);
}

static void read_life(struct lks__nodes *n, struct lks__job_node *m)
{
    char key[64];
    void *data = NULL;
    size_t bytes = 0;
    uint64_t alive = m->alive;
    snprintf(key, sizeof key, LKS__NODES_ALIVE, (int)(m - n->nodes));
    if (lks__store_get(n->say, key, 0, &data, &bytes) == LKS_OK && bytes == sizeof alive)
        memcpy(&alive, data, sizeof alive);
    free(data);
    if (alive != m->alive)
        m->alive_at = lks__sys_now();
    m->alive = alive;
}

void lks__nodes_ask_for_life(struct lks__nodes *n)
{
    double now = lks__sys_now();
    if (!n->coordinator || !n->running || n->ended || now < n->asked_next)
        return;
    if (n->asked_at == 0)
        lks__nodes_post(n, json_pack("{s:s, s:i}", "is", "ask", "node", n->self));
    if (n->asked_at == 0 || now - n->asked_next > STOPPED_S)
        n->asked_at = now;
    n->asked_next = now + ASK_S;
    for (int i = 0; i < n->n_nodes; i++) {
        struct lks__job_node *m = &n->nodes[i];
        if (!m->in_round || m->settled || m->dropped || i == n->self)
            continue;
        read_life(n, m);
        if (silence_of(n, m) <= lks__nodes_limit(n, n->patience_s))
            continue;
        lks__nodes_post(n,
                        json_pack("{s:s, s:i, s:i}", "is", "down", "node", i, "round", n->round));
        drop(n, m);
    }
}
