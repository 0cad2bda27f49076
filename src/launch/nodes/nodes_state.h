/* launch/nodes/nodes_state.h - a launcher's state of its job's nodes. nodes_join.c fills it in,
 * nodes_list.c updates it from the list's messages, nodes_coordinate.c, on the coordinator, makes
 * the decisions, and nodes.c contains the calls of the launch while ranks run. */
#pragma once

#include <jansson.h>

#include "comm/shm/segment/segment.h"
#include "launch/end.h"
#include "launch/job.h"
#include "launch/nodes/round.h"

#define LKS__NODES_LIST  "lockstep/launch"
#define LKS__NODES_ALIVE "lockstep/alive/%d" /* node's number: a count that grows while it runs */

enum {
    LKS__NODES_RUN_ID = 4 * LKS__RUN_ID + 1, /* size of a job's id, escaped */
    LKS__NODES_COMMAND = 200,                /* of the program and its arguments, cut to fit */
};
enum {
    LKS__SETTLE_S = 10,        /* from the first failure to every node's verdict */
    LKS__LEAST_STILL_S = 5,    /* minimal time for which a launcher may hang */
    LKS__NODES_PATIENCE_S = 5, /* before a message about a wait */
};

/* One node, from its messages. */
struct lks__job_node {
    char key[LKS__TOKEN_BYTES + 4]; /* the name that it has chosen */
    char host[64];
    char role[64];
    int nproc, wanted_rank; /* -1: any */
    bool here;              /* has joined, and is neither refused nor lost */
    /* In the current round: */
    bool in_round, settled;
    bool dropped; /* coordinator: no longer waited for ... */
    bool silent;  /* ... because its launcher doesn't answer */
    int group_rank, first_rank, n_ranks;
    double down_at;  /* coordinator: time at which its end began; 0: it hasn't begun */
    uint64_t alive;  /* coordinator: the latest count of LKS__NODES_ALIVE ... */
    double alive_at; /* ... and the time at which it changed */
    bool leaves;     /* it leaves instead of taking part in another round */
    bool refused;    /* coordinator: refused at its hello; `text` is the reason */
    bool ok, by_signal, lost;
    bool lasting;                /* a restart would fail, too */
    bool killed;                 /* they were killed because they didn't stop */
    bool follows;                /* its ranks ended because of another host's ranks */
    bool still;                  /* its ranks found that a rank made no progress */
    int code, user_signal, left; /* left: of struct lks__nodes_report */
    char *text, *tail, *table;   /* table: status table of its ranks */
};

struct lks__nodes {
    struct lks__job *job;
    struct lks__nodes_part part;   /* this node's part in the current round */
    struct lks__nodes_event event; /* event of the last message */
    bool stopping;                 /* the user has asked the ranks to stop, here or elsewhere */
    lks__store *say, *hear;        /* two connections: one always waits for the next message */
    long n_heard;
    bool coordinator;
    char key[LKS__TOKEN_BYTES]; /* this node's key */
    int self;                   /* its number; -1 until it is in the list */
    bool late;                  /* the job had ended before our hello, so it isn't ours */
    int min, max;
    struct lks__job_node *nodes; /* [n_nodes], by number from 0 */
    int n_nodes;
    int round;     /* number of the next round */
    bool starting; /* coordinator: the round has been posted */
    bool running, again;
    bool ended; /* the round has; on the coordinator from the decision on */
    bool over;  /* the job's end was heard */
    double gather_since, joined_at, end_by;
    bool said_what, said_full;
    char not_first[300]; /* why this node can't be the first one; "": it wasn't tried */

    /* Time since which the coordinator's store owes an answer (0: it doesn't), and time of our last
     * check. */
    double owed_since, looked_at;
    double seen_at, woke_at, still_s; /* when we last ran; end and length of a long pause */
    bool failing;                     /* a node's ranks have failed or been ended in this round */
    double patience_s; /* time for which a launcher may hang while others wait for it */
    bool asked;        /* the coordinator waits for others: all must show that they run ... */
    double shown_at;   /* ... time at which we last did ... */
    uint64_t n_shown;  /* ... and how often */
    double asked_at, asked_next; /* on the coordinator */
    /* Not OK: a message couldn't be posted, so others would wait for it forever. */
    lks_status unsaid;
    char unsaid_text[600];
    char lost_text[600]; /* the reason why the connection to the job is lost */
    char refused[900];   /* why this node is refused or dropped: a sentence */
    struct lks__verdict verdict;
    char *tail, *table;
};

