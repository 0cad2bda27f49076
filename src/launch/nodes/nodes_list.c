#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "launch/nodes/nodes.h"
#include "launch/nodes/nodes_state.h"

enum {
    MAX_COUNT = 1 << 20, /* of ranks, nodes, attempts */
    MAX_SIGNAL = 31,     /* launchers pass on no signal above it */
};

/* Seconds. */
static const double ANSWER_S = 30.0; /* for the store's answer while nothing depends on it */
static const double STOPPED_S = 2.0; /* after a pause this long, this process itself was stopped */
static const double SHOW_S = 1.0;

/* --- messages ----------------------------------------------------------------------------- */

/* lks__nodes_hear_all() returns the first error. */
static void keep_error(struct lks__nodes *n, lks_status st)
{
    if (st == LKS_OK || n->unsaid != LKS_OK)
        return;
    n->unsaid = st;
    snprintf(n->unsaid_text, sizeof n->unsaid_text, "%s", lks_last_error());
}

void lks__nodes_post(struct lks__nodes *n, json_t *message)
{
    char *text = message != NULL ? lks__json_dump(message, JSON_COMPACT) : NULL;
    json_decref(message);
    lks_status st = text != NULL
                        ? lks__store_post_later(n->say, LKS__NODES_LIST, text, strlen(text))
                        : lks__no_memory("for a message to the job's other launchers");
    free(text);
    keep_error(n, st);
}

void lks__nodes_show_life(struct lks__nodes *n)
{
    char key[64];
    double now = lks__sys_now();
    if (n->self < 0 || n->owed_since > 0 || now - n->shown_at < SHOW_S)
        return;
    n->shown_at = now;
    n->n_shown++;
    snprintf(key, sizeof key, LKS__NODES_ALIVE, n->self);
    keep_error(n, lks__store_set_later(n->say, key, &n->n_shown, sizeof n->n_shown));
}

void lks__nodes_never_joins(struct lks__nodes *n, const char *why)
{
    char attempt[16], key[LKS__STORE_KEY_BYTES];
    if (n == NULL || n->lost_text[0] != '\0')
        return;
    snprintf(attempt, sizeof attempt, "%d", n->part.attempt);
    snprintf(key, sizeof key, LKS__STORE_GROUP_KEY, attempt, 0U, "failed");
    keep_error(n, lks__store_set_later(n->say, key, why, strlen(why)));
}

double lks__nodes_limit(const struct lks__nodes *n, double seconds)
{
    if (!n->failing || n->stopping)
        return seconds;
    return fmin(seconds, fmax(lks__link_s(), LKS__LEAST_STILL_S));
}

/* The store answers at once unless its launcher, or its machine, hangs. */
static void take_answers(struct lks__nodes *n)
{
    double now = lks__sys_now(), limit = n->patience_s > 0 ? n->patience_s : ANSWER_S;
    lks_status st = lks__store_told(n->say);
    if (st != LKS_IN_PROGRESS) {
        n->owed_since = 0;
        keep_error(n, st);
        return;
    }
    if (n->owed_since == 0 || now - n->looked_at > STOPPED_S)
        n->owed_since = now;
    n->looked_at = now;
    if (now - n->owed_since > lks__nodes_limit(n, limit))
        keep_error(n, lks__fail(LKS_ERR_TIMEOUT, "the job's store doesn't answer"));
}

/* A member between 0 and `most`, else the fallback. */
static int int_of(const json_t *m, const char *key, int most, int fallback)
{
    const json_t *v = json_object_get(m, key);
    json_int_t i = json_is_integer(v) ? json_integer_value(v) : -1;
    return i >= 0 && i <= most ? (int)i : fallback;
}

const char *lks__nodes_text(const json_t *m, const char *key)
{
    const char *text = json_string_value(json_object_get(m, key));
    return text != NULL ? text : "";
}

void lks__nodes_copy(char *to, size_t bytes, const json_t *m, const char *key)
{
    const char *text = lks__nodes_text(m, key);
    lks__escape(to, bytes, text, strlen(text));
}

/* Copy another launcher's sentence: keep its quotes, but escape bytes that could move the
 * cursor. */
