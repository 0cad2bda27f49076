#include "train/audit/steps.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "files/checkpoint/folder.h"
#include "train/audit/settings.h"
#include "train/checkpoint.h"
#include "weights/forms/saved.h"

/* Print the first element that differs. */
static void name_element(lks__replay *r, const lks__ckpt *c, const char *tensor, const float *saved,
                         const float *computed, size_t n)
{
    size_t first = n, different = 0;
    for (size_t i = n; i-- > 0;)
        if (memcmp(&saved[i], &computed[i], sizeof *saved) != 0) {
            first = i;
            different++;
        }
    if (different > 0)
        lks__replay_false(r,
                          "checkpoint %" PRIu64 ": %s, element %zu is %.9g in the file, %.9g "
                          "computed; %zu of its %zu elements differ",
                          c->iter, tensor, first, (double)saved[first], (double)computed[first],
                          different, n);
}

struct comparison {
    lks__replay *r;
    lks__ckpt *c;
};

/* Compare a tensor of the checkpoint with values[t->count]. */
static lks_status compare_tensor(void *ctx, const lks__table_tensor *t, const char *suffix,
                                 const float *values)
{
    const struct comparison *x = ctx;
    lks__st_file *file = suffix[0] == '\0' ? x->c->model : x->c->optimizer;
    const lks__st_tensor *found;
    char name[64];
    LKS__TRY(lks__state_find(file, x->c->path, t, suffix, &found));
    float *saved = malloc(found->bytes);
    LKS__MEMORY(saved, "to compare a tensor");
    const lks_status st = lks__st_read(file, found, saved);
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    if (st == LKS_OK)
        name_element(x->r, x->c, name, saved, values, t->count);
    free(saved);
    return st;
}

lks_status lks__replay_each(const lks__trainer *t, lks__replay_tensor_fn *fn, void *ctx)
{
    for (size_t i = 0; i < t->run.table.n_tensors; i++) {
        const lks__table_tensor *x = &t->run.table.tensors[i];
        for (int k = 0; k < LKS__OPTIM_STATES; k++) {
            const char *suffix = lks__optimizer_state(t->work.optim.optimizer, x, k);
            if (suffix != NULL)
                LKS__TRY(fn(ctx, x, suffix, t->state.memory->moments[k].host + x->offset));
        }
        LKS__TRY(fn(ctx, x, "", (float *)t->state.memory->params.host + x->offset));
    }
    return LKS_OK;
}

static bool exists(const char *run, uint64_t iter)
{
    char name[LKS__CKPT_NAME], path[LKS__CKPT_PATH];
    struct stat info;
    lks__entry_name(name, LKS__ENTRY_CKPT, iter);
    return lks__ckpt_join(path, run, name) == LKS_OK && lstat(path, &info) == 0;
}

/* Compare the generators, which have drawn the checkpoint's evaluation if that was made. */
static lks_status compare_sampler(const struct comparison *x, const lks__trainer *t)
{
    lks__batch_sampler *sampler = t->state.sampler;
    const size_t bytes = lks__state_sampler_bytes(&t->state);
    const lks__st_tensor *found = lks__st_find(x->c->optimizer, LKS__CKPT_SAMPLER);
    const bool evaluated = json_is_true(json_object_get(x->c->state, "eval_done"));
    if (bytes == 0)
        return LKS_OK;
    char *both = malloc(2 * bytes);
    lks__batch_sampler_mark(sampler);
    const bool drawn = !evaluated || lks__batch_sampler_eval(sampler, t->state.iter,
                                                             (int)t->run.s.eval_iters) != NULL;
    if (both != NULL)
        lks__batch_sampler_state_save(sampler, both);
    lks__batch_sampler_back(sampler);
    lks_status st = both != NULL && drawn ? LKS_OK : lks__no_memory("to compare generators");
    const bool whole = found != NULL && found->bytes == bytes;
    if (st == LKS_OK && whole)
        st = lks__st_read(x->c->optimizer, found, both + bytes);
    if (st == LKS_OK && (!whole || memcmp(both, both + bytes, bytes) != 0))
        lks__replay_false(x->r,
                          "checkpoint %" PRIu64 ": " LKS__CKPT_SAMPLER " isn't the computed one",
                          x->c->iter);
    free(both);
    return st;
}

static bool same_segment(const lks__replay *r, const lks__ckpt *c, lks__segment have)
{
    lks__segment saved;
    if (lks__state_segment(c, &saved) != LKS_OK)
        return false;
    if (r->claims->n_rollbacks > 0) /* they move the data */
        saved.data = have.data;
    return memcmp(&saved, &have, sizeof saved) == 0;
}

/* Compare all that isn't a weight or a moment. A resume at this iteration may have saved it again,
 * with other settings. */
static lks_status compare_rest(const struct comparison *x, const lks__trainer *t)
{
    uint64_t first;
    lks__claims_start(x->r->claims, x->c->iter, &first);
    if (first == x->c->iter)
        return LKS_OK;
    if (!same_segment(x->r, x->c, t->state.segment))
        lks__replay_false(x->r, "checkpoint %" PRIu64 ": segment in state.json isn't the run's",
                          x->c->iter);
    return compare_sampler(x, t);
}

static lks_status compare_folder(lks__replay *r, const lks__trainer *t)
{
    lks__ckpt c = {.iter = 0};
    lks_status st = lks__ckpt_open_iter(r->run, t->state.iter, LKS__CKPT_ALL_ALONE, &c);
    if (st != LKS_OK && !exists(r->run, t->state.iter)) { /* the run in progress deleted it */
        r->hashed++;
        return LKS_OK;
    }
    if (st == LKS_ERR_FORMAT) {
        lks__replay_false(r, "checkpoint %" PRIu64 ": %s", t->state.iter, lks_last_error());
        return LKS_OK;
    }
    if (st == LKS_OK)
        lks__audit_state(r, &c);
    struct comparison x = {.r = r, .c = &c};
    LKS__THEN(st, lks__replay_each(t, compare_tensor, &x));
    LKS__THEN(st, compare_rest(&x, t));
    lks__ckpt_close(&c);
    return st;
}

lks_status lks__replay_saved(lks__replay *r, lks__trainer *t)
{
    const lks__claims *c = r->claims;
    char hash[17];
    const bool folder = exists(r->run, t->state.iter);
    if (lks__claims_save(c, t->state.iter) == NULL && !folder)
        return LKS_OK;
    r->saves++;
    r->hashed += !folder;
    LKS__TRY(lks__memory_fetch(t->state.memory));
    LKS__TRY(lks__state_params_hash(t, hash));
    for (size_t i = 0; i < c->n_saves; i++)
        if (c->saves[i].iter == t->state.iter && strcmp(c->saves[i].params_hash, hash) != 0)
            lks__replay_false(r,
                              "checkpoint %" PRIu64
                              ": the weights have the hash %s in metrics.jsonl, %s computed",
                              t->state.iter, c->saves[i].params_hash, hash);
    const lks_status st = folder ? compare_folder(r, t) : LKS_OK;
    lks__memory_fetched(t->state.memory);
    return st;
}