/* --- nodes_join.c ------------------------------------------------------------------------- */

/* Close the connections and free the list. */
void lks__nodes_leave(struct lks__nodes *n);
/* The program that this node starts, with its arguments, as text for people. */
void lks__nodes_command(const struct lks__nodes *n, char out[LKS__NODES_COMMAND]);

/* --- nodes.c ------------------------------------------------------------------------------ */

/* Wait for the list or a signal, at most 100 ms. Our ranks aren't running, so the only event that
 * matters is a signal, while we wait for readers of the ranks' output (`printed`). */
lks_status lks__nodes_listen(struct lks__nodes *n, bool printed, int *signal_p);
/* Print the hosts that the store has refused since the last call. */
void lks__nodes_say_refused(struct lks__nodes *n);

/* --- nodes_list.c ------------------------------------------------------------------------- */
/* A member's text, "" if it has none. Use it only for comparing: it comes from another host. */
const char *lks__nodes_text(const json_t *m, const char *key);

/* Takes the reference; NULL means that memory for it ran out. If a message can't be posted, the
 * next lks__nodes_hear_all() returns the error. */
void lks__nodes_post(struct lks__nodes *n, json_t *message);
/* "rank 2" or "ranks 2 to 3" of this round. Returns `text`. */
const char *lks__nodes_ranks(const struct lks__job_node *m, char text[48]);
/* Copy a text member, safe on a terminal; "" if it is missing. */
void lks__nodes_copy(char *to, size_t bytes, const json_t *m, const char *key);
void lks__job_node_forget(struct lks__job_node *m); /* frees its texts */
/* Handle one message, whatever it contains. The resulting actions for the supervisor of our ranks
 * are in n->event. */
lks_status lks__nodes_hear(struct lks__nodes *n, const char *text, size_t bytes);
/* Time for which another launcher may hang: `seconds`, but if ranks have failed, at most the time
 * for which the connection of a lost machine lasts. At least LKS__LEAST_STILL_S. */
double lks__nodes_limit(const struct lks__nodes *n, double seconds);
/* Show that this launcher runs. The answer shows that the coordinator's launcher does. */
void lks__nodes_show_life(struct lks__nodes *n);
/* The node with the first ranks, which is the coordinator; NULL outside of a round. */
const struct lks__job_node *lks__nodes_first(const struct lks__nodes *n);
/* Handle all messages so far, up to the next event or a round's beginning or end, and ask for the
 * next message. */
lks_status lks__nodes_hear_all(struct lks__nodes *n);
lks_status lks__nodes_ask_next(struct lks__nodes *n);
int lks__nodes_here(const struct lks__nodes *n); /* number of nodes currently present */

/* --- nodes_coordinate.c ------------------------------------------------------------------- */

/* Check that a newcomer's settings match the job's. If not, `why` has both values. */
bool lks__nodes_fit(const struct lks__nodes *n, const json_t *hello,
                    const struct lks__job_node *node, char why[600]);
/* The value of --nnodes, as nodes compare it. */
void lks__nodes_range(const struct lks__nodes *n, char range[32]);
/* Begin the next attempt if enough nodes have joined; false if they didn't in time. */
bool lks__nodes_gather_more(struct lks__nodes *n);
double lks__nodes_join_s(const struct lks__nodes *n); /* limit for joining in time */
/* Post the end of this round or, unless `again`, of the job. */
void lks__nodes_post_end(struct lks__nodes *n, bool again, int code, const char *text,
                         const char *tail, const char *table);
/* Once all nodes have posted how they ended, or are gone: decide about the job. Nodes that are late
 * are dropped. */
void lks__nodes_try_to_decide(struct lks__nodes *n);
/* Coordinator, while it waits for others: ask whether their launchers run, and drop those that have
 * been silent for n->patience_s. */
void lks__nodes_ask_for_life(struct lks__nodes *n);
