/* lockstep export --format=nanogpt: a ckpt.pt, as nanoGPT's train.py saves it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "files/pickle/torch/torchsave.h"
#include "settings/family.h"
#include "weights/export/form.h"

enum { MODEL, EXP_AVG, EXP_AVG_SQ, N_KINDS };

/* Storages: all parameters, then both moments of each, then each parameter's count of updates. */
struct writer {
    const lks__export_model *e;
    float *params;
    lks__ckpt all; /* with the optimizer; zeroed if the source isn't lockstep's */
    bool has_optimizer;
    const lks__st_tensor **tensors; /* the first storages */
    uint64_t *bytes;
    size_t n;
    float updates;
    char *buffer; /* the tensor of storage `now` */
    size_t now;
};

/* ---- the tensors' elements ------------------------------------------------------------------- */

static size_t storage_of(const struct writer *w, int kind, size_t tensor)
{
    return (size_t)kind * w->e->table.n_tensors + tensor;
}

static size_t count_of(const struct writer *w,
                       size_t tensor) /* index of the storage of its count */
{
    return storage_of(w, N_KINDS, tensor);
}

/* A moment is read when its first bytes are requested, so its hash is checked. */
static lks_status read_storage(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    struct writer *w = ctx;
    if (storage >= count_of(w, 0)) {
        memcpy(out, (const char *)&w->updates + first, bytes);
        return LKS_OK;
    }
    if (storage < w->e->table.n_tensors) {
        const float *x = w->params + w->e->table.tensors[storage].offset;
        memcpy(out, (const char *)x + first, bytes);
        return LKS_OK;
    }
    if (w->now != storage) {
        LKS__TRY(lks__st_read(w->all.optimizer, w->tensors[storage], w->buffer));
        w->now = storage;
    }
    memcpy(out, w->buffer + first, bytes);
    return LKS_OK;
}

static const lks__st_tensor *moment_of(const struct writer *w, size_t i, const char *suffix)
{
    char name[80];
    const lks__table_tensor *t = &w->e->table.tensors[i];
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    const lks__st_tensor *found = lks__st_find(w->all.optimizer, name);
    return found && found->bytes == t->count * sizeof(float) ? found : NULL;
}

/* AdamW's moments of all tensors, or none. */
static bool find_moments(struct writer *w)
{
    for (size_t i = 0; i < w->e->table.n_tensors; i++) {
        w->tensors[storage_of(w, EXP_AVG, i)] = moment_of(w, i, ".exp_avg");
        w->tensors[storage_of(w, EXP_AVG_SQ, i)] = moment_of(w, i, ".exp_avg_sq");
        if (!w->tensors[storage_of(w, EXP_AVG, i)] || !w->tensors[storage_of(w, EXP_AVG_SQ, i)])
            return false;
    }
    return true;
}

static lks_status find_tensors(struct writer *w)
{
    const size_t n = w->e->table.n_tensors;
    size_t most = 1;
    w->tensors = calloc(N_KINDS * n + 1, sizeof(void *));
    w->bytes = calloc((N_KINDS + 1) * n + 1, sizeof *w->bytes);
    if (!w->tensors || !w->bytes)
        return lks__no_memory("to describe %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const lks__table_tensor *t = &w->e->table.tensors[i];
        for (int kind = 0; kind < N_KINDS; kind++)
            w->bytes[storage_of(w, kind, i)] = t->count * sizeof(float);
        w->bytes[count_of(w, i)] = sizeof w->updates;
        most = t->count > most ? t->count : most;
    }
    w->has_optimizer = w->all.optimizer != NULL && find_moments(w);
    w->n = w->has_optimizer ? (N_KINDS + 1) * n : n;
    w->now = SIZE_MAX;
    w->buffer = malloc(most * sizeof(float));
    return w->buffer ? LKS_OK : lks__no_memory("for a tensor");
}

/* ---- the pickle ------------------------------------------------------------------------------ */

static void emit_tensor(lks__emit *p, const struct writer *w, size_t i, size_t storage)
{
    const lks__table_tensor *t = &w->e->table.tensors[i];
    const uint64_t shape[2] = {t->shape[0], t->n_dims > 1 ? t->shape[1] : 0};
    lks__emit_tensor(p, "F32", t->n_dims, shape, (unsigned)storage);
}

