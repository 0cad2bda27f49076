#include "launch/nodes.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/sys.h"
#include "net/address.h"

/* Seconds. */
static const double CONNECT_S = 300.0; /* for the coordinator to be there */
static const double JOIN_S = 600.0;    /* for enough nodes at the start: torchrun's */
static const double REJOIN_S = 60.0;   /* ... and after a failure */
static const double LAST_CALL_S = 3.0; /* for more nodes, once there are enough */
static const double SETTLE_S = 10.0;   /* from the first failure to every node's verdict */
static const double SAME_TIME_S = 0.5; /* what happens within it may have any order */
static const double PATIENCE_S = 5.0;  /* until we say what we wait for */

#define LIST "lockstep/launch"

/* One node, as the list tells of it. */
struct node {
    char key[LKS__TOKEN_BYTES + 4]; /* its own name for itself */
    char host[64], address[64];
    int nproc, wanted_rank; /* -1: any */
    bool here;              /* has come, wasn't refused, isn't lost */
    /* In the round at hand: */
    bool in_round, settled;
    int group_rank, first_rank, n_ranks;
    double down_at; /* coordinator: when its end began; 0: not */
    bool ok, by_signal, lost;
    int code, user_signal;
    char *text, *tail;
};

struct lks__nodes {
    lks__store *say, *hear; /* two connections: one always waits for the next message */
    long n_heard;
    bool coordinator;
    char key[LKS__TOKEN_BYTES]; /* this node's */
    int self;                   /* its number; -1 until the list has it */
    int min, max;
    struct node *nodes; /* [n_nodes], by number from 0 */
    int n_nodes;
    int round;     /* the next one's number */
    bool starting; /* coordinator: the round has been posted */
    bool running, ended, again;
    double gather_since, joined_at, end_by;
    bool said_what;
    char lost_text[600]; /* the coordinator is gone: why */
    char refused[800];   /* this node is: why */
    struct lks__verdict verdict;
    char *tail;
};

/* --- messages ----------------------------------------------------------------------------- */

/* Takes the reference. A coordinator that is gone is noticed by whoever listens. */
static void post(const struct lks__nodes *n, json_t *message)
{
    char *text = json_dumps(message, JSON_COMPACT);
    json_decref(message);
    if (text != NULL)
        (void)lks__store_post(n->say, LIST, text, strlen(text));
    free(text);
}

static int int_of(const json_t *m, const char *key, int fallback)
{
    const json_t *v = json_object_get(m, key);
    json_int_t i = json_is_integer(v) ? json_integer_value(v) : fallback;
    return i >= INT32_MIN && i <= INT32_MAX ? (int)i : fallback;
}

static const char *text_of(const json_t *m, const char *key)
{
    const char *text = json_string_value(json_object_get(m, key));
    return text != NULL ? text : "";
}

static void copy_text(char *to, size_t bytes, const json_t *m, const char *key)
{
    const char *text = text_of(m, key);
    lks__escape(to, bytes, text, strlen(text));
}

static struct node *node_of(struct lks__nodes *n, const json_t *m)
{
    int uid = int_of(m, "node", -1);
    return uid >= 0 && uid < n->n_nodes ? &n->nodes[uid] : NULL;
}

static struct node *node_by_key(struct lks__nodes *n, const char *key)
{
    for (int i = 0; i < n->n_nodes; i++)
        if (strcmp(n->nodes[i].key, key) == 0)
            return &n->nodes[i];
    return NULL;
}

/* --- the coordinator's decisions ---------------------------------------------------------- */

