/* launch/nodes.h - a job on several nodes: each runs the same command; their launchers agree on
 * each node's ranks, report failures to each other, and restart together.
 *
 * All messages between launchers are one list in the job's store, in the same order for all: a node
 * joins ("hello"), each node's ranks ("round"), a node's ranks are being ended ("down"), how a
 * node's ranks have ended ("verdict"), a node is gone ("lost", which the store posts itself), and
 * the job's next attempt or end ("end"). One node, the coordinator, serves the store and posts the
 * decisions: refusals of hellos, round and end. Every launcher reads the list from its beginning,
 * so all have the same information. */
#ifndef LKS_LAUNCH_NODES_H
#define LKS_LAUNCH_NODES_H

#include "launch/process.h"

/* Join the job: serve its store if this node is the coordinator, and post a hello. ERR_CONFIG if an
 * address or setting is wrong. */
lks_status lks__nodes_open(struct lks__launch *l);
void lks__nodes_close(struct lks__launch *l); /* does nothing if nothing is open */

/* Wait for this node's part in the next attempt, and store it in `l`. ERR_CONFIG if the job refuses
 * this node; ERR_TIMEOUT if too few nodes join. *over_p: the job has ended without this node, or a
 * signal has come; then *exit_code_p is the code to exit with. */
lks_status lks__nodes_gather(struct lks__launch *l, bool *over_p, int *exit_code_p);

/* While ranks run: the descriptor to poll (-1 without other nodes), and a function that handles its
 * messages. */
int lks__nodes_fd(const struct lks__launch *l);
void lks__nodes_step(struct lks__launch *l);
void lks__nodes_down(struct lks__launch *l);            /* our ranks are being ended */
void lks__nodes_signal(struct lks__launch *l, int sig); /* ... because of the user's signal */

/* After this node's ranks have ended: post how, with the culprit's last lines and the status table
 * of this node's ranks ("" if none stood still). Then wait for the job's decision: into *v and
 * `tail`, and whether there is a next attempt. Prints the status table of all nodes' ranks. */
lks_status lks__nodes_settle(struct lks__launch *l, struct lks__verdict *v, const char *table,
                             char tail[2 * LKS__TAIL_BYTES], bool *again_p);

#endif
