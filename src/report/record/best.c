#include "report/record/best.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/checkpoint/ckpt.h"
#include "files/checkpoint/name.h"
#include "report/record/lines.h"

bool lks__best_beaten(const lks__best *best, double val_loss)
{
    return !best->found ? val_loss == val_loss : lks__nine_digits(val_loss) < best->loss;
}

void lks__best_set(lks__best *best, uint64_t iter, double val_loss)
{
    *best = (lks__best){true, iter, lks__nine_digits(val_loss)};
}

lks_status lks__best_clear(const char *out_dir, lks__best *best)
{
    *best = (lks__best){.found = false};
    return lks__name_remove(out_dir, LKS__NAME_BEST);
}

/* --- evaluations in metrics.jsonl and in checkpoints ------------------------------------------ */

/* An evaluation, and the checkpoint that followed it. */
struct candidate {
    uint64_t iter;
    double loss;
    char params_hash[17];
};

struct record {
    struct candidate *all;
    size_t n, room;
    bool evaluated; /* `last` is an evaluation without a checkpoint so far */
    struct candidate last;
};

static lks_status add(struct record *r, const char *params_hash)
{
    if (!lks__list_grow(&r->all, r->n, &r->room, sizeof *r->all))
        return lks__no_memory("for a run's evaluations");
    r->all[r->n] = r->last;
    snprintf(r->all[r->n++].params_hash, sizeof r->last.params_hash, "%s", params_hash);
    return LKS_OK;
}

static lks_status read_object(struct record *r, const json_t *o)
{
    const char *kind = lks__json_str(o, "kind");
    const char *hash = lks__json_str(o, "params_hash");
    const lks__asked asked = lks__asked_of(o);
    const json_t *i = json_object_get(o, "iter"), *loss = json_object_get(o, "val_loss");
    if (kind == NULL || !json_is_integer(i) || json_integer_value(i) < 0)
        return LKS_OK;
    uint64_t iter = (uint64_t)json_integer_value(i);
    if (strcmp(kind, "eval") == 0) {
        r->evaluated = json_is_number(loss);
        r->last = (struct candidate){.iter = iter, .loss = json_number_value(loss)};
    } else if (strcmp(kind, "checkpoint") == 0 && r->evaluated && iter == r->last.iter &&
               hash != NULL) {
        r->evaluated = false;
        return asked == LKS__ASKED_NOT || asked == LKS__ASKED_END ? add(r, hash) : LKS_OK;
    }
    return LKS_OK;
}

static lks_status read_line(struct record *r, const char *line, size_t bytes)
{
    static const char *const kinds[] = {"{\"kind\":\"eval\"", "{\"kind\":\"checkpoint\""};
    json_t *o;
    bool ours = false;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        ours |= bytes > strlen(kinds[k]) && memcmp(line, kinds[k], strlen(kinds[k])) == 0;
    if (!ours)
        return LKS_OK;
    LKS__TRY(lks__json_line(line, bytes, JSON_REJECT_DUPLICATES, &o));
    lks_status st = read_object(r, o);
    json_decref(o);
    return st;
}

/* Add the evaluation that the checkpoint itself records. */
static lks_status read_state(const char *out_dir, uint64_t iter, struct record *r)
{
    lks__ckpt ckpt = {.iter = 0};
    lks_status st = lks__ckpt_open_iter(out_dir, iter, LKS__CKPT_ONLY_STATE, &ckpt);
    if (st != LKS_OK)
        return st == LKS_ERR_NOMEM ? st : LKS_OK; /* ignore a damaged one */
    const char *hash = lks__json_str(ckpt.state, "params_hash");
    const json_t *loss = json_object_get(ckpt.state, "val_loss");
    if (json_is_number(loss) && hash != NULL) {
        r->last =
            (struct candidate){.iter = iter, .loss = lks__nine_digits(json_number_value(loss))};
        st = add(r, hash);
    }
    lks__ckpt_close(&ckpt);
    return st;
}

