#include "train/checkpoint.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/text/jsontext.h"
#include "base/text/shell.h"
#include "train/procedure/procedure.h"

/* An arena: PARAMS, or the optimizer's 0, 1, … */
enum { PARAMS = -1 };

/* Suffix of the tensor's name in that arena; NULL: the arena has no part for the tensor. */
static const char *suffix_of(const lks__optimizer *optimizer, const lks__table_tensor *t, int arena)
{
    return arena == PARAMS ? "" : lks__optimizer_state(optimizer, t, arena);
}

/* --- saving ---------------------------------------------------------------------------------- */

/* The tensors of a file, and the text of their names. */
struct names {
    char (*text)[64];
    lks__st_tensor *tensors;
    size_t n;
};

/* False if out of memory. names_close() frees the list in both cases. */
static bool names_open(struct names *list, size_t most)
{
    *list =
        (struct names){calloc(most, sizeof *list->text), calloc(most, sizeof *list->tensors), 0};
    return list->text != NULL && list->tensors != NULL;
}

static void names_close(struct names *list)
{
    free(list->text);
    free(list->tensors);
}

static void add_arena(struct names *list, const lks__trainer *t, int arena, const float *values)
{
    for (size_t i = 0; i < t->run.table.n_tensors; i++) {
        const lks__table_tensor *tensor = &t->run.table.tensors[i];
        const char *suffix = suffix_of(t->work.optim.optimizer, tensor, arena);
        if (suffix == NULL)
            continue;
        char *name = list->text[list->n];
        snprintf(name, sizeof list->text[0], "%s%s", tensor->name, suffix);
        lks__st_tensor *out = &list->tensors[list->n++];
        *out = (lks__st_tensor){.name = name,
                                .dtype = "F32",
                                .n_dims = tensor->n_dims,
                                .data = values + tensor->offset,
                                .bytes = tensor->count * sizeof(float)};
        for (int d = 0; d < tensor->n_dims; d++)
            out->shape[d] = tensor->shape[d];
    }
}

size_t lks__state_sampler_bytes(const lks__state *state)
{
    return state->sampler == NULL ? 0 : lks__batch_sampler_state_bytes(state->sampler);
}

bool lks__state_by_the_clock(const lks__run *run)
{
    return run->procedure->by_clock && run->s.max_wallclock_seconds > 0.0;
}

/* The members of "segment" in state.json, which runs of one segment lack. */
static uint64_t *segment_member(lks__segment *s, int i, const char **name_p)
{
    static const char *const names[] = {"iter", "tokens", "step", "epoch", "position", NULL};
    *name_p = names[i];
    uint64_t *const members[] = {&s->iter,       &s->tokens,        &s->data.step,
                                 &s->data.epoch, &s->data.position, NULL};
    return members[i];
}

static bool add_segment(json_t *json, lks__segment segment)
{
    json_t *all = json_object();
    const char *name;
    bool later = false, good = true;
    const uint64_t *member;
    for (int i = 0; (member = segment_member(&segment, i, &name)) != NULL; i++) {
        later |= *member > 0;
        good &= json_object_set_new(all, name, json_integer((json_int_t)*member)) == 0;
    }
    if (later)
        good &= json_object_set(json, "segment", all) == 0;
    json_decref(all);
    return good;
}

static json_t *state_json(const lks__trainer *t, const lks__save_about *about)
{
    const lks__run *run = &t->run;
    const lks__state *state = &t->state;
    lks__device *device = t->ses.device;
    const char *algorithms =
        device->ops->algorithms == NULL ? NULL : device->ops->algorithms(device);
    const char *word = lks__asked_word(about->asked);
    const char *digest = lks__hex(run->data_digest);
    json_t *settings = lks__settings_to_json(&run->s);
    json_t *meta = lks__meta_to_json(&run->meta);
    /* json_pack() takes the references, even if it fails */
    json_t *json = json_pack("{s:o, s:o, s:s, s:b, s:f, s:I, s:i}", "settings", settings,
                             "tokenizer", meta, "data_digest", digest, "eval_done",
                             state->eval_done, "best_val_loss", state->best_val_loss, "data_shift",
                             (json_int_t)state->data_shift, "nonfinite", state->nonfinite);
    if ((run->init_hash[0] != '\0' &&
         json_object_set_new(json, "init_hash", json_string(run->init_hash)) < 0) ||
        (algorithms != NULL &&
         json_object_set_new(json, "algorithms", json_string(algorithms)) < 0) ||
        (word != NULL && json_object_set_new(json, "asked", json_string(word)) < 0) ||
        !add_segment(json, state->segment) ||
        (isfinite(about->val_loss) &&
         json_object_set_new(json, "val_loss", json_real(about->val_loss)) < 0)) {
        json_decref(json);
        return NULL;
    }
    /* only these runs depend on time */
    const json_int_t from = (json_int_t)state->elapsed_from;
    if (lks__state_by_the_clock(run) &&
        (json_object_set_new(json, "elapsed_s", json_real(state->elapsed_s)) < 0 ||
         (from > 0 && json_object_set_new(json, "elapsed_from", json_integer(from)) < 0))) {
        json_decref(json);
        return NULL;
    }
    return json;
}

