#include "train/audit/diff.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/text/jsontext.h"
#include "data/read/differ.h"
#include "report/diff/facts.h"
#include "report/record/metrics/metrics.h"
#include "train/audit/settings.h"
#include "train/audit/steps.h"
#include "train/checkpoint.h"
#include "train/procedure/procedure.h"

/* One run, with its data and sampler, but no weights. */
struct side {
    const lks__history *both;
    int k; /* which of both */
    const lks__claims *claims;
    lks__run run;
    lks__state state;
    lks__step_work work;
};

static lks_status out_of_memory(void)
{
    return lks__no_memory("to compare data");
}

/* --- a run's data ----------------------------------------------------------------------------- */

static void set_batch(lks__run *run)
{
    run->V = (int)run->s.virtual_ranks;
    run->N = (int)run->s.gradient_accumulation_steps;
    run->A = run->N / run->V;
}

static const char *digest_of(const lks__history *h)
{
    return lks__json_str(h->claims.config, "data_digest");
}

static lks_status check_digest(const struct side *x)
{
    char used[LKS__METRICS_PATH], place[LKS__METRICS_PATH];
    const int k = x->k;
    const char *digest = digest_of(&x->both[k]), *other = digest_of(&x->both[!k]);
    bool found;
    const char *have = lks__hex(x->run.data_digest);
    if (digest == NULL || strcmp(digest, have) == 0)
        return LKS_OK;
    const char *shown = lks__shown(x->run.data_dir, 512);
    if (other == NULL || strcmp(other, have) != 0)
        return lks__fail(LKS_ERR_SUPPORT,
                         "the data in %s have changed since the run: their digest is %s; move them "
                         "away, and give the run's by --dataset=DIR",
                         shown, have);
    LKS__TRY(lks__metrics_dataset(x->both[k].run, used, place, &found));
    return lks__fail(
        LKS_ERR_SUPPORT,
        "%s has the data of %c, not of %c: one --dataset can't serve both, so put %c's "
        "data back in %s",
        shown, "AB"[!k], "AB"[k], "AB"[k], found ? lks__shown(place, 512) : "their folder");
}

/* Open a run's data, and check that they are the run's. */
static lks_status open_data(struct side *x, lks__history both[2], int k, const lks__settings *s)
{
    lks__run *run = &x->run;
    LKS__TRY(lks__history_finish(&both[k]));
    x->both = both;
    x->k = k;
    x->claims = &both[k].claims;
    const char *init = lks__json_str(x->claims->config, "init_hash");
    if (x->claims->config == NULL || x->claims->n_steps == 0 || x->claims->steps[0].iter != 0)
        return lks__fail(LKS_ERR_SUPPORT, "the record doesn't begin at step 0");
    const lks__replay r = {.asked = s, .own_data = true, .run = both[k].run, .claims = x->claims};
    LKS__TRY(lks__audit_settings(&r, 0, &run->s));
    if (init != NULL && run->s.sampler == LKS__sampler_nanogpt)
        return lks__fail(LKS_ERR_SUPPORT, "the run began with given weights, so the first numbers "
                                          "of sampler=nanogpt aren't in its record");
    snprintf(run->init_hash, sizeof run->init_hash, "%s", init != NULL ? init : "");
    LKS__TRY(lks__settings_complete(&run->s, 1));
    run->procedure = lks__procedure_of(&run->s);
    set_batch(run);
    LKS__TRY(run->procedure->open_data(run));
    return check_digest(x);
}

static lks_status open_run(struct side *x, lks__history both[2], int k, const lks__settings *s)
{
    lks__run *run = &x->run;
    const lks_status st = open_data(x, both, k, s);
    if (st != LKS_OK)
        return lks__fail_in(st, "run %c", "AB"[k]);
    run->model_config = lks__state_model_config(&run->s, (uint32_t)run->s.vocab_size);
    LKS__TRY(lks__model_table(&run->model_config, &run->table));
    return run->procedure->open_rest(run, &x->state);
}

static void close_run(struct side *x)
{
    if (x->run.procedure != NULL)
        x->run.procedure->close(&x->run, &x->state);
    lks__meta_free(&x->run.meta);
    lks__table_free(&x->run.table);
}

/* --- a run's steps ---------------------------------------------------------------------------- */

