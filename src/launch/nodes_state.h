/* launch/nodes_state.h - what a launcher knows of its job's nodes, and who changes it: nodes_list.c
 * by what the list says, nodes_coordinate.c, on the coordinator, by what it decides, and nodes.c,
 * which the launch calls. */
#ifndef LKS_LAUNCH_NODES_STATE_H
#define LKS_LAUNCH_NODES_STATE_H

#include <jansson.h>

#include "launch/nodes.h"

#define LKS__NODES_LIST "lockstep/launch"

enum { LKS__SETTLE_S = 10 }; /* from the first failure to every node's verdict */

/* One node, as the list tells of it. */
struct lks__node {
    char key[LKS__TOKEN_BYTES + 4]; /* its own name for itself */
    char host[64], address[64];
    int nproc, wanted_rank; /* -1: any */
    bool here;              /* has come, wasn't refused, isn't lost */
    /* In the round at hand: */
    bool in_round, settled;
    int group_rank, first_rank, n_ranks;
    double down_at; /* coordinator: when its end began; 0: not */
    bool ok, by_signal, lost;
    bool follows; /* its ranks ended because of another host's */
    int code, user_signal;
    char *text, *tail, *table; /* table: of its ranks, where one stood still */
};

struct lks__nodes {
    lks__store *say, *hear; /* two connections: one always waits for the next message */
    long n_heard;
    bool coordinator;
    char key[LKS__TOKEN_BYTES]; /* this node's */
    int self;                   /* its number; -1 until the list has it */
    int min, max;
    struct lks__node *nodes; /* [n_nodes], by number from 0 */
    int n_nodes;
    int round;     /* the next one's number */
    bool starting; /* coordinator: the round has been posted */
    bool running, ended, again;
    double gather_since, joined_at, end_by;
    bool said_what;
    lks_status unsaid; /* not OK: a message couldn't be posted, and others wait for it in vain */
    char unsaid_text[600];
    char lost_text[600]; /* the job can't be heard of any more: why */
    char refused[800];   /* this node is: why */
    struct lks__verdict verdict;
    char *tail, *table;
};

/* --- nodes_list.c ------------------------------------------------------------------------- */

/* Takes the reference; NULL: there was no memory for it. A message that can't be posted is noticed
 * by whoever listens next. */
void lks__nodes_post(struct lks__nodes *n, json_t *message);
/* A text member, fit for a terminal; "" where there is none. */
void lks__nodes_copy(char *to, size_t bytes, const json_t *m, const char *key);
void lks__node_forget(struct lks__node *m); /* its texts */
/* Take in one message, whatever it is. */
lks_status lks__nodes_hear(struct lks__launch *l, const char *text, size_t bytes);
/* Take in what the list has by now, at most to the end of a round, and ask for what comes next. */
lks_status lks__nodes_hear_all(struct lks__launch *l);
lks_status lks__nodes_ask_next(struct lks__nodes *n);
int lks__nodes_here(const struct lks__nodes *n); /* how many there are just now */

/* --- nodes_coordinate.c ------------------------------------------------------------------- */

/* Do a newcomer's settings fit the job's? Else `why` not, with both values. */
bool lks__nodes_fit(struct lks__launch *l, const json_t *hello, const struct lks__node *node,
                    char why[600]);
/* Begin the next attempt where enough have come; false: they didn't come in time. */
bool lks__nodes_gather_more(struct lks__launch *l);
double lks__nodes_join_s(const struct lks__nodes *n); /* that time */
/* Once all have told how they ended, or are gone: what becomes of the job. */
void lks__nodes_try_to_decide(struct lks__launch *l);

#endif
