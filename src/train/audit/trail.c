#include "train/audit/trail.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/memstream.h"
#include "report/diff/tensors.h"
#include "train/audit/steps.h"
#include "train/micro.h"

enum { FIRST = 3 }; /* values that an entry shows */

struct writer {
    const lks__trail *trail;
    lks__trainer *t;
    int v, m;      /* -1: none */
    bool updated;  /* weights and moments are those after the update */
    lks_status st; /* of outputs */
};

static lks_status out_of_memory(void)
{
    return lks__no_memory("for a trail");
}

/* --- one entry -------------------------------------------------------------------------------- */

/* Pass on an entry with `members` besides its place; `members` is stolen. */
static lks_status take(const struct writer *w, enum lks__trail_what what, const char *name,
                       json_t *members, const lks__st_tensor *tensor)
{
    json_t *entry = json_pack("{s:s, s:s*}", "what", lks__trail_name(what), "name", name);
    bool good = entry != NULL && members != NULL;
    if (good && w->v >= 0)
        good = json_object_set_new(entry, "virtual_rank", json_integer(w->v)) == 0;
    if (good && w->m >= 0)
        good = json_object_set_new(entry, "micro_batch", json_integer(w->m)) == 0;
    good = good && json_object_update(entry, members) == 0;
    const lks_status st = good ? w->trail->take(w->trail->ctx, entry, tensor) : out_of_memory();
    json_decref(members);
    json_decref(entry);
    return st;
}

static lks_status take_value(const struct writer *w, enum lks__trail_what what, json_t *value)
{
    return take(w, what, NULL, json_pack("{s:o}", "value", value), NULL);
}

static lks_status take_tensor(const struct writer *w, enum lks__trail_what what, const char *name,
                              const lks__st_tensor *tensor)
{
    const char *hash = lks__hex(XXH3_64bits(tensor->data, (size_t)tensor->bytes));
    return take(w, what, name,
                json_pack("{s:s, s:o}", "hash", hash, "first", lks__tensor_values(tensor, FIRST)),
                tensor);
}

/* The same for a tensor in memory of the device. */
static lks_status take_device(const struct writer *w, enum lks__trail_what what, const char *name,
                              lks__st_tensor *tensor)
{
    lks__device *device = w->t->ses.device;
    if (device->ops->host_memory) {
        LKS__TRY(lks__device_finish(device, LKS__QUEUE_COMPUTE));
        return take_tensor(w, what, name, tensor);
    }
    void *host = malloc((size_t)tensor->bytes);
    if (host == NULL)
        return out_of_memory();
    device->ops->copy(device, LKS__QUEUE_COMPUTE, host, tensor->data, (size_t)tensor->bytes);
    lks_status st = lks__device_finish(device, LKS__QUEUE_COMPUTE);
    tensor->data = host;
    LKS__THEN(st, take_tensor(w, what, name, tensor));
    free(host);
    return st;
}

static lks__st_tensor form_of(const lks__table_tensor *x, const float *data)
{
    lks__st_tensor tensor = {
        .dtype = "F32", .n_dims = x->n_dims, .data = data, .bytes = x->count * sizeof *data};
    for (int d = 0; d < x->n_dims; d++)
        tensor.shape[d] = x->shape[d];
    return tensor;
}

/* --- before and after ------------------------------------------------------------------------- */

static lks_status take_head(const struct writer *w, int leaf)
{
    const lks__run *run = &w->t->run;
    json_t *settings = lks__settings_to_json(&run->s);
    const char *digest = lks__hex(run->data_digest);
    if (settings == NULL ||
        json_object_set_new(settings, "data_digest", json_string(digest)) != 0 ||
        json_object_set_new(settings, "version", json_string(LKS_VERSION_TEXT)) != 0) {
        json_decref(settings);
        return out_of_memory();
    }
    return take(
        w, LKS__TRAIL_HEAD, NULL,
        json_pack(
            "{s:I, s:o?, s:i, s:i, s:o, s:{s:s, s:s, s:s}}", "step", (json_int_t)w->t->state.iter,
            "leaf", leaf >= 0 ? json_integer(leaf) : NULL, "virtual_ranks", run->V, "micro_batches",
            run->A, "settings", settings, "host", "fingerprint", w->t->ses.fingerprint, "kernels",
            lks__cpu_level_name(w->t->ses.kernels.level), "device", w->t->ses.device->ops->name),
        NULL);
}

