/* Gradients may go to a staging buffer instead of an arena, each group to its own place
 * (lks__backward.shift): they are the same there, and nothing else is written. And what is
 * overwritten needs no zeros before (lks__backward.fresh). */
#include "models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 64 }; /* unused floats between two groups */

static const float GUARD = -7.25f;

struct watch {
    const small_run *run;
    const float *staging; /* NULL for the arena */
    const size_t *place;  /* [n_groups] in the staging buffer */
    float *then;          /* arena: copy of each group at the time of its announcement */
    int next;
};

static size_t start_of(const lks__table *t, int group)
{
    return t->block_start[t->group_block[group]];
}

static size_t floats_of(const lks__table *t, int group)
{
    return start_of(t, group + 1) - start_of(t, group);
}

static void group_done(void *ctx, int group)
{
    struct watch *w = ctx;
    const lks__table *t = &w->run->table;
    assert_int_equal(group, w->next++);
    memcpy(w->then + start_of(t, group), w->staging + w->place[group],
           floats_of(t, group) * sizeof(float));
}

static float *floats(size_t n, float value)
{
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

static float train(struct watch *w, float *grads, const size_t *shift, bool fresh)
{
    lks__backward bw = {.grads = grads,
                        .shift = shift,
                        .fresh = fresh,
                        .seed = 3,
                        .step = 2,
                        .vm = 1 << 16 | 1,
                        .done = group_done,
                        .done_ctx = w};
    w->staging = grads;
    w->next = 0;
    float loss;
    lks__model_train(w->run->model, w->run->params, &w->run->mb, &bw, &loss);
    assert_int_equal(w->next, w->run->table.n_groups);
    return loss;
}

static void check(const small_model *m)
{
    small_run run;
    small_open(m, &run);
    const lks__table *t = &run.table;
    size_t *arena_place = lks_test_calloc((size_t)t->n_groups, sizeof *arena_place);
    size_t *place = lks_test_calloc((size_t)t->n_groups, sizeof *place);
    size_t *shift = lks_test_calloc((size_t)t->n_groups, sizeof *shift);
    size_t size = GAP;
    for (int g = t->n_groups - 1; g >= 0; g--) { /* in the reverse order of an arena */
        arena_place[g] = start_of(t, g);
        place[g] = size;
        shift[g] = start_of(t, g) - place[g]; /* modulo 2^64 */
        size += (floats_of(t, g) + 15) / 16 * 16 + GAP;
    }
    float *arena = floats(t->count, 0.0f), *staging = floats(size, GUARD);
    for (int g = 0; g < t->n_groups; g++)
        memset(staging + place[g], 0, floats_of(t, g) * sizeof *staging);
    struct watch in_arena = {&run, NULL, arena_place, floats(t->count, 0.0f), 0};
    struct watch in_staging = {&run, NULL, place, floats(t->count, 0.0f), 0};

    float loss = train(&in_arena, arena, NULL, false);
    float again = train(&in_staging, staging, shift, false);
    assert_memory_equal(&loss, &again, sizeof loss);
    for (int g = 0; g < t->n_groups; g++) {
        const float *want = arena + start_of(t, g), *got = staging + place[g];
        for (size_t i = 0; i < floats_of(t, g); i++)
            if (memcmp(&want[i], &got[i], sizeof *got) != 0)
                fail_msg("%s, group %d, float %zu: %g in the arena, %g in the staging buffer",
                         m->name, g, i, (double)want[i], (double)got[i]);
        for (size_t i = 0; i < GAP; i++)
            if (staging[place[g] - GAP + i] != GUARD)
                fail_msg("%s: a place before group %d was written", m->name, g);
    }
    for (size_t i = size - GAP; i < size; i++)
        assert_true(staging[i] == GUARD);
    /* announced when complete, and every tensor got a gradient */
    assert_memory_equal(in_arena.then, arena, t->count * sizeof *arena);
    assert_memory_equal(in_staging.then, arena, t->count * sizeof *arena);
    for (size_t i = 0; i < t->n_tensors; i++) {
        double sumsq = 0.0;
        for (size_t e = 0; e < t->tensors[i].count; e++)
            sumsq += (double)arena[t->tensors[i].offset + e] * arena[t->tensors[i].offset + e];
        if (!(sumsq > 0.0))
            fail_msg("%s: %s has no gradient", m->name, t->tensors[i].name);
    }
    float *fresh = floats(t->count, 0.0f);
    for (size_t i = 0; i < t->n_tensors; i++)
        for (size_t e = 0; t->tensors[i].overwritten && e < t->tensors[i].count; e++)
            fresh[t->tensors[i].offset + e] = NAN;
    train(&in_arena, fresh, NULL, true);
    assert_memory_equal(fresh, arena, t->count * sizeof *arena);
    lks_test_free(fresh, in_arena.then, in_staging.then, arena, staging, arena_place, place, shift);
    small_close(&run);
}

TEST(test_staging)
{
    (void)state;
    for (int i = 0; i < N_SMALL_MODELS; i++)
        check(&small_models[i]);
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(small_open_exec, small_close_exec);
}
