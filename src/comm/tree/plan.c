#include "comm/tree/plan.h"

#include <stdlib.h>

#include "comm/tree/tree.h"

bool lks__plan_open(struct lks__plan *p, int givers)
{
    size_t n = (size_t)givers * LKS__TREE_MAX_COVER;
    p->nodes = malloc(n * sizeof *p->nodes);
    p->order = malloc(n * sizeof *p->order);
    p->parts = malloc(n * sizeof *p->parts);
    p->merges = malloc(n);
    p->left = malloc(n * sizeof *p->left);
    p->first = malloc(n * sizeof *p->first);
    return p->nodes != NULL && p->order != NULL && p->parts != NULL && p->merges != NULL &&
           p->left != NULL && p->first != NULL;
}

void lks__plan_close(struct lks__plan *p)
{
    free(p->nodes);
    free(p->order);
    free(p->parts);
    free(p->merges);
    free(p->left);
    free(p->first);
}

bool lks__plan_add(struct lks__plan *p, int V, lks_node node, const float *buf)
{
    struct lks__plan_node *to = &p->nodes[p->n];
    int end;
    if (!lks__tree_valid(V, node))
        return false;
    *to = (struct lks__plan_node){.node = node, .buf = buf};
    lks__tree_leaves(V, node, &to->first_leaf, &end);
    p->n++;
    return true;
}

static int by_leaf(const void *a, const void *b)
{
    const struct lks__plan_node *x = a, *y = b;
    return (x->first_leaf > y->first_leaf) - (x->first_leaf < y->first_leaf);
}

void lks__plan_sort(struct lks__plan *p)
{
    qsort(p->nodes, (size_t)p->n, sizeof *p->nodes, by_leaf);
    for (int i = 0; i < p->n; i++) {
        p->order[i] = p->nodes[i].node;
        p->parts[i] = p->nodes[i].buf;
    }
}

bool lks__plan_sum(const struct lks__plan *p, int V, float *dst, float scale, const lks__exec *exec,
                   struct lks__sum *sum)
{
    *sum = (struct lks__sum){.parts = p->parts,
                             .merges = p->merges,
                             .n_parts = p->n,
                             .dst = dst,
                             .scale = scale,
                             .last = exec->k->sum_scaled};
    for (int i = 1; i < p->n; i++)
        sum->dst_is_late_part |= p->parts[i] == dst;
    return lks__tree_plan(V, p->order, p->n, p->merges);
}
