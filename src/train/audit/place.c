#include "train/audit/diff.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/list.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/folder.h"
#include "report/diff/tensors.h"
#include "train/audit/points.h"
#include "train/audit/steps.h"
#include "train/audit/trail.h"

/* An entry of a trail, with its tensor. */
struct kept {
    json_t *entry;
    lks__st_tensor tensor;
    void *data; /* NULL: no tensor */
};

struct side {
    lks__history *record;
    lks__points points;
    uint64_t start;
    json_t *claim; /* the first that the last execution has refuted, or NULL */
};

struct search {
    const lks__settings *s;
    struct side sides[2];
    uint64_t step;
    int leaf;         /* -1: all */
    bool begun;       /* printed */
    uint64_t *hashes; /* [n] of A's entries */
    size_t n, room;
    size_t at, next; /* the first entry that differs; the next one */
    struct kept kept[2];
};

static lks_status out_of_memory(void)
{
    return lks__no_memory("to compare the steps of two runs");
}

/* --- two trails ------------------------------------------------------------------------------- */

static lks_status keep(struct kept *k, const json_t *entry, const lks__st_tensor *tensor)
{
    k->entry = json_deep_copy(entry);
    if (k->entry == NULL)
        return out_of_memory();
    if (tensor == NULL)
        return LKS_ERR_STOPPED;
    k->data = malloc((size_t)tensor->bytes);
    if (k->data == NULL)
        return out_of_memory();
    memcpy(k->data, tensor->data, (size_t)tensor->bytes);
    k->tensor = *tensor;
    k->tensor.data = k->data;
    return LKS_ERR_STOPPED;
}

static lks_status hash_of(const json_t *entry, uint64_t *hash_p)
{
    char *text = lks__json_dump(entry, JSON_COMPACT);
    if (text == NULL)
        return out_of_memory();
    *hash_p = XXH3_64bits(text, strlen(text));
    free(text);
    return LKS_OK;
}

/* First A's trail: remember the hash of each entry. */
static lks_status record(void *ctx, const json_t *entry, const lks__st_tensor *tensor)
{
    struct search *x = ctx;
    if (lks__trail_entry_is(entry, LKS__TRAIL_HEAD))
        return LKS_OK;
    if (!lks__list_grow(&x->hashes, x->n, &x->room, sizeof *x->hashes))
        return out_of_memory();
    return hash_of(entry, &x->hashes[x->n++]);
}

/* Then B's: stop at the first entry that differs. */
static lks_status compare(void *ctx, const json_t *entry, const lks__st_tensor *tensor)
{
    struct search *x = ctx;
    uint64_t hash = 0;
    if (lks__trail_entry_is(entry, LKS__TRAIL_HEAD))
        return LKS_OK;
    LKS__TRY(hash_of(entry, &hash));
    if (x->next < x->n && x->hashes[x->next] == hash) {
        x->next++;
        return LKS_OK;
    }
    x->at = x->next;
    return keep(&x->kept[1], entry, tensor);
}

/* Then A's up to that entry. */
static lks_status find(void *ctx, const json_t *entry, const lks__st_tensor *tensor)
{
    struct search *x = ctx;
    if (lks__trail_entry_is(entry, LKS__TRAIL_HEAD) || x->next++ < x->at)
        return LKS_OK;
    return keep(&x->kept[0], entry, tensor);
}

/* --- execution -------------------------------------------------------------------------------- */

static lks_status execute(struct search *x, int k,
                          lks_status (*take)(void *, const json_t *, const lks__st_tensor *))
{
    struct side *side = &x->sides[k];
    const lks__trail trail = {take, x};
    lks__replay r = {.asked = x->s,
                     .own_data = true,
                     .run = side->record->run,
                     .claims = &side->record->claims,
                     .leaf = x->leaf,
                     .trail = &trail,
                     .files_checked = true}; /* diff has compared the data */
    x->next = 0;
    const lks_status st = lks__replay_steps(&r, side->start, x->step + 1);
    if (r.findings > 0) {
        json_decref(side->claim);
        side->claim = json_string(r.first);
    }
    return st == LKS_ERR_STOPPED && x->kept[k].entry != NULL ? LKS_OK : st;
}

static uint64_t steps_of(const struct search *x, int k)
{
    return x->step + 1 - x->sides[k].start;
}

static lks_status open_side(struct side *side)
{
    LKS__TRY(lks__history_finish(side->record));
    return lks__points_find(side->record->run, &side->record->claims, &side->points);
}

static lks_status begin(struct search *x, FILE *out)
{
    const uint64_t a = steps_of(x, 0), b = steps_of(x, 1);
    char from[2][LKS__POINT_TEXT];
    if ((a > b ? a : b) > (uint64_t)x->s->execute)
        return lks__fail(LKS_ERR_SUPPORT,
                         "that needs %" PRIu64 " steps of A and %" PRIu64
                         " of B: `--execute=%" PRIu64 "` allows them",
                         a, b, a > b ? a : b);
    fprintf(out,
            "execution         step %" PRIu64 " again: A from %s, B from %s; %" PRIu64
            " and %" PRIu64 " steps\n",
            x->step, lks__point_text(x->sides[0].start, from[0]),
            lks__point_text(x->sides[1].start, from[1]), a, b);
    fflush(out);
    x->begun = true;
    return LKS_OK;
}

static void forget_trails(struct search *x)
{
    for (int k = 0; k < 2; k++) {
        json_decref(x->kept[k].entry);
        free(x->kept[k].data);
        x->kept[k] = (struct kept){.entry = NULL};
    }
    x->n = 0;
}

