/* train/audit/settings.c - the settings with which a part of a run was made. */
#include "train/audit/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "files/checkpoint/folder.h"
#include "report/diff/facts.h"
#include "settings/family.h"
#include "settings/settings_table.h"
#include "train/setup/remember.h"
#include "train/state.h"

static const char where[] = "the run's record";

static lks_status set(lks__settings *s, const char *key, const char *value)
{
    return lks__settings_set(s, LKS__CMD_TRAIN, key, value, LKS__FROM_ARG, where);
}

/* Adopt a value of the record. As it is no argument of this command, it may be without effect. */
static lks_status adopt(lks__settings *s, const char *key, const char *value)
{
    const int i = lks__setting_find_for(LKS__CMD_TRAIN, key);
    const bool segment = i >= 0 && lks__setting_table[i].flags & LKS__SETTING_SEGMENT;
    return lks__settings_set(s, LKS__CMD_TRAIN, key, value,
                             segment ? LKS__FROM_ARG : LKS__FROM_FILE, where);
}

/* Settings of other kinds size memory or name files, so they must not change within an audit. */
static bool may_change(const char *key)
{
    const int setting = lks__setting_find_for(LKS__CMD_TRAIN, key);
    const unsigned may = LKS__SETTING_FREE | LKS__SETTING_SEGMENT;
    return setting >= 0 && (lks__setting_table[setting].flags & may) != 0;
}

static lks_status check_change(const char *key)
{
    if (may_change(key))
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT, "a resume can't have changed %s, as %s says",
                     lks__shown(key, LKS__SETTING_KEY * 4), where);
}

lks_status lks__audit_change(lks__settings *s, const json_t *changed)
{
    const char *key;
    json_t *value;
    char text[256];
    json_object_foreach((json_t *)changed, key, value)
    {
        if (lks__facts_follow(changed, key))
            continue;
        LKS__TRY(check_change(key));
        LKS__TRY(adopt(s, key, lks__json_text(value, text)));
    }
    return LKS_OK;
}

/* True for a setting that set-up reads, and not each step. */
static bool at_setup(int setting)
{
    return setting == LKS__SETTING_dropout || setting == LKS__SETTING_dtype ||
           setting == LKS__SETTING_wire ||
           (lks__setting_table[setting].flags & LKS__SETTING_SEGMENT) != 0;
}

/* The first of these settings with which a run must start from a checkpoint; NULL: none. */
static const char *find_at_setup(const json_t *changed)
{
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        if (at_setup(i) && json_object_get(changed, lks__setting_name(i)) != NULL)
            return lks__setting_name(i);
    return NULL;
}

const char *lks__audit_reopens(const lks__claims *claims, uint64_t iter)
{
    return find_at_setup(lks__claims_changed(claims, iter));
}

/* The changes of a resume from checkpoint `start`. Resumes that it replaced can have saved the
 * checkpoint again, so their changes count, too, with the values that this one had. */
static lks_status resume_settings(const lks__claims *c, const json_t *host, uint64_t start,
                                  lks__settings *s)
{
    json_t *config = json_object_get(host, "config"), *value;
    const char *key;
    char text[256];
    LKS__TRY(lks__audit_change(s, lks__claims_changed(c, start)));
    lks__each(other, c->replaced) {
        if (lks__claims_resumed(other) != start)
            continue;
        json_object_foreach(json_object_get(other, "changed"), key, value)
        {
            const json_t *now = json_object_get(config, key);
            if (now != NULL && may_change(key) && !lks__facts_follow(config, key))
                LKS__TRY(adopt(s, key, lks__json_text(now, text)));
        }
    }
    return LKS_OK;
}

/* The settings of a run that begins with new weights. */
static lks_status from_config(const lks__replay *r, lks__settings *s)
{
    static const char *const others[] = {
        "kind",        "version",   "parameters", "trained_parameters",
        "data_digest", "data_hash", "init_hash"};
    json_t *config = json_deep_copy(r->claims->config);
    LKS__MEMORY(config, "for a run's settings");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        json_object_del(config, others[i]);
    lks_status st = lks__settings_from_json(config, where, s);
    json_decref(config);
    return st;
}

lks_status lks__audit_settings(const lks__replay *r, uint64_t start, lks__settings *s)
{
    uint64_t first;
    char name[LKS__CKPT_NAME], data[LKS__SETTING_STR] = "";
    const json_t *host = lks__claims_start(r->claims, start, &first);
    const char *device = lks__json_str(host, "device");
    const char *family = lks__json_str(r->claims->config, "family");
    const bool moved =
        lks__settings_given_for(r->asked, LKS__SETTING_dataset, family) &&
        !(r->own_data && lks__remembered_data(r->run, data) == LKS_OK && data[0] != '\0');
    lks__settings_defaults(s);
    if (strlen(r->run) + sizeof name >= sizeof s->out_dir)
        return lks__fail(LKS_ERR_IO, "the path of the run is too long");
    if (start == 0) {
        LKS__TRY(from_config(r, s));
        LKS__TRY(lks__settings_keep(s, json_object_get(host, "settings"), where));
        if (!moved)
            LKS__TRY(lks__remembered_data(r->run, data));
        if (data[0] != '\0')
            LKS__TRY(set(s, "dataset", data));
        snprintf(s->out_dir, sizeof s->out_dir, "%s", r->run);
    } else {
        lks__entry_name(name, LKS__ENTRY_CKPT, start);
        snprintf(s->out_dir, sizeof s->out_dir, "%s/%s", r->run, name);
        LKS__TRY(set(s, "init_from", "resume"));
        /* With its family given, the run's settings aren't mixed with variables of this process. */
        if (family != NULL)
            LKS__TRY(set(s, "family", family));
        LKS__TRY(lks__family_presets(s, LKS__CMD_TRAIN));
        LKS__TRY(resume_settings(r->claims, first == start ? host : NULL, start, s));
    }
    if (moved)
        LKS__TRY(set(s, "dataset", r->asked->dataset));
    if (device != NULL)
        LKS__TRY(set(s, "device", device));
    s->threads = r->asked->threads;
    s->lock = LKS__lock_off; /* the run may be in progress */
    return LKS_OK;
}