/* Apply the settings that a resume changed here. Another batch begins a segment of the data. */
static lks_status change_settings(struct side *x)
{
    lks__run *run = &x->run;
    lks__state *state = &x->state;
    const json_t *changed = lks__claims_changed(x->claims, state->iter);
    if (changed == NULL || state->iter == 0)
        return LKS_OK;
    lks__settings *old = malloc(sizeof *old);
    if (old == NULL)
        return out_of_memory();
    *old = run->s;
    lks_status st = lks__audit_change(&run->s, changed);
    LKS__THEN(st, lks__settings_complete(&run->s, 1));
    if (st == LKS_OK && !lks__settings_same_batch(&run->s, old)) {
        state->segment.data = run->procedure->data_at(run, state, old, &state->segment.data,
                                                      state->iter + state->data_shift);
        set_batch(run);
        lks__batch_sampler_close(state->sampler);
        state->sampler = NULL;
        st = run->procedure->open_rest(run, state);
        if (st == LKS_OK)
            run->procedure->start_data(run, state);
    }
    free(old);
    return st;
}

/* The first read of a token that differs, in the order of a trail. */
struct hit {
    uint64_t iter, token; /* token LKS__DIFFER_NONE: none */
    int v, m;             /* virtual rank and its micro-batch */
};

/* First a micro-batch's tokens, then its targets, each one token later. */
static lks_status step_reads(const struct side *x, const lks__differ *d, int side, struct hit *hit)
{
    lks__spans spans;
    for (int i = 0; i < x->run.N; i++) {
        hit->v = i / x->run.A;
        hit->m = i % x->run.A;
        x->run.procedure->spans(&x->run, &x->state, &x->work, hit->v, hit->m, &spans);
        for (size_t k = 0; k < 2 * spans.n; k++) {
            LKS__TRY(lks__differ_reads(d, side, spans.at[k % spans.n] + k / spans.n, spans.length,
                                       &hit->token));
            if (hit->token != LKS__DIFFER_NONE)
                return LKS_OK;
        }
    }
    return LKS_OK;
}

static lks_status find_step(struct side *x, const lks__differ *d, int side, struct hit *hit)
{
    lks__state *state = &x->state;
    hit->token = LKS__DIFFER_NONE;
    for (size_t i = 0; i < x->claims->n_steps; i++, state->iter++) {
        const lks__claim *claim = &x->claims->steps[i];
        if (claim->iter != state->iter)
            return lks__fail(LKS_ERR_SUPPORT, "metrics.jsonl has no line of step %" PRIu64,
                             state->iter);
        LKS__TRY(change_settings(x));
        LKS__TRY(lks__replay_data(&x->run, state, claim));
        x->run.procedure->begin_step(state, &x->work);
        LKS__TRY(step_reads(x, d, side, hit));
        state->eval_done = false;
        hit->iter = state->iter;
        if (hit->token != LKS__DIFFER_NONE)
            return LKS_OK;
    }
    return LKS_OK;
}

/* --- two runs --------------------------------------------------------------------------------- */

/* The files and offsets of the first token that differs. */
static lks_status add_places(json_t *row, const lks__differ *d)
{
    json_t *files = json_array(), *offsets = json_array();
    for (int i = 0; i < 2; i++) {
        const bool has = d->ids[i] >= 0;
        uint64_t offset = 0;
        const char *path = has ? lks__shards_place(d->sides[i], d->first, &offset) : NULL;
        json_array_append_new(files, has ? lks__json_utf8(path) : json_null());
        json_array_append_new(offsets, has ? json_integer((json_int_t)offset) : json_null());
    }
    if (json_object_set_new(row, "files", files) != 0 ||
        json_object_set_new(row, "offsets", offsets) != 0)
        return out_of_memory();
    return LKS_OK;
}

/* Both sides' id of a token; null if a side ends before it. */
static lks_status ids_of(const lks__differ *d, uint64_t token, json_t **ids_p)
{
    int32_t ids[2] = {0, 0};
    bool has[2];
    for (int i = 0; i < 2; i++) {
        has[i] = token < lks__shards_count(d->sides[i]);
        if (has[i])
            LKS__TRY(lks__shards_read(d->sides[i], token, 1, &ids[i]));
    }
    *ids_p = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(*ids_p, has[i] ? json_integer(ids[i]) : json_null());
    return LKS_OK;
}

/* Null if no step has read a token that differs, or if that isn't known. */
static lks_status read_of(const lks__differ *d, const struct hit *hit, json_t **read_p)
{
    json_t *ids;
    *read_p = json_null();
    if (hit->token == LKS__DIFFER_NONE)
        return LKS_OK;
    LKS__TRY(ids_of(d, hit->token, &ids));
    *read_p = json_pack("{s:I, s:i, s:i, s:I, s:o}", "step", (json_int_t)hit->iter, "virtual_rank",
                        hit->v, "micro_batch", hit->m, "token", (json_int_t)hit->token, "ids", ids);
    return LKS_OK;
}