/* Settings that must be one for all: those of the coordinator's own hello count. */
static bool fits(struct lks__launch *l, const json_t *hello, const struct node *node, char why[600])
{
    struct lks__nodes *n = l->nodes;
    char theirs[128], ours[128], range[32];
    snprintf(range, sizeof range, "%d:%d", n->min, n->max);
    snprintf(ours, sizeof ours, "%d", l->options->max_restarts);
    const struct {
        const char *key, *name, *value;
    } settings[] = {{"version", "lockstep's version", LKS_VERSION},
                    {"run_id", "--rdzv-id", l->given_id},
                    {"nnodes", "--nnodes", range},
                    {"max_restarts", "--max-restarts", ours}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        copy_text(theirs, sizeof theirs, hello, settings[i].key);
        if (strcmp(theirs, settings[i].value) == 0)
            continue;
        snprintf(why, 600,
                 "%s is \"%s\" on host %s and \"%s\" on host %s: all nodes of a job must "
                 "agree",
                 settings[i].name, theirs, node->host, settings[i].value, l->host);
        return false;
    }
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

static int count_here(const struct lks__nodes *n)
{
    int here = 0;
    for (int i = 0; i < n->n_nodes; i++)
        here += n->nodes[i].here;
    return here;
}

/* The node that gets group rank `g`: who asks for it, else the first without a wish. */
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

/* The most ranks that share the virtual ranks evenly; all where nobody has said how many. */
static int world_size_of(const struct lks__launch *l, int most)
{
    int V = l->options->virtual_ranks;
    if (V == 0 || most == 0)
        return most;
    int W = most < V ? most : V;
    while (!l->options->allow_uneven && V % W != 0)
        W--;
    return W;
}

static void start_round(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    bool *taken = calloc((size_t)n->n_nodes, sizeof *taken);
    json_t *members = json_array();
    int total = 0, first = 0, n_groups = 0, size = n->max;
    for (int i = 0; i < n->n_nodes; i++)
        total += n->nodes[i].here ? n->nodes[i].nproc : 0;
    int W = world_size_of(l, total);
    for (int g = 0; taken != NULL && g < size; g++) {
        int i = pick(n, g, taken);
        if (i < 0)
            continue; /* with fewer than the most nodes, some ranks are nobody's: close up */
        taken[i] = true;
        int ranks = n->nodes[i].nproc < W - first ? n->nodes[i].nproc : W - first;
        json_array_append_new(members, json_pack("{s:i, s:i, s:i, s:i}", "node", i, "group",
                                                 n_groups, "first", first, "ranks", ranks));
        first += ranks;
        n_groups += ranks > 0;
    }
    free(taken);
    post(n, json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:o}", "is", "round", "round", n->round,
                      "attempt", l->attempt, "world", W, "groups", n_groups, "port",
                      lks__free_port(l->store_host), "job", l->job, "members", members));
}

/* Begin where enough have come; false: they didn't come in time. */
static bool gather_more(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    double now = lks__sys_now();
    int here = count_here(n);
    if (here >= n->max || (here >= n->min && now - n->joined_at >= LAST_CALL_S)) {
        n->starting = true;
        start_round(l);
        return true;
    }
    return here >= n->min || now - n->gather_since < (n->round == 0 ? JOIN_S : REJOIN_S);
}

/* How much an end looks like a cause and not like what follows from one. */
static int weight(const struct node *m)
{
    return m->lost ? 3 : m->by_signal ? 2 : 1;
}

/* All have told how they ended, or are gone: what becomes of the job. */
static void decide(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    struct node *first = NULL;
    int user_signal = 0, code = 0;
    double earliest = INFINITY;
    for (int i = 0; i < n->n_nodes; i++) {
        struct node *m = &n->nodes[i];
        if (m->in_round && m->user_signal != 0 && user_signal == 0) {
            user_signal = m->user_signal;
            code = m->code;
        }
        if (m->in_round && !m->ok && m->down_at > 0 && m->text != NULL)
            earliest = fmin(earliest, m->down_at);
    }
    for (int i = 0; i < n->n_nodes && user_signal == 0; i++) {
        struct node *m = &n->nodes[i];
        if (!m->in_round || m->ok || m->text == NULL || m->down_at > earliest + SAME_TIME_S)
            continue;
        if (first == NULL || weight(m) > weight(first) ||
            (weight(m) == weight(first) && m->down_at < first->down_at))
            first = m;
    }
    bool again = first != NULL && user_signal == 0 && l->attempt < l->options->max_restarts;
    n->ended = true;
    post(n, json_pack("{s:s, s:i, s:b, s:i, s:s, s:s}", "is", "end", "round", n->round, "again",
                      again, "code", first != NULL ? first->code : code, "text",
                      first != NULL ? first->text : "", "tail",
                      first != NULL && first->tail != NULL ? first->tail : ""));
}