lks_status lks__state_params_hash(const lks__trainer *t, char params_hash[17])
{
    const size_t n = t->run.table.n_tensors;
    struct names model;
    lks_status st = LKS_OK;
    if (!names_open(&model, n)) {
        st = lks__no_memory("to describe %zu tensors", n);
    } else {
        add_arena(&model, t, PARAMS, t->state.memory->params.host);
        lks__ckpt_params_hash(model.tensors, model.n, params_hash);
    }
    names_close(&model);
    return st;
}

static void add_sampler(struct names *list, const lks__state *state, void *data, size_t bytes)
{
    if (bytes == 0)
        return;
    lks__batch_sampler_state_save(state->sampler, data);
    list->tensors[list->n++] = (lks__st_tensor){.name = LKS__CKPT_SAMPLER,
                                                .dtype = "U8",
                                                .n_dims = 1,
                                                .shape = {bytes},
                                                .data = data,
                                                .bytes = bytes};
}

lks_status lks__state_save(const lks__trainer *t, const lks__save_about *about, char name[32],
                           char params_hash[17])
{
    const size_t n = t->run.table.n_tensors, sampler_bytes = lks__state_sampler_bytes(&t->state);
    struct names model, optim = {.n = 0};
    void *sampler = malloc(sampler_bytes + 1);
    json_t *json = state_json(t, about);
    lks_status st = LKS_OK;
    if (!names_open(&model, n) || !names_open(&optim, LKS__OPTIM_STATES * n + 1) ||
        sampler == NULL || json == NULL) {
        st = lks__no_memory("to describe checkpoint %" PRIu64, t->state.iter);
        goto out;
    }
    add_arena(&model, t, PARAMS, t->state.memory->params.host);
    for (int i = 0; i < LKS__OPTIM_STATES; i++)
        add_arena(&optim, t, i, t->state.memory->moments[i].host);
    add_sampler(&optim, &t->state, sampler, sampler_bytes);
    lks__ckpt_content content = {
        .iter = t->state.iter,
        .model = model.tensors,
        .n_model = model.n,
        .optimizer = optim.tensors,
        .n_optimizer = optim.n,
        .fingerprint = t->ses.fingerprint,
        .state = json,
        .best = about->best,
        .keep_every = (uint64_t)t->run.s.keep_every,
    };
    st = lks__ckpt_save(t->run.s.out_dir, &content, (int)t->run.s.keep, name, params_hash);
out:
    json_decref(json);
    names_close(&model);
    names_close(&optim);
    free(sampler);
    return st;
}

/* --- loading --------------------------------------------------------------------------------- */

static lks_status read_arena(lks__st_file *file, const char *path, const lks__table *table,
                             const lks__optimizer *optimizer, int arena, float *values)
{
    const lks__st_tensor *found;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const char *suffix = suffix_of(optimizer, &table->tensors[i], arena);
        if (suffix == NULL)
            continue;
        LKS__TRY(lks__state_find(file, path, &table->tensors[i], suffix, &found));
        LKS__TRY(lks__st_read(file, found, values + table->tensors[i].offset));
    }
    return LKS_OK;
}

static lks_status load_arenas(const lks__trainer *t, lks__ckpt *c)
{
    LKS__TRY(
        lks__state_read_params(c->model, c->path, &t->run.table, t->state.memory->params.host));
    for (int i = 0; i < LKS__OPTIM_STATES; i++)
        LKS__TRY(read_arena(c->optimizer, c->path, &t->run.table, t->work.optim.optimizer, i,
                            t->state.memory->moments[i].host));
    return LKS_OK;
}

static lks_status load_sampler(const lks__state *state, lks__ckpt *c)
{
    size_t bytes = lks__state_sampler_bytes(state);
    if (bytes == 0)
        return LKS_OK;
    const lks__st_tensor *found = lks__st_find(c->optimizer, LKS__CKPT_SAMPLER);
    if (found == NULL || found->bytes != bytes)
        return lks__fail(LKS_ERR_FORMAT, "%s: the sampler's state is missing or has another size",
                         c->path);
    void *saved = malloc(bytes);
    LKS__MEMORY(saved, "for the sampler's state");
    lks_status st = lks__st_read(c->optimizer, found, saved);
    LKS__THEN(st, lks__batch_sampler_state_load(state->sampler, saved, bytes));
    free(saved);
    return st;
}

/* --- segments -------------------------------------------------------------------------------- */

static uint64_t step_tokens(const lks__settings *s)
{
    return (uint64_t)(s->gradient_accumulation_steps * s->batch_size * s->block_size);
}