static void emit_int(lks__emit *p, const char *key, int64_t n)
{
    lks__emit_text(p, key);
    lks__emit_int(p, n);
}

static void emit_float(lks__emit *p, const char *key, double x)
{
    lks__emit_text(p, key);
    lks__emit_float(p, x);
}

static void emit_bool(lks__emit *p, const char *key, bool truth)
{
    lks__emit_text(p, key);
    lks__emit_bool(p, truth);
}

static void emit_none(lks__emit *p, const char *key)
{
    lks__emit_text(p, key);
    lks__emit_none(p);
}

static void emit_model(lks__emit *p, const struct writer *w)
{
    lks__emit_text(p, "model");
    lks__emit_dict(p);
    for (size_t i = 0; i < w->e->table.n_tensors; i++) {
        lks__emit_text(p, w->e->table.tensors[i].name);
        emit_tensor(p, w, i, i);
    }
    lks__emit_text(p, "lm_head.weight"); /* the same memory as the embedding, tensor 0 */
    emit_tensor(p, w, 0, 0);
    lks__emit_dict_end(p);
}

/* Parameters are numbered group by group: matrices, which decay, then the others. */
static bool in_group(const struct writer *w, size_t i, int group)
{
    return (w->e->table.tensors[i].n_dims >= 2) == (group == 0);
}

static void emit_states(lks__emit *p, const struct writer *w)
{
    int64_t id = 0;
    lks__emit_text(p, "state");
    lks__emit_dict(p);
    for (int group = 0; group < 2; group++)
        for (size_t i = 0; i < w->e->table.n_tensors; i++) {
            if (!in_group(w, i, group))
                continue;
            lks__emit_int(p, id++);
            lks__emit_dict(p);
            lks__emit_text(p, "step");
            lks__emit_tensor(p, "F32", 0, NULL, (unsigned)count_of(w, i));
            lks__emit_text(p, "exp_avg");
            emit_tensor(p, w, i, storage_of(w, EXP_AVG, i));
            lks__emit_text(p, "exp_avg_sq");
            emit_tensor(p, w, i, storage_of(w, EXP_AVG_SQ, i));
            lks__emit_dict_end(p);
        }
    lks__emit_dict_end(p);
}

static void emit_group(lks__emit *p, const struct writer *w, int group, int64_t *id)
{
    const lks__settings *s = &w->e->run;
    lks__emit_dict(p);
    emit_float(p, "weight_decay", group == 0 ? s->weight_decay : 0.0);
    emit_float(p, "lr", s->learning_rate);
    lks__emit_text(p, "betas");
    lks__emit_tuple(p);
    lks__emit_float(p, s->beta1);
    lks__emit_float(p, s->beta2);
    lks__emit_tuple_end(p);
    emit_float(p, "eps", 1e-8);
    emit_bool(p, "amsgrad", false);
    emit_bool(p, "maximize", false);
    emit_none(p, "foreach");
    emit_bool(p, "capturable", false);
    emit_bool(p, "differentiable", false);
    emit_none(p, "fused");
    emit_bool(p, "decoupled_weight_decay", true);
    lks__emit_text(p, "params");
    lks__emit_list(p);
    for (size_t i = 0; i < w->e->table.n_tensors; i++)
        if (in_group(w, i, group))
            lks__emit_int(p, (*id)++);
    lks__emit_list_end(p);
    lks__emit_dict_end(p);
}

static void emit_optimizer(lks__emit *p, const struct writer *w)
{
    int64_t id = 0;
    lks__emit_text(p, "optimizer");
    lks__emit_dict(p);
    emit_states(p, w);
    lks__emit_text(p, "param_groups");
    lks__emit_list(p);
    emit_group(p, w, 0, &id);
    emit_group(p, w, 1, &id);
    lks__emit_list_end(p);
    lks__emit_dict_end(p);
}

/* Keys and values, without the enclosing dict. */
static void emit_args(lks__emit *p, const lks__settings *s)
{
    emit_int(p, "n_layer", s->n_layer);
    emit_int(p, "n_head", s->n_head);
    emit_int(p, "n_embd", s->n_embd);
    emit_int(p, "block_size", s->block_size);
    emit_bool(p, "bias", s->bias);
    emit_float(p, "dropout", s->dropout);
}