static lks_status add_steps(json_t *row, struct side x[2], const lks__differ *d)
{
    json_t *reads = json_array(), *why = json_array();
    for (int i = 0; i < 2; i++) {
        struct hit hit;
        json_t *read = NULL;
        lks_status st = find_step(&x[i], d, i, &hit);
        LKS__THEN(st, read_of(d, &hit, &read));
        json_array_append_new(reads, read != NULL ? read : json_null());
        json_array_append_new(why, st != LKS_OK ? lks__json_utf8(lks_last_error()) : json_null());
    }
    if (json_object_set_new(row, "read", reads) != 0 ||
        json_object_set_new(row, "unread_why", why) != 0)
        return out_of_memory();
    return LKS_OK;
}

/* Compare a split; it has no row if it is equal. */
static lks_status add_split(json_t *splits, struct side x[2], int split)
{
    const lks__shards *a = x[0].run.data[split], *b = x[1].run.data[split];
    lks__differ d;
    if (a == NULL || b == NULL) /* neither run evaluates on a split that it lacks */
        return LKS_OK;
    LKS__TRY(lks__differ_open(a, b, &d));
    lks_status st = LKS_OK;
    if (d.different > 0) {
        json_t *row =
            json_pack("{s:s, s:I, s:[i, i], s:I, s:[I, I]}", "split",
                      split == LKS__SPLIT_VAL ? "val" : "train", "token", (json_int_t)d.first,
                      "ids", (int)d.ids[0], (int)d.ids[1], "different", (json_int_t)d.different,
                      "tokens", (json_int_t)lks__shards_count(a), (json_int_t)lks__shards_count(b));
        st = row != NULL ? add_places(row, &d) : out_of_memory();
        if (st == LKS_OK && split == LKS__SPLIT_TRAIN)
            st = add_steps(row, x, &d);
        if (json_array_append_new(splits, row) != 0)
            st = out_of_memory();
    }
    lks__differ_close(&d);
    return st;
}

static bool is_data(const json_t *row)
{
    return lks__facts_data(lks__json_str(row, "name"));
}

/* True if the rows of the splits say that no step has read a token that differs, and samplers have
 * drawn from the same number of tokens. */
static bool is_unread(const json_t *splits)
{
    lks__each(row, splits) {
        const json_t *read = json_object_get(row, "read"),
                     *why = json_object_get(row, "unread_why"),
                     *tokens = json_object_get(row, "tokens");
        for (size_t k = 0; k < json_array_size(read); k++)
            if (!json_is_null(json_array_get(read, k)) || !json_is_null(json_array_get(why, k)) ||
                !json_equal(json_array_get(tokens, 0), json_array_get(tokens, 1)))
                return false;
    }
    return json_array_size(splits) > 0;
}

/* To the rows that change no bit, or only evaluations. */
static void move_rows(json_t *report, const char *name)
{
    json_t *from = json_object_get(report, "can_change_bits");
    for (size_t i = json_array_size(from); i-- > 0;) {
        json_t *row = json_array_get(from, i);
        if (!is_data(row))
            continue;
        json_array_append(json_object_get(report, name), row);
        json_array_remove(from, i);
    }
}

static lks_status compare(struct side x[2], lks__history both[2], const lks__settings *s,
                          json_t *splits)
{
    for (int i = 0; i < 2; i++)
        LKS__TRY(open_run(&x[i], both, i, s));
    LKS__TRY(add_split(splits, x, LKS__SPLIT_TRAIN));
    return add_split(splits, x, LKS__SPLIT_VAL);
}

lks_status lks__reads_check(lks__history both[2], int k, const lks__settings *s)
{
    struct side *x = calloc(1, sizeof *x);
    if (x == NULL)
        return out_of_memory();
    const lks_status st = open_run(x, both, k, s);
    close_run(x);
    free(x);
    return st;
}

lks_status lks__reads_diff(lks__history both[2], const lks__settings *s, json_t *report)
{
    bool differ = false;
    lks__each(row, json_object_get(report, "can_change_bits"))
        differ |= is_data(row);
    if (!differ || both[0].run == NULL)
        return LKS_OK;
    struct side *x = calloc(2, sizeof *x);
    json_t *splits = json_array();
    if (x == NULL || splits == NULL) {
        free(x);
        json_decref(splits);
        return out_of_memory();
    }
    const lks_status st = compare(x, both, s, splits);
    json_t *why = st != LKS_OK ? lks__json_utf8(lks_last_error()) : json_null();
    if (st == LKS_OK && is_unread(splits))
        move_rows(report, json_is_object(json_object_get(report, "evaluation"))
                              ? "changes_evaluations"
                              : "changes_no_bit");
    close_run(&x[0]);
    close_run(&x[1]);
    free(x);
    json_t *data = json_pack("{s:o, s:o}", "unknown", why, "splits", splits);
    return json_object_set_new(report, "data", data) == 0 ? LKS_OK : out_of_memory();
}
