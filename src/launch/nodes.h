/* launch/nodes.h - a job on several nodes: each runs the same command, and their launchers agree on
 * who has which ranks, tell each other who failed, and start anew together.
 *
 * All that launchers say to each other is one list in the job's store, in one order for all: who
 * has come ("hello"), who has which ranks ("round"), whose ranks are being ended ("down"), how a
 * node's ranks have ended ("verdict"), who is gone ("lost", posted by the store itself), and what
 * becomes of the job ("end"). One node, the coordinator, serves the store and posts the decisions:
 * hello's refusal, round and end. Every launcher reads the list from its beginning, so all know the
 * same. */
#ifndef LKS_LAUNCH_NODES_H
#define LKS_LAUNCH_NODES_H

#include "launch/process.h"

/* Join the job: serve its store where this node is the coordinator, and say hello. ERR_CONFIG where
 * an address or setting is no good. */
lks_status lks__nodes_open(struct lks__launch *l);
void lks__nodes_close(struct lks__launch *l); /* fine where nothing is open */

/* Wait for this node's part in the next attempt, and take it over into `l`. ERR_CONFIG where the
 * job refuses this node; ERR_TIMEOUT where too few nodes come. *over_p: the job has ended without
 * this node, or a signal has come; then *exit_code_p says how. */
lks_status lks__nodes_gather(struct lks__launch *l, bool *over_p, int *exit_code_p);

/* While ranks run: the descriptor to poll (-1 without other nodes), and a look at what it has. */
int lks__nodes_fd(const struct lks__launch *l);
void lks__nodes_step(struct lks__launch *l);
void lks__nodes_down(struct lks__launch *l);            /* our ranks are being ended */
void lks__nodes_signal(struct lks__launch *l, int sig); /* ... by the user's signal */

/* After this node's ranks have ended: tell how, with the culprit's last lines and the table of this
 * node's ranks ("" where none stood still), and wait for what becomes of the job: into *v and
 * `tail`, and whether there is a next attempt. The table of all nodes' ranks is printed. */
lks_status lks__nodes_settle(struct lks__launch *l, struct lks__verdict *v, const char *table,
                             char tail[2 * LKS__TAIL_BYTES], bool *again_p);

#endif
