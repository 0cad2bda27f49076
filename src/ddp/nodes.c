#include "ddp/nodes.h"

int lks__first_leaf(int V, int W, int rank)
{
    return (int)((long)rank * V / W);
}

int lks__leaf_rank(int V, int W, int v)
{
    int rank = 0;
    while (rank + 1 < W && lks__first_leaf(V, W, rank + 1) <= v)
        rank++;
    return rank;
}

int lks__tree_nodes_push(int V, int v, lks__tree_nodes *s)
{
    int additions = 0;
    s->node[s->n++] = (lks_node){0, v};
    for (;;) {
        lks_node *top = &s->node[s->n - 1];
        while (!lks__tree_is_root(V, *top) && !lks__tree_has_sibling(V, *top))
            *top = lks__tree_parent(*top);
        if (s->n < 2 || lks__tree_is_root(V, *top))
            return additions;
        lks_node *below = &s->node[s->n - 2];
        if (below->level != top->level || below->index + 1 != top->index || below->index % 2 != 0)
            return additions;
        *below = lks__tree_parent(*below);
        s->n--;
        additions++;
    }
}

int lks__tree_nodes_rehearse(int V, int first, int end, bool staging, lks__tree_nodes *s,
                             bool *merges_p)
{
    int most = 0;
    s->n = 0;
    for (int v = first; v < end; v++) {
        int needed = s->n + 1;
        bool merged = lks__tree_nodes_push(V, v, s) > 0;
        if (merged && staging)
            needed--;
        if (needed > most)
            most = needed;
        *merges_p |= merged;
    }
    return most;
}

int lks__tree_nodes_rehearse_all(int V, int W, bool staging, bool *merges_p, int *left_p)
{
    int most = 0;
    *merges_p = false;
    *left_p = 0;
    for (int r = 0; r < W; r++) {
        lks__tree_nodes left;
        int n = lks__tree_nodes_rehearse(V, lks__first_leaf(V, W, r), lks__first_leaf(V, W, r + 1),
                                         staging, &left, merges_p);
        most = n > most ? n : most;
        *left_p = left.n > *left_p ? left.n : *left_p;
    }
    return most;
}