static lks_status read_states(const char *out_dir, uint64_t iter, struct record *r)
{
    lks__entry *entries;
    size_t n;
    LKS__TRY(lks__ckpt_scan(out_dir, &entries, &n));
    lks_status st = LKS_OK;
    for (size_t i = 0; i < n && st == LKS_OK; i++)
        if (entries[i].kind == LKS__ENTRY_CKPT && entries[i].iter <= iter)
            st = read_state(out_dir, entries[i].iter, r);
    free(entries);
    return st;
}

static lks_status read_record(const char *out_dir, struct record *r)
{
    lks__lines lines;
    char path[LKS__CKPT_PATH], *text;
    size_t bytes;
    LKS__TRY(lks__ckpt_join(path, out_dir, "metrics.jsonl"));
    lks_status st = lks__lines_open(path, &lines);
    while (st == LKS_OK && (st = lks__lines_text(&lines, &text, &bytes)) == LKS_OK && text != NULL)
        st = read_line(r, text, bytes);
    lks__lines_close(&lines);
    return st;
}

/* --- at the end of a run, and on a resume ----------------------------------------------------- */

/* Lowest loss first; for equal losses the earlier one. */
static int lowest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->loss != y->loss)
        return x->loss < y->loss ? -1 : 1;
    return x->iter < y->iter ? -1 : x->iter > y->iter;
}

/* True if the checkpoint still exists with the recorded hash. A resume from an earlier checkpoint
 * may have written another one of the same number. */
static bool still_exists(const char *out_dir, const struct candidate *c)
{
    lks__ckpt ckpt = {.iter = 0};
    if (lks__ckpt_open_iter(out_dir, c->iter, LKS__CKPT_ONLY_STATE, &ckpt) != LKS_OK)
        return false;
    const char *hash = lks__json_str(ckpt.state, "params_hash");
    bool same = hash != NULL && strcmp(hash, c->params_hash) == 0;
    lks__ckpt_close(&ckpt);
    return same;
}

static lks_status write_name(const char *out_dir, const lks__best *best)
{
    char name[LKS__CKPT_NAME];
    lks__entry now;
    lks_status st = lks__name_read(out_dir, LKS__NAME_BEST, &now);
    if (st != LKS_OK && st != LKS_ERR_FORMAT)
        return st;
    if (!best->found)
        return lks__name_remove(out_dir, LKS__NAME_BEST);
    lks__entry_name(name, LKS__ENTRY_CKPT, best->iter);
    if (st == LKS_OK && strcmp(name, now.name) == 0)
        return LKS_OK;
    LKS__TRY(lks__name_set(out_dir, LKS__NAME_BEST, name));
    return lks__sys_sync_dir(out_dir);
}

lks_status lks__best_decide(const char *out_dir, uint64_t iter, lks__best *best)
{
    struct record r = {.n = 0};
    *best = (lks__best){.found = false};
    lks_status st = read_record(out_dir, &r);
    LKS__THEN(st, read_states(out_dir, iter, &r));
    if (st == LKS_OK && r.n > 0)
        qsort(r.all, r.n, sizeof *r.all, lowest_first);
    for (size_t i = 0; i < r.n && st == LKS_OK && !best->found; i++)
        if (r.all[i].iter <= iter && still_exists(out_dir, &r.all[i]))
            *best = (lks__best){true, r.all[i].iter, r.all[i].loss};
    free(r.all);
    return st == LKS_OK ? write_name(out_dir, best) : st;
}

lks_status lks__best_final(const char *out_dir, uint64_t iter, double val_loss, lks__best *best,
                           bool *moved_p)
{
    *moved_p = lks__best_beaten(best, val_loss);
    if (!*moved_p)
        return LKS_OK;
    lks__best_set(best, iter, val_loss);
    return write_name(out_dir, best);
}

lks_status lks__best_keep(const char *out_dir, uint64_t iter, double val_loss, lks__best *best)
{
    lks__ckpt ckpt = {.iter = 0};
    lks_status st = lks__ckpt_open_best(out_dir, LKS__CKPT_ONLY_STATE, &ckpt);
    if (st == LKS_OK && ckpt.iter <= iter)
        lks__best_set(best, ckpt.iter, val_loss);
    else
        *best = (lks__best){.found = false};
    lks__ckpt_close(&ckpt);
    return st == LKS_ERR_NOMEM ? st : write_name(out_dir, best);
}
