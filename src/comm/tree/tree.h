/* comm/tree/tree.h - the canonical tree: the only order in which V gradients are summed.
 *
 * Level 0 has the V leaves (virtual ranks). Level l has ceil(V / 2^l) nodes: node i of level l + 1
 * is node 2i + node 2i+1 of level l, and a last node without neighbour moves up unchanged. The top
 * level has one node, the root. Which rank adds which nodes, and when, changes no bit, because
 * every addition has fixed operands. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lockstep/reduce.h"

enum {
    LKS__TREE_MAX_LEAVES = 65536, /* virtual ranks have 16 bits in the generators' counters */
    LKS__TREE_MAX_LEVELS = 17,
    /* A range of leaves needs at most two maximal nodes on each level. */
    LKS__TREE_MAX_COVER = 2 * LKS__TREE_MAX_LEVELS,
};

/* Number of levels, including the leaves: ceil(log2 V) + 1. V in 1..LKS__TREE_MAX_LEAVES. */
int lks__tree_levels(int V);

bool lks__tree_is_root(int V, lks_node node);
bool lks__tree_valid(int V, lks_node node); /* true for a node of the tree over V leaves */

lks_node lks__tree_parent(lks_node node); /* of any node but the root */

/* False: the node moves up unchanged, and its parent is the same sum. The root has no sibling. */
bool lks__tree_has_sibling(int V, lks_node node);

/* The leaves below a node: [*first, *end). */
void lks__tree_leaves(int V, lks_node node, int *first, int *end);

/* The maximal nodes whose leaves are all in [first, end), in the order of leaves. A node without
 * neighbour is returned at the highest level with the same leaves. Returns their number, or -1 if
 * it exceeds `cap` (LKS__TREE_MAX_COVER is always enough). */
int lks__tree_cover(int V, int first, int end, lks_node *out, int cap);

/* Plan the sum of n nodes that together cover each leaf once, in the order of leaves: push node i,
 * then merge the two topmost values merges[i] times (left operand: the lower one). The stack holds
 * at most LKS__TREE_MAX_LEVELS values. False if the nodes don't cover each leaf once. */
bool lks__tree_plan(int V, const lks_node *nodes, int n, uint8_t *merges);

/* lks__tree_plan() for nodes that cover some leaves, each at most once. At the end *n_left nodes
 * remain on the stack; left[i] is the sum of the given nodes from first[i] on (both [n]). `merges`
 * describes the sum of each of these runs. False if a leaf is covered twice. */
bool lks__tree_plan_some(int V, const lks_node *nodes, int n, uint8_t *merges, lks_node *left,
                         int *first, int *n_left);