/* True if one of the starts at this iteration changed the setting to this value. */
static bool has_changed(const json_t *starts, const char *key, const json_t *value, uint64_t iter)
{
    bool has = false;
    lks__each(start, starts) {
        const json_t *after = json_object_get(json_object_get(start, "changed"), key);
        has |= lks__claims_resumed(start) == iter && after != NULL && lks__json_same(value, after);
    }
    return has;
}

/* A resume at this iteration may have saved the checkpoint again, with the settings it changed. */
static bool can_have(const lks__claims *c, const char *key, const json_t *value, uint64_t iter)
{
    const json_t *before = lks__claims_setting(c, key, iter);
    return before == NULL || lks__json_same(value, before) ||
           has_changed(c->starts, key, value, iter) || has_changed(c->replaced, key, value, iter);
}

/* Compare the place in the data, to which only rollbacks add, also after the checkpoint. */
static void compare_shift(lks__replay *r, const lks__ckpt *c)
{
    const lks__claims *all = r->claims;
    const lks__claim *before = lks__claims_step(all, c->iter - 1);
    const lks__claim *after = lks__claims_step(all, c->iter);
    const uint64_t next = after != NULL ? after->data_shift : all->data_shift;
    const uint64_t shift = (uint64_t)lks__json_int(c->state, "data_shift");
    if (before != NULL && (shift < before->data_shift || shift > next))
        lks__replay_false(r,
                          "checkpoint %" PRIu64 ": data_shift is %" PRIu64
                          " in state.json, %" PRIu64 " in metrics.jsonl",
                          c->iter, shift, before->data_shift);
}

/* True if the record has all evaluations of the run: it neither continues nanoGPT's run nor lacks
 * the first steps. */
static bool all_evaluations(const lks__claims *c)
{
    return c->n_steps > 0 && c->steps[0].iter == 0;
}

/* True if a resume up to iteration `at` changed the batch: its evaluation can have replaced the
 * line of the lowest one, and can be unfinished. */
static bool evaluated_again(const lks__claims *c, uint64_t at)
{
    bool again = false;
    lks__each(start, c->replaced)
        again |= lks__claims_resumed(start) <= at &&
                 find_at_setup(json_object_get(start, "changed")) != NULL;
    do {
        lks__claims_start(c, at, &at);
        again |= lks__audit_reopens(c, at) != NULL;
    } while (!again && at-- > 0);
    return again;
}

/* Compare eval_done and best_val_loss with the evaluations up to the checkpoint. */
static void compare_evaluations(lks__replay *r, const lks__ckpt *c)
{
    const lks__claims *all = r->claims;
    const bool done = json_is_true(json_object_get(c->state, "eval_done"));
    const double best = json_number_value(json_object_get(c->state, "best_val_loss"));
    double least = LKS__NO_VAL_LOSS;
    char saved[40], claimed[40];
    bool any = false;
    uint64_t first;
    for (size_t i = 0; i < all->n_evals; i++) {
        const lks__claimed_eval *eval = &all->evals[i];
        if (eval->final || eval->iter > c->iter)
            continue;
        any |= eval->iter == c->iter;
        if ((eval->iter < c->iter || done) && eval->val_loss < least)
            least = eval->val_loss;
    }
    lks__claims_start(all, c->iter, &first); /* a resume there repeats an evaluation */
    const bool again = evaluated_again(all, c->iter);
    if (done ? !any && !again : any && first != c->iter)
        lks__replay_false(r,
                          "checkpoint %" PRIu64 ": eval_done is %s in state.json, but "
                          "metrics.jsonl has %s evaluation",
                          c->iter, done ? "true" : "false", done ? "no" : "its");
    snprintf(saved, sizeof saved, "%.9g", best);
    snprintf(claimed, sizeof claimed, "%.9g", least);
    if (strcmp(saved, claimed) != 0 && !(best < least && again))
        lks__replay_false(
            r, "checkpoint %" PRIu64 ": best_val_loss is %s in state.json, %s in metrics.jsonl",
            c->iter, saved, claimed);
}

void lks__audit_state(lks__replay *r, const lks__ckpt *c)
{
    json_t *settings = json_object_get(c->state, "settings"), *value;
    const json_t *digest = json_object_get(c->state, "data_digest");
    const json_t *own = json_object_get(r->claims->config, "data_digest");
    const char *key;
    char text[2][256];
    json_object_foreach(settings, key, value)
    {
        const json_t *before = lks__claims_setting(r->claims, key, c->iter);
        if (can_have(r->claims, key, value, c->iter))
            continue;
        lks__replay_false(r, "checkpoint %" PRIu64 ": %s is %s in state.json, %s in metrics.jsonl",
                          c->iter, lks__shown(key, LKS__SETTING_KEY * 4),
                          lks__json_text(value, text[0]), lks__json_text(before, text[1]));
    }
    if (json_is_string(own) && !json_equal(own, digest))
        lks__replay_false(
            r, "checkpoint %" PRIu64 ": state.json has another data_digest than metrics.jsonl",
            c->iter);
    compare_shift(r, c);
    if (all_evaluations(r->claims))
        compare_evaluations(r, c);
}