static void copy_sentence(char *to, size_t bytes, const json_t *m, const char *key)
{
    snprintf(to, bytes, "%s", lks__nodes_text(m, key));
    lks__utf8_printable(to, false);
}

/* copy_sentence() for several lines. The caller frees them; NULL if out of memory. */
static char *copy_lines(const json_t *m, const char *key)
{
    char *lines = strdup(lks__nodes_text(m, key));
    if (lines != NULL)
        lks__utf8_printable(lines, true);
    return lines;
}

static struct lks__job_node *node_of(struct lks__nodes *n, const json_t *m)
{
    int uid = int_of(m, "node", MAX_COUNT, -1);
    return uid >= 0 && uid < n->n_nodes ? &n->nodes[uid] : NULL;
}

static struct lks__job_node *node_by_key(struct lks__nodes *n, const char *key)
{
    for (int i = 0; i < n->n_nodes; i++)
        if (strcmp(n->nodes[i].key, key) == 0)
            return &n->nodes[i];
    return NULL;
}

const struct lks__job_node *lks__nodes_first(const struct lks__nodes *n)
{
    for (int i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].in_round && n->nodes[i].group_rank == 0)
            return &n->nodes[i];
    return NULL;
}

int lks__nodes_here(const struct lks__nodes *n)
{
    int here = 0;
    for (int i = 0; i < n->n_nodes; i++)
        here += n->nodes[i].here;
    return here;
}

/* --- handling messages -------------------------------------------------------------------- */

static void begin_end(struct lks__nodes *n, struct lks__job_node *m)
{
    double now = lks__sys_now();
    n->failing = true;
    if (m->down_at == 0)
        m->down_at = now;
    if (n->end_by == 0)
        n->end_by = now + LKS__SETTLE_S + (n->stopping ? n->job->options->shutdown_timeout_s : 0);
}

/* Print why a node was refused, and keep the reason, so that its next tries print nothing. */
static void say_refusal(struct lks__nodes *n, struct lks__job_node *node, const char *why)
{
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        if (m != node && m->refused && strcmp(m->host, node->host) == 0 && m->text != NULL &&
            strcmp(m->text, why) == 0)
            return;
    }
    node->text = strdup(why);
    lks__say(n->job, "refused a node on host %s: %s", node->host, why);
}

static lks_status on_hello(struct lks__nodes *n, const json_t *m)
{
    char why[600];
    struct lks__job_node *nodes = realloc(n->nodes, ((size_t)n->n_nodes + 1) * sizeof *nodes);
    LKS__MEMORY(nodes, "for %d nodes", n->n_nodes + 1);
    n->nodes = nodes;
    struct lks__job_node *node = &nodes[n->n_nodes++];
    /* A newcomer that meets a job that has ended belongs to the next one. */
    *node = (struct lks__job_node){.here = !n->over,
                                   .nproc = int_of(m, "nproc", LKS__SEGMENT_MAX_RANKS, 1),
                                   .wanted_rank = int_of(m, "rank", MAX_COUNT, -1)};
    if (node->nproc < 1)
        node->nproc = 1;
    lks__nodes_copy(node->key, sizeof node->key, m, "key");
    if (strcmp(node->key, n->key) == 0) {
        n->self = n->n_nodes - 1;
        n->late = !node->here;
    }
    lks__nodes_copy(node->host, sizeof node->host, m, "host");
    lks__nodes_copy(node->role, sizeof node->role, m, "role");
    if (n->coordinator && node->here && !lks__nodes_fit(n, m, node, why)) {
        node->here = false;
        node->refused = true;
        say_refusal(n, node, why);
        lks__nodes_post(
            n, json_pack("{s:s, s:i, s:s}", "is", "refuse", "node", n->n_nodes - 1, "why", why));
    } else {
        n->joined_at = lks__sys_now();
    }
    return LKS_OK;
}

void lks__job_node_forget(struct lks__job_node *m)
{
    free(m->text);
    free(m->tail);
    free(m->table);
    m->text = m->tail = m->table = NULL;
}