static lks_status take_state(void *ctx, const lks__table_tensor *x, const char *suffix,
                             const float *values)
{
    const struct writer *w = ctx;
    char name[64];
    const lks__st_tensor tensor = form_of(x, values);
    snprintf(name, sizeof name, "%s%s", x->name, suffix);
    const enum lks__trail_what weights = w->updated ? LKS__TRAIL_NEW_WEIGHTS : LKS__TRAIL_WEIGHTS;
    const enum lks__trail_what moments = w->updated ? LKS__TRAIL_NEW_MOMENTS : LKS__TRAIL_MOMENTS;
    return take_tensor(w, suffix[0] == '\0' ? weights : moments, name, &tensor);
}

static lks_status take_states(struct writer *w)
{
    LKS__TRY(lks__memory_fetch(w->t->state.memory));
    const lks_status st = lks__replay_each(w->t, take_state, w);
    lks__memory_fetched(w->t->state.memory);
    return st;
}

lks_status lks__trail_begin(const lks__trail *trail, lks__trainer *t, int leaf)
{
    struct writer w = {.trail = trail, .t = t, .v = -1, .m = -1};
    LKS__TRY(take_head(&w, leaf));
    return take_states(&w);
}

lks_status lks__trail_end(const lks__trail *trail, lks__trainer *t)
{
    const struct writer w = {.trail = trail, .t = t, .v = -1, .m = -1};
    return take(&w, LKS__TRAIL_END, NULL, json_object(), NULL);
}

/* --- gradients -------------------------------------------------------------------------------- */

static lks_status take_tokens(const struct writer *w, const lks__micro_batch *mb)
{
    lks__st_tensor tensor = {.dtype = "I32",
                             .n_dims = 2,
                             .shape = {(uint64_t)mb->B, (uint64_t)mb->T},
                             .data = mb->tokens};
    tensor.bytes = tensor.shape[0] * tensor.shape[1] * sizeof *mb->tokens;
    LKS__TRY(take_device(w, LKS__TRAIL_TOKENS, NULL, &tensor));
    tensor.data = mb->targets;
    return take_device(w, LKS__TRAIL_TARGETS, NULL, &tensor);
}

static void take_output(void *ctx, const lks__output *out)
{
    struct writer *w = ctx;
    lks__st_tensor tensor = {.dtype = out->bytes == sizeof(float) ? "F32" : "BF16",
                             .n_dims = 2,
                             .shape = {out->rows, out->width},
                             .data = out->x,
                             .bytes = out->rows * out->width * out->bytes};
    if (w->st == LKS_OK)
        w->st = take_device(w, LKS__TRAIL_OUTPUT, out->module, &tensor);
}

/* In the order of backward, from the end of the table. */
static lks_status take_gradients(const struct writer *w, enum lks__trail_what what,
                                 const float *grads)
{
    for (size_t i = w->t->run.table.n_tensors; i-- > 0;) {
        const lks__table_tensor *x = &w->t->run.table.tensors[i];
        lks__st_tensor tensor = form_of(x, grads + x->offset);
        if (!x->frozen)
            LKS__TRY(take_device(w, what, x->name, &tensor));
    }
    return LKS_OK;
}

/* Forward and backward, whose gradient is added to `grads`. */
static lks_status take_micro(struct writer *w, float *grads)
{
    lks__trainer *t = w->t;
    const size_t at = (size_t)(w->v * t->run.A + w->m);
    lks__micro_batch mb;
    LKS__TRY(lks__train_read(t, w->v, w->m, &mb));
    LKS__TRY(take_tokens(w, &mb));
    lks__backward backward = lks__train_pass(t, w->v, w->m, grads);
    backward.output = take_output;
    backward.output_ctx = w;
    lks__model_train(t->work.model, t->state.memory->params.dev, &mb, &backward,
                     (float *)t->work.losses.dev + at);
    lks__mirror_to_host(&t->work.losses, LKS__QUEUE_COMPUTE, at * sizeof(float), sizeof(float));
    LKS__TRY(lks__device_finish(t->ses.device, LKS__QUEUE_COMPUTE));
    LKS__TRY(w->st);
    LKS__TRY(
        take_value(w, LKS__TRAIL_LOSS, lks__json_float(((const float *)t->work.losses.host)[at])));
    return take_gradients(w, LKS__TRAIL_GRADIENT, grads);
}