static void try_to_decide(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    bool all = true, late = n->end_by > 0 && lks__sys_now() >= n->end_by;
    if (!n->coordinator || !n->running || n->ended)
        return;
    for (int i = 0; i < n->n_nodes; i++) {
        struct node *m = &n->nodes[i];
        if (m->in_round && !m->settled && late && m->text == NULL &&
            asprintf(&m->text, "node %d (host %s) didn't end its ranks in time", m->group_rank,
                     m->host) < 0)
            m->text = NULL;
        if (m->in_round && !m->settled && !late)
            all = false;
    }
    if (all)
        decide(l);
}

/* --- what the list says ------------------------------------------------------------------- */

static void begin_end(struct lks__launch *l, struct node *m)
{
    double now = lks__sys_now();
    if (m->down_at == 0)
        m->down_at = now;
    if (l->nodes->end_by == 0)
        l->nodes->end_by =
            now + SETTLE_S + (l->user_signal != 0 ? l->options->shutdown_timeout_s : 0);
}

static lks_status on_hello(struct lks__launch *l, const json_t *m)
{
    struct lks__nodes *n = l->nodes;
    char why[600];
    struct node *nodes = realloc(n->nodes, ((size_t)n->n_nodes + 1) * sizeof *nodes);
    if (nodes == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d nodes", n->n_nodes + 1);
    n->nodes = nodes;
    struct node *node = &nodes[n->n_nodes++];
    *node = (struct node){
        .here = true, .nproc = int_of(m, "nproc", 1), .wanted_rank = int_of(m, "rank", -1)};
    if (node->nproc < 1 || node->nproc > LKS__SEGMENT_MAX_RANKS)
        node->nproc = 1;
    copy_text(node->key, sizeof node->key, m, "key");
    if (strcmp(node->key, n->key) == 0)
        n->self = n->n_nodes - 1;
    copy_text(node->host, sizeof node->host, m, "host");
    copy_text(node->address, sizeof node->address, m, "address");
    n->joined_at = lks__sys_now();
    if (n->coordinator && !fits(l, m, node, why)) {
        node->here = false;
        post(n, json_pack("{s:s, s:i, s:s}", "is", "refuse", "node", n->n_nodes - 1, "why", why));
    }
    return LKS_OK;
}

static void forget_texts(struct node *m)
{
    free(m->text);
    free(m->tail);
    m->text = m->tail = NULL;
}

static void on_round(struct lks__launch *l, const json_t *message)
{
    struct lks__nodes *n = l->nodes;
    size_t i;
    json_t *member;
    for (int k = 0; k < n->n_nodes; k++) {
        struct node *m = &n->nodes[k];
        forget_texts(m);
        m->n_ranks = 0;
        m->in_round = m->settled = m->ok = m->by_signal = m->lost = false;
        m->code = m->user_signal = 0;
        m->down_at = 0;
    }
    json_array_foreach(json_object_get(message, "members"), i, member)
    {
        struct node *m = node_of(n, member);
        if (m == NULL)
            continue;
        m->group_rank = int_of(member, "group", 0);
        m->first_rank = int_of(member, "first", 0);
        m->n_ranks = int_of(member, "ranks", 0);
        m->in_round = m->n_ranks > 0;
        if (!m->here && m->in_round) { /* it left while this was on its way */
            m->lost = m->settled = true;
            begin_end(l, m);
        }
    }
    n->running = true;
    n->starting = n->ended = n->again = false;
    n->end_by = 0;
    struct node *me = n->self >= 0 ? &n->nodes[n->self] : NULL;
    if (me != NULL && me->here && me->n_ranks < l->options->nproc)
        lks__say(l,
                 "%d of this node's ranks stay idle: of the world sizes that divide "
                 "--virtual-ranks=%d, %d is the largest for so many",
                 l->options->nproc - me->n_ranks, l->options->virtual_ranks,
                 int_of(message, "world", 1));
    if (me == NULL || !me->in_round)
        return;
    l->attempt = int_of(message, "attempt", 0);
    l->world_size = int_of(message, "world", 1);
    l->n_groups = int_of(message, "groups", 1);
    l->master_port = int_of(message, "port", 0);
    l->group_rank = me->group_rank;
    l->first_global = me->first_rank;
    l->nproc = me->n_ranks <= l->options->nproc ? me->n_ranks : l->options->nproc;
    snprintf(l->job, sizeof l->job, "%s", text_of(message, "job"));
}

static void on_verdict(struct lks__launch *l, struct node *m, const json_t *message)
{
    if (m->settled || int_of(message, "round", -1) != l->nodes->round)
        return;
    m->settled = true;
    m->ok = json_is_true(json_object_get(message, "ok"));
    m->by_signal = json_is_true(json_object_get(message, "by_signal"));
    m->code = int_of(message, "code", 1);
    m->user_signal = int_of(message, "user_signal", 0);
    forget_texts(m);
    if (*text_of(message, "text") != '\0')
        m->text = strdup(text_of(message, "text"));
    m->tail = strdup(text_of(message, "tail"));
    if (!m->ok)
        begin_end(l, m);
}

static void on_lost(struct lks__launch *l, struct node *m)
{
    m->here = false;
    if (!m->in_round || m->settled)
        return;
    m->settled = m->lost = true;
    m->code = 1;
    begin_end(l, m);
    forget_texts(m);
    if (asprintf(&m->text,
                 "node %d (host %s, ranks %d to %d) is gone: its launcher was killed, or "
                 "the machine or the network between fails",
                 m->group_rank, m->host, m->first_rank, m->first_rank + m->n_ranks - 1) < 0)
        m->text = NULL;
}

static void on_end(struct lks__launch *l, const json_t *message)
{
    struct lks__nodes *n = l->nodes;
    n->ended = true;
    n->running = false;
    n->again = json_is_true(json_object_get(message, "again"));
    n->verdict = (struct lks__verdict){.culprit = -1, .exit_code = int_of(message, "code", 1)};
    snprintf(n->verdict.text, sizeof n->verdict.text, "%s", text_of(message, "text"));
    free(n->tail);
    n->tail = strdup(text_of(message, "tail"));
    n->round++;
    n->gather_since = n->joined_at = lks__sys_now();
}

/* Has some other node's end become ours? */
static void end_with_others(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    for (int i = 0; i < n->n_nodes; i++)
        if (n->running && i != n->self && n->nodes[i].in_round && n->nodes[i].down_at > 0)
            lks__end_with_others(l);
}

static lks_status on_message(struct lks__launch *l, const json_t *m)
{
    struct lks__nodes *n = l->nodes;
    const char *is = text_of(m, "is");
    if (strcmp(is, "hello") == 0)
        return on_hello(l, m);
    if (strcmp(is, "round") == 0)
        on_round(l, m);
    else if (strcmp(is, "end") == 0)
        on_end(l, m);
    struct node *node = strcmp(is, "lost") == 0 ? node_by_key(n, text_of(m, "key")) : node_of(n, m);
    if (node == NULL)
        return LKS_OK;
    if (strcmp(is, "refuse") == 0) {
        node->here = false;
        if (n->self >= 0 && node == &n->nodes[n->self])
            snprintf(n->refused, sizeof n->refused, "%s", text_of(m, "why"));
    } else if (strcmp(is, "down") == 0 && int_of(m, "round", -1) == n->round) {
        begin_end(l, node);
    } else if (strcmp(is, "signal") == 0 && n->running) {
        lks__pass_on(l, int_of(m, "signal", SIGTERM));
    } else if (strcmp(is, "verdict") == 0) {
        on_verdict(l, node, m);
    } else if (strcmp(is, "lost") == 0) {
        on_lost(l, node);
    }
    end_with_others(l);
    return LKS_OK;
}

static lks_status ask_next(struct lks__nodes *n)
{
    char key[64];
    snprintf(key, sizeof key, LIST "/%ld", n->n_heard + 1);
    return lks__store_ask(n->hear, key);
}

static lks_status hear_all(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    for (;;) {
        void *data = NULL;
        size_t bytes = 0;
        lks_status st = lks__store_answer(n->hear, &data, &bytes);
        if (st == LKS_IN_PROGRESS)
            return LKS_OK;
        LKS__TRY(st);
        n->n_heard++;
        json_t *m = json_loadb(data, bytes, 0, NULL);
        free(data);
        st = json_is_object(m) ? on_message(l, m) : LKS_OK;
        json_decref(m);
        LKS__TRY(st);
        LKS__TRY(ask_next(n));
    }
}

/* --- joining ------------------------------------------------------------------------------ */

static lks_status connect_both(struct lks__launch *l, struct lks__nodes *n)
{
    char will[96], range[32], restarts[16], address[64];
    LKS__TRY(lks__store_open(l->store_host, l->store_port, l->token, CONNECT_S, &n->say));
    LKS__TRY(lks__store_open(l->store_host, l->store_port, l->token, CONNECT_S, &n->hear));
    LKS__TRY(lks__store_local_address(n->say, address, sizeof address));
    snprintf(l->local_address, sizeof l->local_address, "%s",
             l->options->local_addr != NULL ? l->options->local_addr : address);
    LKS__TRY(lks__token_new(n->key));
    snprintf(will, sizeof will, "{\"is\":\"lost\",\"key\":\"%s\"}", n->key);
    LKS__TRY(lks__store_will(n->hear, LIST, will, strlen(will)));
    snprintf(range, sizeof range, "%d:%d", n->min, n->max);
    snprintf(restarts, sizeof restarts, "%d", l->options->max_restarts);
    /* Ranks find each other at the coordinator's address: its ranks are the first. */
    post(n,
         json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:s}", "is", "hello", "key",
                   n->key, "host", l->host, "address", l->local_address, "nproc", l->options->nproc,
                   "rank", n->coordinator ? 0 : l->options->node_rank, "version", LKS_VERSION,
                   "nnodes", range, "run_id", l->given_id, "max_restarts", restarts));
    return ask_next(n);
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

