#include "report/diff/claims.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/number/units.h"
#include "base/text/jsontext.h"

static lks_status out_of_memory(void)
{
    return lks__no_memory("for a run's record");
}

static lks_status add_step(lks__claims *c, const json_t *line, bool skipped)
{
    const uint64_t iter = (uint64_t)lks__json_int(line, "iter");
    while (c->n_steps > 0 && c->steps[c->n_steps - 1].iter >= iter)
        c->n_steps--; /* the newest line of a step counts */
    if (!lks__list_grow(&c->steps, c->n_steps, &c->steps_room, sizeof *c->steps))
        return out_of_memory();
    c->steps[c->n_steps++] = (lks__claim){.iter = iter,
                                          .data_shift = c->data_shift,
                                          .loss = lks__json_number(line, "loss"),
                                          .lr = lks__json_number(line, "lr"),
                                          .grad_norm = lks__json_number(line, "grad_norm"),
                                          .tokens = lks__json_number(line, "tokens"),
                                          .ms = lks__json_number(line, "ms"),
                                          .skipped = skipped,
                                          .again = iter < c->next};
    c->next = iter + 1;
    if (c->longest < c->next)
        c->longest = c->next;
    return LKS_OK;
}

uint64_t lks__claims_resumed(const json_t *host)
{
    const json_int_t iter = lks__json_int(host, "resumed_iter");
    return iter > 0 ? (uint64_t)iter : 0;
}

static lks_status add_save(lks__claims *c, const json_t *line)
{
    uint64_t hash;
    if (!lks__list_grow(&c->saves, c->n_saves, &c->saves_room, sizeof *c->saves))
        return out_of_memory();
    lks__claimed_save *save = &c->saves[c->n_saves++];
    *save = (lks__claimed_save){(uint64_t)lks__json_int(line, "iter"), ""};
    if (lks__json_hash(line, "params_hash", &hash))
        lks__hex_to(save->params_hash, hash);
    return LKS_OK;
}

static lks_status add_eval(lks__claims *c, const json_t *line, bool final)
{
    if (!lks__list_grow(&c->evals, c->n_evals, &c->evals_room, sizeof *c->evals))
        return out_of_memory();
    c->evals[c->n_evals++] = (lks__claimed_eval){.iter = (uint64_t)lks__json_int(line, "iter"),
                                                 .train_loss = lks__json_number(line, "train_loss"),
                                                 .val_loss = lks__json_number(line, "val_loss"),
                                                 .val_bpb = lks__json_number(line, "val_bpb"),
                                                 .final = final};
    return LKS_OK;
}

static json_t *last_start(const lks__claims *c)
{
    return json_array_get(c->starts, json_array_size(c->starts) - 1);
}

json_t *lks__claims_settings(const lks__claims *c)
{
    json_t *settings = c->config != NULL ? json_copy(c->config) : json_object();
    bool good = settings != NULL;
    lks__each(start, c->starts) {
        json_t *changed = json_object_get(start, "changed");
        good = good && (!json_is_object(changed) || json_object_update(settings, changed) == 0);
    }
    if (good)
        return settings;
    json_decref(settings);
    return NULL;
}

/* The settings of `config` that differ from those before; NULL if out of memory. A setting that the
 * record lacks is one of a newer version: the line's `changed` has it. */
static json_t *changes_of(const lks__claims *c, const json_t *line, const json_t *config)
{
    json_t *value, *changes = json_object(), *settings = lks__claims_settings(c);
    const char *key;
    bool good = changes != NULL && settings != NULL;
    json_object_foreach((json_t *)config, key, value)
    {
        const json_t *before = json_object_get(settings, key);
        const json_t *own = json_object_get(json_object_get(line, "changed"), key);
        if (before != NULL ? !lks__json_same(before, value) : own != NULL)
            good = good && json_object_set(changes, key, value) == 0;
    }
    json_decref(settings);
    if (good)
        return changes;
    json_decref(changes);
    return NULL;
}

lks_status lks__claims_add_start(lks__claims *c, const json_t *line)
{
    const json_t *config = json_object_get(line, "config");
    const uint64_t iter = lks__claims_resumed(line);
    json_t *start = json_copy((json_t *)line), *changes = NULL;
    bool good = start != NULL;
    if (json_is_object(config)) {
        while (good && iter > 0 && lks__claims_resumed(last_start(c)) == iter) {
            good = json_array_append(c->replaced, last_start(c)) == 0;
            json_array_remove(c->starts, json_array_size(c->starts) - 1);
        }
        changes = good ? changes_of(c, line, config) : NULL;
        good = changes != NULL && json_object_set(start, "changed", changes) == 0;
    }
    good = good && json_array_append(c->starts, start) == 0;
    json_decref(changes);
    json_decref(start);
    return good ? LKS_OK : out_of_memory();
}