/* True if all nodes to which a round assigns ranks are still here. */
static bool is_complete(struct lks__nodes *n, const json_t *members)
{
    lks__each(member, members) {
        const struct lks__job_node *m = node_of(n, member);
        if (m != NULL && !m->here && int_of(member, "ranks", LKS__SEGMENT_MAX_RANKS, 0) > 0)
            return false;
    }
    return true;
}

/* `chosen`: the round includes this node, though perhaps without ranks. */
static void take_part(struct lks__nodes *n, const json_t *message, bool chosen)
{
    const struct lks__job_node *me = n->self >= 0 ? &n->nodes[n->self] : NULL;
    const int nproc = n->job->options->nproc, world_size = int_of(message, "world", MAX_COUNT, 1);
    if (chosen && me->here && me->n_ranks < nproc)
        lks__say(n->job,
                 "%d of this node's ranks stay idle: of the world sizes that divide "
                 "--virtual-ranks=%d, %d is the largest for so many",
                 nproc - me->n_ranks, n->job->options->virtual_ranks, world_size);
    if (me == NULL || !me->in_round)
        return;
    n->part = (struct lks__nodes_part){.attempt = int_of(message, "attempt", MAX_COUNT, 0),
                                       .world_size = world_size,
                                       .n_groups = int_of(message, "groups", MAX_COUNT, 1),
                                       .master_port = int_of(message, "port", UINT16_MAX, 0),
                                       .group_rank = me->group_rank,
                                       .first_global = me->first_rank,
                                       .nproc = me->n_ranks <= nproc ? me->n_ranks : nproc};
    for (const struct lks__job_node *m = n->nodes; m < n->nodes + n->n_nodes; m++)
        if (strcmp(m->role, me->role) == 0) {
            n->part.role_size += m->n_ranks;
            n->part.first_in_role += m->first_rank < me->first_rank ? m->n_ranks : 0;
        }
    snprintf(n->part.job_id, sizeof n->part.job_id, "%s", lks__nodes_text(message, "job"));
}

static void on_round(struct lks__nodes *n, const json_t *message)
{
    bool chosen = false;
    json_t *members = json_object_get(message, "members");
    n->starting = false;
    /* A node has left before this message. All nodes see that, so they all skip the round, and the
     * coordinator posts another one once enough are here. */
    if (!is_complete(n, members))
        return;
    for (int k = 0; k < n->n_nodes; k++) {
        struct lks__job_node *m = &n->nodes[k];
        if (m->refused)
            continue;
        lks__job_node_forget(m);
        m->n_ranks = 0;
        m->in_round = m->settled = m->ok = m->by_signal = m->lost = m->follows = false;
        m->dropped = m->silent = m->still = m->lasting = m->killed = false;
        m->alive_at = 0;
        m->code = m->user_signal = m->left = 0;
        m->down_at = 0;
    }
    lks__each(member, members) {
        struct lks__job_node *m = node_of(n, member);
        if (m == NULL)
            continue;
        m->group_rank = int_of(member, "group", MAX_COUNT, 0);
        m->first_rank = int_of(member, "first", MAX_COUNT, 0);
        m->n_ranks = int_of(member, "ranks", LKS__SEGMENT_MAX_RANKS, 0);
        m->in_round = m->n_ranks > 0;
        chosen |= n->self >= 0 && m == &n->nodes[n->self];
    }
    n->running = true;
    n->ended = n->over = n->again = n->failing = n->asked = n->stopping = false;
    n->end_by = 0;
    n->patience_s = n->asked_at = n->asked_next = 0;
    take_part(n, message, chosen);
}

static void on_verdict(struct lks__nodes *n, struct lks__job_node *m, const json_t *message)
{
    if (m->settled || int_of(message, "round", MAX_COUNT, -1) != n->round)
        return;
    m->settled = true;
    m->ok = json_is_true(json_object_get(message, "ok"));
    m->by_signal = json_is_true(json_object_get(message, "by_signal"));
    m->lasting = json_is_true(json_object_get(message, "lasting"));
    m->leaves = json_is_true(json_object_get(message, "leaves"));
    m->killed = json_is_true(json_object_get(message, "killed"));
    m->follows = json_is_true(json_object_get(message, "follows"));
    m->still = json_is_true(json_object_get(message, "still"));
    m->left = int_of(message, "left", MAX_COUNT, 0);
    m->code = int_of(message, "code", UINT8_MAX, 1);
    m->user_signal = int_of(message, "user_signal", MAX_SIGNAL, 0);
    lks__job_node_forget(m);
    if (*lks__nodes_text(message, "text") != '\0')
        m->text = strdup(lks__nodes_text(message, "text"));
    m->tail = strdup(lks__nodes_text(message, "tail"));
    if (*lks__nodes_text(message, "table") != '\0')
        m->table = strdup(lks__nodes_text(message, "table"));
    n->stopping |= m->user_signal != 0;
    if (!m->ok)
        begin_end(n, m);
}