/* The store goes with this node: not before all have heard what becomes of the job and left. */
static void let_others_go(struct lks__launch *l)
{
    double until = lks__sys_now() + LKS__STORE_DEAD_S;
    while (count_here(l->nodes) > 1 && lks__sys_now() < until) {
        struct pollfd p = {.fd = lks__store_fd(l->nodes->hear), .events = POLLIN};
        poll(&p, 1, 100);
        if (hear_all(l) != LKS_OK)
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
        forget_texts(&n->nodes[i]);
    free(n->nodes);
    free(n->tail);
    free(n);
    l->nodes = NULL;
}

/* A signal to stop that has come, or 0; others are nobody's just now. */
static int pending_signal(struct lks__launch *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGTSTP && info.ssi_signo != SIGUSR1 &&
            info.ssi_signo != SIGUSR2)
            return (int)info.ssi_signo;
    return lks__lifeline_signal(l);
}

/* Wait for news of the list or a signal, at most so long. */
static lks_status listen_for(struct lks__launch *l, int ms, int *signal_p)
{
    struct pollfd p[3] = {{.fd = l->signals, .events = POLLIN},
                          {.fd = lks__store_fd(l->nodes->hear), .events = POLLIN},
                          {.fd = lks__lifeline_fd(l), .events = POLLIN}};
    poll(p, 3, ms);
    *signal_p = pending_signal(l);
    return hear_all(l);
}