/* A run that goes back beyond its resumes keeps their settings: they apply from `to` on. */
static lks_status restart(lks__claims *c, uint64_t to)
{
    json_t *newest = NULL, *changed = json_object(), *start;
    bool good = changed != NULL;
    size_t n = json_array_size(c->starts);
    while (n > 0 && lks__claims_resumed(start = json_array_get(c->starts, n - 1)) > to) {
        json_t *own = json_object_get(start, "changed");
        if (newest == NULL)
            good &= (newest = json_copy(start)) != NULL;
        good &= !json_is_object(own) || json_object_update_missing(changed, own) == 0;
        json_array_remove(c->starts, --n);
    }
    if (newest != NULL)
        good &= json_object_set(newest, "changed", changed) == 0 &&
                json_object_set_new(newest, "resumed_iter", json_integer((json_int_t)to)) == 0 &&
                json_array_append(c->starts, newest) == 0;
    json_decref(newest);
    json_decref(changed);
    while ((n = json_array_size(c->replaced)) > 0 &&
           lks__claims_resumed(json_array_get(c->replaced, n - 1)) > to)
        json_array_remove(c->replaced, n - 1); /* with its checkpoint */
    return good ? LKS_OK : out_of_memory();
}

/* Drop the steps that a rollback discarded, with their checkpoints and evaluations. */
static lks_status go_back(lks__claims *c, const json_t *line)
{
    const uint64_t iter = (uint64_t)lks__json_int(line, "iter");
    const uint64_t to = (uint64_t)lks__json_int(line, "to");
    const uint64_t shift = (uint64_t)lks__json_int(line, "data_shift");
    const bool first = c->n_steps == 0 && c->n_rollbacks == 0;
    if ((iter != c->next && !first) || to > iter || shift != c->data_shift + iter + 1 - to)
        c->odd_rollback = iter + 1;
    c->n_rollbacks++;
    while (c->n_steps > 0 && c->steps[c->n_steps - 1].iter >= to)
        c->n_steps--;
    while (c->n_saves > 0 && c->saves[c->n_saves - 1].iter > to)
        c->n_saves--;
    while (c->n_evals > 0 && c->evals[c->n_evals - 1].iter > to)
        c->n_evals--;
    c->next = to;
    c->data_shift = shift;
    return restart(c, to);
}

lks_status lks__claims_add(lks__claims *c, const json_t *line)
{
    const char *kind = lks__json_str(line, "kind");
    const bool skipped = strcmp(kind, "skip") == 0;
    if (skipped || strcmp(kind, "train") == 0)
        return add_step(c, line, skipped);
    if (strcmp(kind, "eval") == 0 || strcmp(kind, "final") == 0)
        return add_eval(c, line, kind[0] == 'f');
    if (strcmp(kind, "rollback") == 0)
        return go_back(c, line);
    return strcmp(kind, "checkpoint") == 0 ? add_save(c, line) : LKS_OK;
}

void lks__claims_free(lks__claims *c)
{
    free(c->steps);
    free(c->saves);
    free(c->evals);
    json_decref(c->config);
    json_decref(c->starts);
    json_decref(c->replaced);
    *c = (lks__claims){.n_steps = 0};
}

const lks__claim *lks__claims_step(const lks__claims *c, uint64_t iter)
{
    size_t low = 0, high = c->n_steps;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (c->steps[middle].iter < iter)
            low = middle + 1;
        else
            high = middle;
    }
    return low < c->n_steps && c->steps[low].iter == iter ? &c->steps[low] : NULL;
}

const lks__claimed_save *lks__claims_save(const lks__claims *c, uint64_t iter)
{
    for (size_t i = c->n_saves; i-- > 0;)
        if (c->saves[i].iter == iter)
            return &c->saves[i];
    return NULL;
}

const lks__claimed_eval *lks__claims_eval(const lks__claims *c, uint64_t iter)
{
    for (size_t i = c->n_evals; i-- > 0;)
        if (c->evals[i].iter == iter)
            return &c->evals[i];
    return NULL;
}

void lks__claims_range(const lks__claims *c, uint64_t *first_p, uint64_t *end_p)
{
    const bool given = json_object_get(c->config, "init_hash") != NULL; /* first weights */
    *first_p = given ? c->steps[0].iter : lks__claims_resumed(json_array_get(c->starts, 0));
    *end_p = c->steps[c->n_steps - 1].iter + 1;
    if (c->n_saves > 0 && c->saves[c->n_saves - 1].iter > *end_p)
        *end_p = c->saves[c->n_saves - 1].iter;
}

const json_t *lks__claims_start(const lks__claims *c, uint64_t iter, uint64_t *first_p)
{
    size_t i = json_array_size(c->starts);
    while (i > 0 && lks__claims_resumed(json_array_get(c->starts, i - 1)) > iter)
        i--;
    const json_t *host = i > 0 ? json_array_get(c->starts, i - 1) : NULL;
    *first_p = lks__claims_resumed(host);
    return host;
}

const json_t *lks__claims_setting(const lks__claims *c, const char *key, uint64_t end)
{
    const json_t *value = json_object_get(c->config, key), *changed;
    lks__each(start, c->starts) {
        changed = json_object_get(json_object_get(start, "changed"), key);
        if (changed != NULL && lks__claims_resumed(start) < end)
            value = changed;
    }
    return value;
}

const json_t *lks__claims_changed(const lks__claims *c, uint64_t iter)
{
    uint64_t first;
    const json_t *host = lks__claims_start(c, iter, &first);
    const json_t *changed = json_object_get(host, "changed");
    return first == iter && json_is_object(changed) && json_object_size(changed) > 0 ? changed
                                                                                     : NULL;
}