const char *lks__nodes_ranks(const struct lks__job_node *m, char text[48])
{
    if (m->n_ranks == 1)
        snprintf(text, 48, "rank %d", m->first_rank);
    else
        snprintf(text, 48, "ranks %d to %d", m->first_rank, m->first_rank + m->n_ranks - 1);
    return text;
}

static void on_lost(struct lks__nodes *n, struct lks__job_node *m)
{
    char ranks[48];
    m->here = false;
    if (!m->in_round || m->settled)
        return;
    m->settled = m->lost = true;
    m->code = 1;
    begin_end(n, m);
    lks__job_node_forget(m);
    if (asprintf(&m->text,
                 "node %d (host %s, %s) is gone: its launcher was killed, or the machine or the "
                 "network between fails",
                 m->group_rank, m->host, lks__nodes_ranks(m, ranks)) < 0)
        m->text = NULL;
}

static void on_end(struct lks__nodes *n, const json_t *message)
{
    const struct lks__job_node *me = n->self >= 0 ? &n->nodes[n->self] : NULL;
    /* The coordinator gave up just before it heard this round's beginning. */
    n->event.end_ours = n->running && me != NULL && me->in_round && !me->settled;
    n->ended = true;
    n->running = false;
    n->again = json_is_true(json_object_get(message, "again"));
    n->over = !n->again;
    n->verdict =
        (struct lks__verdict){.culprit = -1, .exit_code = int_of(message, "code", UINT8_MAX, 1)};
    copy_sentence(n->verdict.text, sizeof n->verdict.text, message, "text");
    free(n->tail);
    free(n->table);
    n->tail = copy_lines(message, "tail");
    n->table = copy_lines(message, "table");
    for (int i = 0; i < n->n_nodes; i++) /* its "lost" may come after the next round's beginning */
        n->nodes[i].here &= !(n->again && n->nodes[i].leaves);
    n->round++;
    n->gather_since = n->joined_at = lks__sys_now();
}

/* The user wants the job to stop. `leaves`: the node waited for its part, starts no ranks and is
 * gone; a round that has begun with it stops. */
static void on_user_signal(struct lks__nodes *n, struct lks__job_node *m, const json_t *message)
{
    const bool leaves = json_is_true(json_object_get(message, "leaves"));
    m->here &= !leaves;
    if (!n->running || (leaves && !m->in_round))
        return;
    n->event.signal = int_of(message, "signal", MAX_SIGNAL, SIGTERM);
    n->stopping = true;
    if (!leaves)
        return;
    m->settled = true;
    m->user_signal = n->event.signal;
    m->code = 128 + m->user_signal;
    begin_end(n, m);
}

/* Set the event if our ranks must end because another node's ranks have failed. */
static void end_with_others(struct lks__nodes *n)
{
    bool failed = false;
    for (int i = 0; i < n->n_nodes; i++) {
        const struct lks__job_node *m = &n->nodes[i];
        if (!n->running || i == n->self || !m->in_round || m->down_at == 0)
            continue;
        n->event.end_ours = true;
        failed |= !m->settled || m->user_signal == 0;
    }
    n->event.orderly = n->event.end_ours && !failed;
}

/* The job refuses a node, or continues without it. If it is this node, `what` begins the reason. */
static void on_refusal(struct lks__nodes *n, struct lks__job_node *m, const json_t *message,
                       const char *what)
{
    char why[600];
    m->here = false;
    if (n->self < 0 || m != &n->nodes[n->self])
        return;
    copy_sentence(why, sizeof why, message, "why");
    snprintf(n->refused, sizeof n->refused, "%s: %s", what, why);
}