static void emit_training(lks__emit *p, const lks__settings *s)
{
    emit_int(p, "batch_size", s->batch_size);
    emit_int(p, "gradient_accumulation_steps", s->gradient_accumulation_steps);
    emit_float(p, "learning_rate", s->learning_rate);
    emit_int(p, "max_iters", s->max_iters);
    emit_float(p, "weight_decay", s->weight_decay);
    emit_float(p, "beta1", s->beta1);
    emit_float(p, "beta2", s->beta2);
    emit_float(p, "grad_clip", s->grad_clip);
    emit_bool(p, "decay_lr", s->decay_lr);
    emit_int(p, "warmup_iters", s->warmup_iters);
    emit_int(p, "lr_decay_iters", s->lr_decay_iters);
    emit_float(p, "min_lr", s->min_lr);
    emit_int(p, "eval_interval", s->eval_interval);
    emit_int(p, "eval_iters", s->eval_iters);
    emit_int(p, "log_interval", s->log_interval);
    emit_bool(p, "always_save_checkpoint", s->always_save_checkpoint);
}

/* The members of nanoGPT's own config; sample.py reads only the dataset. */
static void emit_config(lks__emit *p, const struct writer *w)
{
    const lks__settings *s = &w->e->run;
    lks__emit_text(p, "config");
    lks__emit_dict(p);
    emit_args(p, s);
    if (w->e->ckpt != NULL)
        emit_training(p, s);
    if (w->e->s->from[LKS__SETTING_dataset] >= LKS__FROM_FILE) {
        lks__emit_text(p, "dataset");
        lks__emit_text(p, w->e->s->dataset);
    }
    lks__emit_dict_end(p);
}

static void emit_all(lks__emit *p, const struct writer *w)
{
    const lks__ckpt *ckpt = w->e->ckpt;
    const json_t *best = ckpt != NULL ? json_object_get(ckpt->state, "best_val_loss") : NULL;
    lks__emit_start(p);
    lks__emit_dict(p);
    emit_model(p, w);
    if (w->has_optimizer)
        emit_optimizer(p, w);
    lks__emit_text(p, "model_args");
    lks__emit_dict(p);
    emit_args(p, &w->e->run);
    emit_int(p, "vocab_size", w->e->run.vocab_size);
    lks__emit_dict_end(p);
    emit_int(p, "iter_num", (int64_t)w->e->w->iter);
    emit_float(p, "best_val_loss", json_is_number(best) ? json_number_value(best) : 1e9);
    emit_config(p, w);
    lks__emit_dict_end(p);
    lks__emit_stop(p);
}

/* ---- the file -------------------------------------------------------------------------------- */

static lks_status check(const lks__export_model *e)
{
    const char *family = lks__family_of(&e->run)->name;
    if (strcmp(family, "gpt2") != 0)
        return lks__fail(
            LKS_ERR_CONFIG,
            "%s is a model of family %s; nanoGPT's format is only for gpt2: give another --format",
            e->w->shown, family);
    if (!e->config.gelu_tanh)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "%s has gelu=%s, and nanoGPT computes GELU exactly: so the model's logits "
                     "would differ slightly in nanoGPT; --gelu=exact writes it anyway",
                     e->w->shown, lks__setting_word(&e->run, LKS__SETTING_gelu));
}

/* Frozen tensors have no moments; SGD and Muon have other states than AdamW. */
static void note_optimizer(const struct writer *w)
{
    static const char *const loads = "nanoGPT's sample.py can load it, but nanoGPT can't resume it";
    if (w->has_optimizer)
        return;
    if (w->e->ckpt == NULL)
        lks__export_note(w->e, "the file has no optimizer's state, because weights have none: %s",
                         loads);
    else
        lks__export_note(w->e,
                         "this run has no state of AdamW for every tensor%s, so the file has no "
                         "optimizer's state: %s",
                         w->e->run.freeze[0] != '\0' ? " (some are frozen)" : "", loads);
}

/* The characters of the folder of `out` may be its data's own, so they stay. As many other ones
 * would be taken for the model's: find_tokens() of forms/nanogpt.c. */