/* Execute the step of both sides. Without a difference kept[1] has no entry. *side_p: the side that
 * an error is about; -1: both. */
static lks_status execute_both(struct search *x, FILE *out, int *side_p)
{
    forget_trails(x);
    for (*side_p = 0; *side_p < 2; ++*side_p) {
        struct side *side = &x->sides[*side_p];
        LKS__TRY(lks__points_before(&side->points, x->step, &side->start));
    }
    *side_p = -1;
    LKS__TRY(begin(x, out));
    *side_p = 0;
    LKS__TRY(execute(x, 0, record));
    *side_p = 1;
    LKS__TRY(execute(x, 1, compare));
    *side_p = 0;
    return x->kept[1].entry != NULL ? execute(x, 0, find) : LKS_OK;
}

/* True if the sides begin the step with other weights or moments, which an earlier step or a false
 * checkpoint has made. */
static bool began_differently(const struct search *x)
{
    const json_t *entry = x->kept[1].entry;
    return x->step > 0 && (lks__trail_entry_is(entry, LKS__TRAIL_WEIGHTS) ||
                           lks__trail_entry_is(entry, LKS__TRAIL_MOMENTS));
}

static lks_status execute_steps(struct search *x, FILE *out, int *side_p)
{
    for (*side_p = 0; *side_p < 2; ++*side_p)
        LKS__TRY(open_side(&x->sides[*side_p]));
    LKS__TRY(execute_both(x, out, side_p));
    if (!began_differently(x))
        return LKS_OK;
    x->step--;
    x->leaf = -1;
    return execute_both(x, out, side_p);
}

/* --- the report ------------------------------------------------------------------------------- */

/* Choose the step, which is the first that differs, or the one before a checkpoint that differs
 * although all steps before it are equal. False if there is none. */
static bool choose(const json_t *report, struct search *x)
{
    const json_t *gradient = json_object_get(json_object_get(report, "gradients"), "first");
    const json_t *first = json_object_get(report, "first");
    const char *name = lks__json_str(report, "checkpoint");
    const char *kind = lks__json_str(first, "kind");
    const json_t *where = json_is_object(gradient) ? gradient : first;
    uint64_t saved = name != NULL ? lks__entry_parse(name).iter : 0;
    if (saved == 0 && kind != NULL && where == first && strcmp(kind, "checkpoint") == 0)
        saved = (uint64_t)lks__json_int(first, "iter");
    x->leaf = -1;
    if (json_is_object(where))
        x->step = (uint64_t)lks__json_int(where, "iter");
    if (saved > 0 && (!json_is_object(where) || saved <= x->step)) {
        x->step = saved - 1;
        return true;
    }
    if (where == gradient && json_is_object(where))
        x->leaf = (int)lks__json_int(where, "virtual_rank");
    return json_is_object(where) && (where == gradient || strcmp(kind, "rollback") != 0);
}

static json_t *place_of(const struct search *x)
{
    const struct kept *a = &x->kept[0], *b = &x->kept[1];
    if (b->entry == NULL)
        return json_null();
    json_t *place = json_pack("{s:O?, s:O}", "a", a->entry, "b", b->entry);
    if (place != NULL && a->data != NULL && b->data != NULL &&
        lks__trail_same_result(a->entry, b->entry))
        lks__tensor_diff(&a->tensor, &b->tensor, place);
    return place;
}

static lks_status add_result(const struct search *x, json_t *execution)
{
    json_t *claims = json_array();
    const size_t equal = x->kept[1].entry != NULL ? x->at : x->n;
    for (int k = 0; k < 2; k++)
        if (x->sides[k].claim != NULL)
            json_array_append_new(claims, json_pack("{s:s, s:O}", "run", k == 0 ? "a" : "b",
                                                    "claim", x->sides[k].claim));
    json_object_set_new(execution, "entries", json_integer((json_int_t)equal));
    json_object_set_new(execution, "place", place_of(x));
    return json_object_set_new(execution, "false", claims) == 0 ? LKS_OK : out_of_memory();
}

/* "A: the data in … are not the run's" */
static lks_status add_reason(const struct search *x, json_t *execution, int side)
{
    json_t *why = side < 0 ? json_string(lks_last_error())
                           : json_sprintf("%c: %s", "AB"[side], lks_last_error());
    json_object_set_new(execution, "begun", json_boolean(x->begun));
    return json_object_set_new(execution, "why_not", why) == 0 ? LKS_OK : out_of_memory();
}

static void forget(struct search *x)
{
    for (int k = 0; k < 2; k++) {
        lks__points_free(&x->sides[k].points);
        json_decref(x->sides[k].claim);
    }
    forget_trails(x);
    free(x->hashes);
}

lks_status lks__place_diff(lks__history both[2], const lks__settings *s, FILE *out, json_t *report)
{
    struct search x = {.s = s, .sides = {{.record = &both[0]}, {.record = &both[1]}}};
    int side;
    if (s->execute == 0 || !choose(report, &x))
        return LKS_OK;
    lks_status st = execute_steps(&x, out, &side);
    json_t *execution = json_pack("{s:I, s:o}", "step", (json_int_t)x.step, "leaf",
                                  x.leaf >= 0 ? json_integer(x.leaf) : json_null());
    if (json_object_set_new(report, "execution", execution) != 0)
        st = out_of_memory();
    else if (st == LKS_OK)
        st = add_result(&x, execution);
    else if (st != LKS_ERR_NOMEM && st != LKS_ERR_STOPPED)
        st = add_reason(&x, execution, side);
    forget(&x);
    return st;
}
