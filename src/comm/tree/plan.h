/* comm/tree/plan.h - the parts that ranks, or hosts, contribute to one reduction, and the order of
 * their sum. */
#pragma once

#include "comm/tree/sum.h"
#include "lockstep/reduce.h"

/* Work memory, refilled for each reduction: nodes are added as they are read, then sorted. */
struct lks__plan {
    struct lks__plan_node {
        lks_node node;
        int first_leaf;
        const float *buf;
    } * nodes;
    int n;
    /* In the order of leaves, after lks__plan_sort(). */
    lks_node *order;
    const float **parts;
    uint8_t *merges;
    /* For lks__tree_plan_some(): the nodes that remain, and the index of each one's first part. */
    lks_node *left;
    int *first;
};

/* Allocate room for `givers` contributors with LKS__TREE_MAX_COVER nodes each. False if out of
 * memory; close it in any case. */
bool lks__plan_open(struct lks__plan *p, int givers);
void lks__plan_close(struct lks__plan *p); /* a zeroed one does nothing */

/* False if `node` isn't a node of the tree over V leaves. `buf` may be set until sorting. */
bool lks__plan_add(struct lks__plan *p, int V, lks_node node, const float *buf);
void lks__plan_sort(struct lks__plan *p);

/* Sum all parts into `dst`, times `scale`. False if they don't cover each leaf once. */
bool lks__plan_sum(const struct lks__plan *p, int V, float *dst, float scale, const lks__exec *exec,
                   struct lks__sum *sum);