static lks_status on_message(struct lks__nodes *n, const json_t *m)
{
    const char *is = lks__nodes_text(m, "is");
    if (strcmp(is, "hello") == 0)
        return on_hello(n, m);
    if (strcmp(is, "round") == 0)
        on_round(n, m);
    else if (strcmp(is, "end") == 0)
        on_end(n, m);
    /* A node that leaves may not know its number yet. */
    const char *key = lks__nodes_text(m, "key");
    struct lks__job_node *node = *key != '\0' ? node_by_key(n, key) : node_of(n, m);
    if (node == NULL)
        return LKS_OK;
    if (strcmp(is, "refuse") == 0) {
        on_refusal(n, node, m, "the job refuses this node");
    } else if (strcmp(is, "drop") == 0) {
        on_refusal(n, node, m, "this node isn't part of the job any more");
        n->event.end_ours = n->refused[0] != '\0';
    } else if (strcmp(is, "down") == 0 && int_of(m, "round", MAX_COUNT, -1) == n->round) {
        begin_end(n, node);
        n->event.status = -(lks_status)int_of(m, "status", UINT8_MAX, 0);
        copy_sentence(n->event.why, sizeof n->event.why, m, "why");
    } else if (strcmp(is, "signal") == 0) {
        on_user_signal(n, node, m);
    } else if (strcmp(is, "ask") == 0 && n->running) {
        n->asked = true;
    } else if (strcmp(is, "verdict") == 0) {
        on_verdict(n, node, m);
    } else if (strcmp(is, "lost") == 0) {
        on_lost(n, node);
        if (node->lost && node->text != NULL)
            snprintf(n->event.why, sizeof n->event.why, "%s", node->text);
    }
    end_with_others(n);
    return LKS_OK;
}

lks_status lks__nodes_ask_next(struct lks__nodes *n)
{
    char key[64];
    snprintf(key, sizeof key, LKS__NODES_LIST "/%ld", n->n_heard + 1);
    return lks__store_ask(n->hear, key);
}

lks_status lks__nodes_hear(struct lks__nodes *n, const char *text, size_t bytes)
{
    json_error_t error;
    n->event = (struct lks__nodes_event){0};
    json_t *m = lks__json_load(text, bytes, 0, &error);
    if (m == NULL && lks__json_no_memory(&error))
        return lks__no_memory("for a message from the job's other launchers");
    lks_status st = json_is_object(m) ? on_message(n, m) : LKS_OK;
    json_decref(m);
    return st;
}

/* Notice that this launcher itself was stopped, or its machine hung, for so long that the others
 * have given it up. */
static void notice_pause(struct lks__nodes *n)
{
    const double now = lks__sys_now(), pause_s = now - n->seen_at;
    if (n->seen_at > 0 && pause_s > fmax(lks__link_s(), LKS__LEAST_STILL_S)) {
        n->still_s = pause_s;
        n->woke_at = now;
    }
    n->seen_at = now;
}

lks_status lks__nodes_hear_all(struct lks__nodes *n)
{
    notice_pause(n);
    take_answers(n);
    for (;;) {
        void *data = NULL;
        size_t bytes = 0;
        lks_status st = lks__store_answer(n->hear, &data, &bytes);
        if (st == LKS_IN_PROGRESS) /* whether the job's decision is known or not */
            return n->unsaid == LKS_OK ? LKS_OK : lks__fail(n->unsaid, "%s", n->unsaid_text);
        LKS__TRY(st);
        bool running = n->running;
        n->n_heard++;
        st = lks__nodes_hear(n, data, bytes);
        free(data);
        LKS__TRY(st);
        st = lks__nodes_ask_next(n);
        if (st != LKS_OK && !n->over) /* after the job's end, the store may be gone */
            return st;
        /* A waiting node sees the end before the next round begins. Messages after the beginning of
         * a round are for the supervisor of the ranks that it starts. */
        if (n->event.end_ours || n->event.signal != 0 || running != n->running || n->over)
            return LKS_OK;
    }
}