static lks_status check_characters(const lks__export_model *e)
{
    char folder[LKS__CKPT_PATH];
    lks__meta own = {0};
    bool found = false;
    if (e->meta.chars == NULL)
        return LKS_OK;
    lks__ckpt_parent(e->s->out, folder);
    const lks_status st = lks__meta_load(folder, &found, &own);
    const bool used = st == LKS_OK && own.vocab_size == e->meta.vocab_size;
    const bool same = used && own.chars != NULL && !lks__meta_differ(&own, &e->meta);
    lks__meta_free(&own);
    if (st == LKS_ERR_NOMEM || (st == LKS_OK && (!found || same)))
        return st;
    if (used)
        return lks__fail(LKS_ERR_CONFIG,
                         "the %s in %s has other characters than the model, and would be used for "
                         "the model: give an --out in another folder",
                         lks__meta_file(folder), lks__shown(folder, 512));
    lks__export_note(e,
                     "the %s in %s was left unchanged, but it doesn't have the model's characters, "
                     "which nanoGPT's sample.py needs: give an --out in another folder",
                     lks__meta_file(folder), lks__shown(folder, 512));
    return LKS_OK;
}

/* nanoGPT's sample.py reads the characters of data/DATASET/meta.pkl. Write such a file next to
 * `out`, unless one exists. */
static lks_status write_characters(const lks__export_model *e)
{
    lks__emit p = {0};
    char path[LKS__CKPT_PATH], text[8];
    const char *slash = strrchr(e->s->out, '/');
    if (e->meta.chars == NULL)
        return LKS_OK;
    if (lks__meta_find_char(&e->meta, 0) >= 0) { /* such a text can't be emitted */
        lks__export_note(e, "no meta.pkl is written: U+0000 is one of its characters");
        return LKS_OK;
    }
    snprintf(path, sizeof path, "%.*smeta.pkl", slash == NULL ? 0 : (int)(slash + 1 - e->s->out),
             e->s->out);
    if (access(path, F_OK) == 0)
        return LKS_OK;
    lks__emit_start(&p);
    lks__emit_dict(&p);
    emit_int(&p, "vocab_size", e->meta.vocab_size);
    for (int stoi = 0; stoi < 2; stoi++) {
        lks__emit_text(&p, stoi == 1 ? "stoi" : "itos");
        lks__emit_dict(&p);
        for (uint32_t id = 0; id < e->meta.vocab_size; id++) {
            text[lks__utf8_encode(e->meta.chars[id], text)] = '\0';
            if (stoi == 1)
                lks__emit_text(&p, text);
            lks__emit_int(&p, id);
            if (stoi == 0)
                lks__emit_text(&p, text);
        }
        lks__emit_dict_end(&p);
    }
    lks__emit_dict_end(&p);
    lks__emit_stop(&p);
    const lks_status st =
        p.failed ? lks__no_memory("for the characters") : lks__sys_write_file(path, p.at, p.n);
    free(p.at);
    if (st == LKS_OK)
        lks__export_note(e, "the characters are in %s; nanoGPT's sample.py reads them from data/%s",
                         lks__shown(path, 512), "DATASET/meta.pkl");
    return st;
}

static lks_status write_file(struct writer *w)
{
    lks__emit pickle = {0};
    LKS__TRY(check_characters(w->e));
    LKS__TRY(find_tensors(w));
    note_optimizer(w);
    LKS__TRY(lks__export_params(w->e, &w->params));
    emit_all(&pickle, w);
    const lks__torchsave_what what = {&pickle, w->bytes, w->n, read_storage, w};
    lks_status st = lks__torchsave_file(w->e->s->out, &what);
    free(pickle.at);
    return st == LKS_OK ? write_characters(w->e) : st;
}

lks_status lks__export_nanogpt(const lks__export_model *e)
{
    struct writer w = {.e = e, .updates = (float)e->w->iter};
    LKS__TRY(check(e));
    lks_status st = LKS_OK;
    if (e->ckpt != NULL)
        st = lks__ckpt_open(e->ckpt->path, LKS__CKPT_ALL, &w.all);
    LKS__THEN(st, write_file(&w));
    free(w.buffer);
    free(w.bytes);
    free(w.tensors);
    free(w.params);
    lks__ckpt_close(&w.all);
    return st;
}