static lks_status take_leaf(struct writer *w, float *grads, uint64_t *hash_p)
{
    const lks__trainer *t = w->t;
    t->ses.device->layers->clear(t->ses.device->ex, grads, t->run.table.trained_count);
    for (w->m = 0; w->m < t->run.A; w->m++) {
        LKS__TRY(lks__session_check_stop(&t->ses));
        LKS__TRY(take_micro(w, grads));
    }
    if (lks__reducer_hashes(t->work.reducer) == NULL)
        return LKS_OK;
    w->m = -1;
    *hash_p = lks__reducer_hash(t->work.reducer, grads);
    return take(w, LKS__TRAIL_LEAF, NULL, json_pack("{s:s}", "hash", lks__hex(*hash_p)), NULL);
}

lks_status lks__trail_leaves(const lks__trail *trail, lks__trainer *t, int first, int end,
                             uint64_t *hash_p)
{
    const size_t bytes = t->run.table.trained_count * sizeof(float);
    struct writer w = {.trail = trail, .t = t, .v = first, .st = LKS_OK};
    lks__device *device = t->ses.device;
    lks_status st = LKS_OK;
    void *grads;
    LKS__TRY(device->ops->alloc(device, bytes, &grads));
    for (; w.v < end && st == LKS_OK; w.v++)
        st = take_leaf(&w, grads, hash_p);
    lks__device_drain(device);
    device->ops->release(device, grads, bytes);
    return st;
}

lks_status lks__trail_update(const lks__trail *trail, lks__trainer *t, const lks__step_result *r)
{
    struct writer w = {.trail = trail, .t = t, .v = -1, .m = -1, .updated = true};
    LKS__TRY(take_gradients(&w, LKS__TRAIL_MEAN, lks__memory_whole(t->state.memory, r->grads)));
    LKS__TRY(take_value(&w, LKS__TRAIL_NORM, lks__json_real(r->grad_norm)));
    if (r->outcome != LKS__STEP_DONE)
        return LKS_OK;
    LKS__TRY(take_value(&w, LKS__TRAIL_RATE, lks__json_real(r->lr)));
    return take_states(&w);
}

/* --- a file ---------------------------------------------------------------------------------- */

static lks_status write_entry(void *ctx, const json_t *entry, const lks__st_tensor *tensor)
{
    lks__trail_file *t = ctx;
    char *text = lks__json_dump(entry, JSON_COMPACT);
    LKS__MEMORY(text, "for a trail");
    const bool written = fprintf(t->file, "%s\n", text) > 0;
    free(text);
    t->complete = lks__trail_entry_is(entry, LKS__TRAIL_END);
    return written ? LKS_OK : out_of_memory();
}

lks_status lks__trail_file_open(const char *path, lks__trail_file *t)
{
    char target[PATH_MAX];
    struct stat old;
    *t = (lks__trail_file){.path = path, .trail = {write_entry, t}};
    const bool exists = stat(path, &old) == 0;
    if (exists && access(path, R_OK) != 0)
        return lks__sys_fail("cannot read", path);
    if (exists && (!S_ISREG(old.st_mode) || (old.st_size > 0 && !lks__trail_is(path))))
        return lks__fail(LKS_ERR_CONFIG,
                         "trail=%s exists and isn't a trail: give the name of a new file",
                         lks__shown(path, 512));
    LKS__TRY(lks__sys_target(path, target));
    if (access(dirname(target), W_OK) != 0) /* now, and not after the steps have been computed */
        return lks__sys_fail("can't write", path);
    t->file = open_memstream(&t->text, &t->bytes);
    return t->file != NULL ? LKS_OK : out_of_memory();
}

lks_status lks__trail_file_close(lks__trail_file *t)
{
    lks_status st = LKS_OK;
    if (t->file != NULL && lks__memstream_end(t->file, &t->text) == NULL)
        st = out_of_memory();
    else if (t->complete)
        st = lks__sys_write_file(t->path, t->text, t->bytes);
    free(t->text);
    t->file = NULL;
    t->text = NULL;
    return st;
}
