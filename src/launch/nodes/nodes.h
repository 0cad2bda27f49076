/* launch/nodes/nodes.h - a job on several nodes: each runs the same command; their launchers agree
 * on each node's ranks, report failures to each other, and restart together.
 *
 * All messages between launchers form one list in the job's store, in the same order for all: a
 * node joins ("hello"), each node's ranks ("round"), a node's ranks are being ended ("down"), a
 * node's ranks have ended ("verdict"), a node is gone ("lost", which the store posts itself), and
 * the job's next attempt or end ("end"). One node, the coordinator, serves the store and posts the
 * decisions: refusals of hellos, round and end. Every launcher reads the list from its beginning,
 * so all have the same information. */
#pragma once

#include "launch/end.h"
#include "launch/job.h"
#include "launch/nodes/round.h"

struct lks__nodes;

/* Join the job: serve its store if this node is the coordinator, and post a hello. ERR_CONFIG if an
 * address or setting is wrong. Close *nodes_p, on failure too (NULL: nothing is open). It uses
 * `job`, and fills in the addresses of the store and of this host. */
lks_status lks__nodes_open(struct lks__job *job, struct lks__nodes **nodes_p);
void lks__nodes_close(struct lks__nodes *n); /* NULL does nothing */

/* Wait for this node's part in attempt number `attempt`. ERR_CONFIG if the job refuses this node;
 * ERR_TIMEOUT if too few nodes join. *over_p: the job has ended without this node, or a signal has
 * arrived; then *exit_code_p is the exit code, and `part` is unchanged. */
lks_status lks__nodes_gather(struct lks__nodes *n, int attempt, struct lks__nodes_part *part,
                             bool *over_p, int *exit_code_p);

/* While ranks run. With one node, `n` is NULL, and the calls do nothing. */
int lks__nodes_fd(const struct lks__nodes *n);     /* to poll; -1: none */
double lks__nodes_due(const struct lks__nodes *n); /* latest time for next(); 0: no limit */
/* The next event; false if there is none. `stopping`: the user has asked our ranks to stop. */
bool lks__nodes_next(struct lks__nodes *n, bool stopping, struct lks__nodes_event *event);
/* Our ranks are being ended, because of a failure with this status and sentence. */
void lks__nodes_down(struct lks__nodes *n, lks_status status, const char *why);
/* A rank of ours has ended and will never join the ranks' group. Only ranks that wait for it, here
 * or elsewhere, fail with this sentence. */
void lks__nodes_never_joins(struct lks__nodes *n, const char *why);
void lks__nodes_signal(struct lks__nodes *n, int sig); /* ... because of the user's signal */

/* After this node's ranks have ended: publish their end, with the culprit's last lines in `tail`,
 * and wait for the job's decision: returned in *v and `tail`, and *again_p if there is a next
 * attempt. Prints the table of all nodes' ranks. ERR_PEER and ERR_TIMEOUT if no decision
 * arrives. */
lks_status lks__nodes_settle(struct lks__nodes *n, const struct lks__nodes_report *r,
                             struct lks__verdict *v, char tail[2 * LKS__TAIL_BYTES], bool *again_p);
