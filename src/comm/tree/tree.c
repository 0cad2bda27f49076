#include "comm/tree/tree.h"

static int nodes_at(int V, int level)
{
    return (int)(((int64_t)V + ((int64_t)1 << level) - 1) >> level);
}

int lks__tree_levels(int V)
{
    int levels = 1;
    while (nodes_at(V, levels - 1) > 1)
        levels++;
    return levels;
}

bool lks__tree_is_root(int V, lks_node node)
{
    return node.level == lks__tree_levels(V) - 1;
}

bool lks__tree_valid(int V, lks_node node)
{
    return node.level >= 0 && node.level < lks__tree_levels(V) && node.index >= 0 &&
           node.index < nodes_at(V, node.level);
}

lks_node lks__tree_parent(lks_node node)
{
    return (lks_node){.level = node.level + 1, .index = node.index / 2};
}

bool lks__tree_has_sibling(int V, lks_node node)
{
    return (node.index ^ 1) < nodes_at(V, node.level);
}

void lks__tree_leaves(int V, lks_node node, int *first, int *end)
{
    int64_t last = ((int64_t)node.index + 1) << node.level;
    *first = node.index << node.level;
    *end = last < V ? (int)last : V;
}

int lks__tree_cover(int V, int first, int end, lks_node *out, int cap)
{
    int n = 0;
    while (first < end) {
        lks_node node = {.level = 0, .index = first};
        while (!lks__tree_is_root(V, node)) {
            int up_first, up_end;
            lks_node up = lks__tree_parent(node);
            lks__tree_leaves(V, up, &up_first, &up_end);
            if (up_first != first || up_end > end)
                break;
            node = up;
        }
        if (n == cap)
            return -1;
        out[n++] = node;
        int node_first;
        lks__tree_leaves(V, node, &node_first, &first);
    }
    return n;
}

/* The stack machine of both plans; `cap` is the size of `left` and `first`. */
static bool plan(int V, const lks_node *nodes, int n, uint8_t *merges, lks_node *left, int *first,
                 int cap, int *n_left)
{
    int depth = 0, next_leaf = 0;
    for (int i = 0; i < n; i++) {
        int from, end, run = i;
        if (!lks__tree_valid(V, nodes[i]))
            return false;
        lks__tree_leaves(V, nodes[i], &from, &end);
        if (from < next_leaf || depth == cap)
            return false;
        next_leaf = end;
        merges[i] = 0;
        lks_node top = nodes[i];
        while (!lks__tree_is_root(V, top)) {
            if (lks__tree_has_sibling(V, top)) {
                if (depth == 0 || top.index % 2 == 0 || left[depth - 1].level != top.level ||
                    left[depth - 1].index != top.index - 1)
                    break; /* it waits for its neighbour */
                run = first[--depth];
                merges[i]++;
            }
            top = lks__tree_parent(top);
        }
        left[depth] = top;
        first[depth++] = run;
    }
    *n_left = depth;
    return true;
}

bool lks__tree_plan_some(int V, const lks_node *nodes, int n, uint8_t *merges, lks_node *left,
                         int *first, int *n_left)
{
    return plan(V, nodes, n, merges, left, first, n, n_left);
}

bool lks__tree_plan(int V, const lks_node *nodes, int n, uint8_t *merges)
{
    lks_node left[LKS__TREE_MAX_LEVELS];
    int first[LKS__TREE_MAX_LEVELS], n_left;
    return plan(V, nodes, n, merges, left, first, LKS__TREE_MAX_LEVELS, &n_left) && n_left == 1 &&
           lks__tree_is_root(V, left[0]);
}
