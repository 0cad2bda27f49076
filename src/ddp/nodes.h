/* ddp/nodes.h - the nodes of the canonical tree (comm/tree/tree.h) that a rank holds while it
 * processes its leaves, the virtual ranks. The gradients of each node are in one arena. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/tree/tree.h"

/* First virtual rank of `rank`, out of V over W ranks: rank r owns [rV/W, (r+1)V/W). */
int lks__first_leaf(int V, int W, int rank);
/* The rank that owns virtual rank v. */
int lks__leaf_rank(int V, int W, int v);

/* Local rank `rank`'s part of [from, to), of `local` parts. */
static inline void lks__local_part(size_t from, size_t to, int rank, int local, size_t *first,
                                   size_t *end)
{
    *first = from + (to - from) * (size_t)rank / (size_t)local;
    *end = from + (to - from) * (size_t)(rank + 1) / (size_t)local;
}

/* Maximal number of arenas in use at a time: one for each level of the tree on both sides of an
 * uneven range, and one being filled. There are at most 1024 virtual ranks. */
enum { LKS__MAX_ARENAS = 24 };

/* Complete nodes; arena[i] holds node[i]. */
typedef struct lks__tree_nodes {
    lks_node node[LKS__MAX_ARENAS];
    int n;
} lks__tree_nodes;

/* Push leaf v. A node without sibling moves up unchanged; two siblings on top become their parent.
 * Returns the number of additions: each adds arena[i + 1] to arena[i], highest i first. */
int lks__tree_nodes_push(int V, int v, lks__tree_nodes *s);

/* Push leaves [first, end), but only count: no gradients are needed. *s: the nodes that remain.
 * Returns the largest number of arenas in use at a time. With `staging`, a leaf that is merged as
 * soon as it is complete needs no arena; *merges_p becomes true if there is such a leaf. */
int lks__tree_nodes_rehearse(int V, int first, int end, bool staging, lks__tree_nodes *s,
                             bool *merges_p);

/* lks__tree_nodes_rehearse() for each of W ranks: the largest number of arenas. *left_p: the
 * largest number of nodes that remain on one rank. */
int lks__tree_nodes_rehearse_all(int V, int W, bool staging, bool *merges_p, int *left_p);
