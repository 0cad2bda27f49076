/* The canonical tree against its definition. */
#include "support.h"

#include <stdlib.h>

#include "comm/suite.h"
#include "comm/tree/tree.h"

/* Sum leaves [first, end) as nodes, then all by the plan, with values whose sum depends on the
 * order. */
static float planned_sum(int V, const float *values, const lks_node *nodes, int n)
{
    float stack[LKS__TREE_MAX_LEVELS + 1], leaves[64];
    uint8_t merges[64];
    int depth = 0;
    assert_true(lks__tree_plan(V, nodes, n, merges));
    for (int i = 0; i < n; i++) {
        int first, end;
        lks__tree_leaves(V, nodes[i], &first, &end);
        for (int v = first; v < end; v++)
            leaves[v - first] = values[v];
        stack[depth++] = suite_tree_sum(leaves, end - first);
        for (int m = 0; m < merges[i]; m++) {
            depth--;
            stack[depth - 1] = stack[depth - 1] + stack[depth];
        }
    }
    assert_int_equal(depth, 1);
    return stack[0];
}

TEST(test_any_split)
{
    float values[33], copy[33];
    srand(1);
    for (int V = 1; V <= 33; V++) {
        for (int W = 1; W <= V; W++) {
            lks_node nodes[64];
            int n = 0;
            for (int v = 0; v < V; v++)
                copy[v] = values[v] = (float)rand() / (float)(1 << (rand() % 20));
            for (int r = 0; r < W; r++) {
                int got = lks__tree_cover(V, r * V / W, (r + 1) * V / W, nodes + n, 64 - n);
                assert_true(got > 0);
                n += got;
            }
            float want = suite_tree_sum(copy, V), sum = planned_sum(V, values, nodes, n);
            assert_memory_equal(&sum, &want, sizeof sum);
            if (V % W == 0 && (V & (V - 1)) == 0)
                assert_int_equal(n, W); /* powers of two give one node each */
        }
    }
}

TEST(test_cover_is_maximal)
{
    for (int V = 1; V <= 20; V++)
        for (int a = 0; a <= V; a++)
            for (int b = a; b <= V; b++) {
                lks_node nodes[LKS__TREE_MAX_COVER];
                int n = lks__tree_cover(V, a, b, nodes, LKS__TREE_MAX_COVER), at = a;
                for (int i = 0; i < n; i++) {
                    int first, end;
                    lks__tree_leaves(V, nodes[i], &first, &end);
                    assert_int_equal(first, at);
                    at = end;
                    if (lks__tree_is_root(V, nodes[i]))
                        continue;
                    lks__tree_leaves(V, lks__tree_parent(nodes[i]), &first, &end);
                    assert_true(first < a || end > b);
                }
                assert_int_equal(at, b);
                if (n > 0)
                    assert_int_equal(lks__tree_cover(V, a, b, nodes, n - 1), -1);
            }
    lks_node nodes[LKS__TREE_MAX_COVER];
    assert_true(lks__tree_cover(65536, 1, 65535, nodes, LKS__TREE_MAX_COVER) > 0);
    assert_true(lks__tree_cover(65535, 1, 65534, nodes, LKS__TREE_MAX_COVER) > 0);
}

TEST(test_shape)
{
    static const struct {
        int V, levels;
    } cases[] = {{1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 4}, {8, 4}, {9, 5}, {65536, 17}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int V = cases[i].V, first, end;
        assert_int_equal(lks__tree_levels(V), cases[i].levels);
        const lks_node root = {cases[i].levels - 1, 0};
        assert_true(lks__tree_is_root(V, root) && lks__tree_valid(V, root));
        assert_false(lks__tree_has_sibling(V, root));
        lks__tree_leaves(V, root, &first, &end);
        assert_true(first == 0 && end == V);
        assert_false(lks__tree_valid(V, (lks_node){root.level + 1, 0}));
        assert_false(lks__tree_valid(V, (lks_node){0, V}));
        assert_false(lks__tree_valid(V, (lks_node){-1, 0}));
        assert_false(lks__tree_valid(V, (lks_node){0, -1}));
    }
    /* Five leaves: the last one has no neighbour until it is added to the other four. */
    assert_true(lks__tree_has_sibling(5, (lks_node){0, 3}));
    assert_false(lks__tree_has_sibling(5, (lks_node){0, 4}));
    assert_false(lks__tree_has_sibling(5, (lks_node){1, 2}));
    assert_true(lks__tree_has_sibling(5, (lks_node){2, 1}));
}

TEST(test_bad_covers)
{
    uint8_t merges[8];
    lks_node twice[] = {{0, 0}, {0, 0}, {0, 1}}, gap[] = {{0, 0}, {0, 2}},
             swapped[] = {{0, 1}, {0, 0}};
    lks_node under[] = {{1, 0}, {0, 1}, {1, 1}}, beyond[] = {{0, 0}, {0, 5}};
    assert_false(lks__tree_plan(2, twice, 3, merges));
    assert_false(lks__tree_plan(3, gap, 2, merges));
    assert_false(lks__tree_plan(2, swapped, 2, merges));
    assert_false(lks__tree_plan(4, under, 3, merges));
    assert_false(lks__tree_plan(2, beyond, 2, merges));
    assert_false(lks__tree_plan(2, twice, 1, merges));
    assert_false(lks__tree_plan(1, twice, 0, merges));
    assert_true(lks__tree_plan(1, twice, 1, merges));
}

/* A part of the tree: nodes that aren't siblings stay apart, and leaves come in order, once. */
TEST(test_parts_of_the_tree)
{
    uint8_t merges[8];
    lks_node left[8];
    int first[8], n_left;
    const lks_node apart[] = {{0, 0}, {0, 3}}, swapped[] = {{0, 1}, {0, 0}},
                   under[] = {{1, 0}, {0, 1}};
    const lks_node pair[] = {{0, 2}, {0, 3}};
    assert_true(lks__tree_plan_some(4, apart, 2, merges, left, first, &n_left));
    assert_int_equal(n_left, 2);
    assert_int_equal(left[0].index, 0);
    assert_int_equal(left[1].index, 3);
    assert_int_equal(merges[0] + merges[1], 0);
    assert_false(lks__tree_plan_some(2, swapped, 2, merges, left, first, &n_left));
    assert_false(lks__tree_plan_some(4, under, 2, merges, left, first, &n_left));
    assert_true(lks__tree_plan_some(4, pair, 2, merges, left, first, &n_left));
    assert_int_equal(n_left, 1);
    assert_true(left[0].level == 1 && left[0].index == 1);
}