static uint64_t tokens_at(const lks__segment *s, const lks__settings *settings, uint64_t iter)
{
    return s->tokens + (iter - s->iter) * step_tokens(settings);
}

uint64_t lks__state_tokens(const lks__run *run, const lks__state *state)
{
    return tokens_at(&state->segment, &run->s, state->iter);
}

lks_status lks__state_segment(const lks__ckpt *c, lks__segment *s)
{
    const uint64_t shift = (uint64_t)lks__json_int(c->state, "data_shift");
    const json_t *all = json_object_get(c->state, "segment");
    const char *name;
    bool good = all == NULL || json_is_object(all);
    *s = (lks__segment){.iter = 0};
    uint64_t *member;
    for (int i = 0; all != NULL && (member = segment_member(s, i, &name)) != NULL; i++) {
        const json_t *value = json_object_get(all, name);
        good &= json_is_integer(value) && json_integer_value(value) >= 0;
        *member = (uint64_t)json_integer_value(value);
    }
    if (!good || s->iter > c->iter || s->data.step > c->iter + shift)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s/state.json: \"segment\" is no part of a run up to "
                         "iteration %" PRIu64,
                         c->path, c->iter);
    return LKS_OK;
}

/* Continue the checkpoint's segment, or begin the next one there. nanoGPT's sampler then begins as
 * in a new run, as in the script's resume. */
static lks_status load_segment(const lks__run *run, lks__state *state, lks__ckpt *c)
{
    lks__settings old;
    lks__segment s;
    LKS__TRY(lks__state_segment(c, &s));
    lks__settings_defaults(&old);
    LKS__TRY(lks__state_settings(c, &old));
    LKS__TRY(lks__settings_complete(&old, 1)); /* V divides N */
    if (lks__settings_same_batch(&run->s, &old)) {
        state->segment = s;
        LKS__TRY(load_sampler(state, c));
    } else {
        state->segment = (lks__segment){
            .iter = c->iter,
            .tokens = tokens_at(&s, &old, c->iter),
            .data = run->procedure->data_at(run, state, &old, &s.data, c->iter + state->data_shift),
        };
    }
    run->procedure->start_data(run, state);
    return LKS_OK;
}

/* Check that the checkpoint was trained on the run's data. `digest`: of the checkpoint's. */
static lks_status check_data(const lks__run *run, const lks__ckpt *c, const char *digest)
{
    const char *have = lks__hex(run->data_digest);
    if (strcmp(digest, have) == 0)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        "the data in %s is not the data that checkpoint %s was trained on (digest %s, not %s): "
        "give the same --dataset, or start a new run from these weights with `lockstep train "
        "--init_from=%s --dataset=%s --out_dir=NEW`",
        run->shown_data_dir, lks__shown(c->path, 512), have, lks__shown(digest, 128),
        lks__quoted(run->s.out_dir, 512), lks__quoted(run->s.dataset, 512));
}

lks_status lks__state_load(lks__trainer *t, lks__ckpt *c)
{
    lks__state *state = &t->state;
    const json_t *eval_done = json_object_get(c->state, "eval_done");
    const json_t *best = json_object_get(c->state, "best_val_loss");
    const char *digest = lks__json_str(c->state, "data_digest");
    if (!json_is_boolean(eval_done) || !json_is_number(best) || digest == NULL)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s/state.json lacks eval_done, best_val_loss or data_digest", c->path);
    LKS__TRY(check_data(&t->run, c, digest));
    /* Older versions wrote none of them; all are then 0. */
    json_int_t shift = lks__json_int(c->state, "data_shift");
    json_int_t nonfinite = lks__json_int(c->state, "nonfinite");
    json_int_t from = lks__json_int(c->state, "elapsed_from");
    if (shift < 0 || nonfinite < 0 || nonfinite >= INT_MAX || from < 0 ||
        (uint64_t)from > c->iter + (uint64_t)shift)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s/state.json: data_shift, nonfinite or elapsed_from is no count",
                         c->path);
    if (!t->run.shared || t->ses.world.local_rank == 0)
        LKS__TRY(load_arenas(t, c));
    state->iter = c->iter;
    state->data_shift = (uint64_t)shift;
    LKS__TRY(load_segment(&t->run, state, c));
    state->nonfinite = (int)nonfinite;
    state->eval_done = json_is_true(eval_done);
    state->best_val_loss = json_number_value(best);
    t->checks.loaded_val_loss = lks__json_number(c->state, "val_loss");
    double elapsed = json_number_value(json_object_get(c->state, "elapsed_s"));
    state->elapsed_from = state->iter + state->data_shift;
    if (lks__state_by_the_clock(&t->run) && elapsed > 0.0) {
        state->elapsed_s = elapsed;
        state->elapsed_from = (uint64_t)from;
        t->checks.out_of_time = elapsed >= t->run.s.max_wallclock_seconds;
    }
    return LKS_OK;
}