lks_status lks__nodes_gather(struct lks__launch *l, bool *over_p, int *exit_code_p)
{
    struct lks__nodes *n = l->nodes;
    int sig = 0;
    *over_p = false;
    while (!(n->running && n->self >= 0 && n->nodes[n->self].in_round)) {
        if (n->coordinator && !n->running && !n->starting && !gather_more(l))
            return lks__fail(LKS_ERR_TIMEOUT,
                             "%d of at least %d nodes are here after %g s; start the same command "
                             "on the others",
                             count_here(n), n->min, n->round == 0 ? JOIN_S : REJOIN_S);
        if (!n->said_what && lks__sys_now() - n->gather_since > PATIENCE_S) {
            char where[LKS__ADDRESS_BYTES];
            n->said_what = true;
            lks__say(l, "waiting at %s: %d nodes are here, %d to %d are to be",
                     lks__address_text(where, l->store_host, l->store_port), count_here(n), n->min,
                     n->max);
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

static void coordinator_lost(struct lks__launch *l)
{
    snprintf(l->nodes->lost_text, sizeof l->nodes->lost_text, "the coordinator's node is gone: %s",
             lks_last_error());
    lks__end_with_others(l);
}

void lks__nodes_step(struct lks__launch *l)
{
    if (l->nodes == NULL || l->nodes->lost_text[0] != '\0')
        return;
    if (hear_all(l) != LKS_OK)
        coordinator_lost(l);
}

void lks__nodes_down(struct lks__launch *l)
{
    struct lks__nodes *n = l->nodes;
    if (n != NULL && n->lost_text[0] == '\0')
        post(n, json_pack("{s:s, s:i, s:i}", "is", "down", "node", n->self, "round", n->round));
}

void lks__nodes_signal(struct lks__launch *l, int sig)
{
    struct lks__nodes *n = l->nodes;
    if (n != NULL && n->lost_text[0] == '\0')
        post(n, json_pack("{s:s, s:i, s:i}", "is", "signal", "node", n->self, "signal", sig));
}

lks_status lks__nodes_settle(struct lks__launch *l, struct lks__verdict *v,
                             char tail[2 * LKS__TAIL_BYTES], bool *again_p)
{
    struct lks__nodes *n = l->nodes;
    const struct lks__rank_process *p = v->culprit >= 0 ? &l->ranks[v->culprit] : NULL;
    bool told = false;
    *again_p = false;
    /* A rank that we ended because of another node has nothing to tell. */
    bool own = v->culprit >= 0 && !l->ended_by_others;
    json_t *tail_json = json_string(tail); /* any bytes */
    if (tail_json == NULL)
        tail_json = json_string("    (not text)\n");
    if (n->lost_text[0] == '\0')
        post(n,
             json_pack("{s:s, s:i, s:i, s:b, s:b, s:i, s:i, s:s, s:o}", "is", "verdict", "node",
                       n->self, "round", n->round, "ok", v->culprit < 0 && l->user_signal == 0,
                       "by_signal", p != NULL && p->by_signal, "code", v->exit_code, "user_signal",
                       l->user_signal, "text", own ? v->text : "", "tail", tail_json));
    else
        json_decref(tail_json);
    double until = lks__sys_now() + SETTLE_S + l->options->shutdown_timeout_s;
    while (n->lost_text[0] == '\0' && n->running) {
        int sig;
        try_to_decide(l);
        if (listen_for(l, 100, &sig) != LKS_OK)
            coordinator_lost(l);
        else if (sig != 0 && told)
            return lks__fail(LKS_ERR_PEER, "stopped by a signal while other nodes still ran");
        else if (sig != 0)
            lks__nodes_signal(l, sig);
        told |= sig != 0;
        bool failing = !n->nodes[n->self].ok || n->end_by > 0;
        if (failing && lks__sys_now() >= until)
            return lks__fail(LKS_ERR_TIMEOUT,
                             "the coordinator doesn't say what becomes of the job");
        if (!failing)
            until = lks__sys_now() + SETTLE_S + l->options->shutdown_timeout_s;
    }
    if (n->lost_text[0] != '\0') {
        if (own) /* what we know is better than what we don't hear */
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
