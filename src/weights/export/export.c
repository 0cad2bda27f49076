#include "weights/export/export.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "files/checkpoint/folder.h"
#include "settings/family.h"
#include "settings/settings_table.h"
#include "weights/choice/given.h"
#include "weights/choice/known.h"
#include "weights/export/form.h"
#include "weights/forms/saved.h"

/* In the order of --format. */
static lks__export_write *const forms[] = {
#define X(of, format) lks__export_##format,
    LKS__WORDS_format(X, )
#undef X
};

/* ---- for the forms --------------------------------------------------------------------------- */

void lks__export_note(const lks__export_model *e, const char *fmt, ...)
{
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    e->sink->note(text);
}

lks_status lks__export_gpt2_only(const lks__export_model *e)
{
    if (e->config.ops == &lks__model_gpt2)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the model in %s is of family=%s: --format=%s writes only gpt2; "
                     "--format=safetensors writes any",
                     e->w->shown, lks__family_of(&e->run)->name,
                     lks__setting_word(e->s, LKS__SETTING_format));
}

/* Read the parameters into an arena of `count` floats. */
static lks_status read_params(const lks__export_model *e, size_t count, float **params_p)
{
    float *params = calloc(count, sizeof *params);
    LKS__MEMORY(params, "for a model of %zu parameters", e->table.n_params);
    lks_status st = lks__weights_read(e->w, &e->config, &e->table, 0, params);
    if (st == LKS_OK)
        *params_p = params;
    else
        free(params);
    return st;
}

lks_status lks__export_params(const lks__export_model *e, float **params_p)
{
    return read_params(e, e->table.count, params_p);
}

lks_status lks__export_biased(const lks__export_model *e, lks__table *all, float **params_p)
{
    lks__model_config config = e->config;
    config.bias = true;
    LKS__TRY(lks__model_table(&config, all));
    for (size_t i = 0; i < all->n_tensors; i++) {
        const lks__table_tensor *own = lks__table_find(&e->table, all->tensors[i].name);
        all->tensors[i].offset = own != NULL ? own->offset : e->table.count;
    }
    return read_params(e, e->table.count + 4 * (size_t)config.n_embd, params_p);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* A vocabulary for weights that name none. */
static lks_status take_tokenizer(lks__export_model *e, const char *path)
{
    lks__meta own = {0};
    bool found;
    const char *shown = lks__shown(path, 256);
    LKS__TRY(lks__meta_find(path, &found, &own));
    lks_status st = LKS_OK;
    if (!found)
        st = lks__fail(
            LKS_ERR_CONFIG,
            "there is no vocabulary in %s: --tokenizer must be a folder with tokenizer.json, "
            "with vocab.bpe and encoder.json, or with a meta.json of characters",
            shown);
    else if (own.vocab_size > (uint32_t)e->config.vocab_size)
        st = lks__fail(LKS_ERR_CONFIG,
                       "the vocabulary in %s has %u tokens, but the model only %d: give the "
                       "vocabulary that it was trained with",
                       shown, own.vocab_size, e->config.vocab_size);
    else
        st = lks__given_same_meaning(&own, path, &e->meta, e->w->shown);
    if (st != LKS_OK) {
        lks__meta_free(&own);
        return st;
    }
    lks__meta_free(&e->meta);
    e->meta = own;
    snprintf(e->vocabulary, sizeof e->vocabulary, "%s", path);
    return LKS_OK;
}

/* The tokenizer of --tokenizer or, if the form needs one, GPT-2's for as many tokens of which
 * nothing is known. */
static lks_status find_tokenizer(lks__export_model *e)
{
    char path[LKS__CKPT_PATH];
    snprintf(path, sizeof path, "%s", e->s->tokenizer);
    LKS__TRY(lks__known_tokenizer(path, sizeof path));
    if (path[0] != '\0')
        return take_tokenizer(e, path);
    const bool own = e->vocabulary[0] != '\0' && lks__bpe_is_at(e->vocabulary); /* unreadable */
    const bool needed = e->s->format == LKS__format_hf || e->s->format == LKS__format_gguf;
    if (!needed || own || !lks__known_ids(&e->meta) || !lks__known_vocabulary(path))
        return LKS_OK;
    lks__export_note(e,
                     "the model comes without a tokenizer; its %u tokens are taken for GPT-2's, "
                     "with the vocabulary in %s",
                     e->meta.vocab_size, lks__shown(path, 512));
    return take_tokenizer(e, path);
}

static lks_status open_model(lks__export_model *e)
{
    lks__export_note(e, "%s", e->w->origin);
    if (e->w->note[0] != '\0')
        lks__export_note(e, "%s", e->w->note);
    e->ckpt = lks__weights_checkpoint(e->w);
    e->run = e->w->model;
    if (e->s->gelu != LKS__gelu_auto)
        e->run.gelu = e->s->gelu;
    e->config = lks__state_model_config(&e->run, (uint32_t)e->run.vocab_size);
    LKS__TRY(lks__model_table(&e->config, &e->table));
    LKS__TRY(lks__weights_meta(e->w, &e->meta));
    snprintf(e->vocabulary, sizeof e->vocabulary, "%s", e->w->vocabulary);
    return find_tokenizer(e);
}

/* Without --format, refuse a file name or a family that isn't for the default, an artifact. */
static lks_status check_name(const lks__settings *s, const lks__weights *w)
{
    char formats[LKS__SETTING_RANGE];
    const char *format =
        lks__ends_with(s->out, ".safetensors") ? "safetensors"
        : lks__ends_with(s->out, ".pt")        ? "nanogpt or --format=golf"
        : lks__ends_with(s->out, ".gguf")      ? "gguf"
        : w->model.family == 0 && !lks__ends_with(s->out, ".ptz")
            ? lks__setting_describe(&lks__setting_table[LKS__SETTING_format], formats)
            : NULL;
    if (format == NULL || s->from[LKS__SETTING_format] != LKS__FROM_DEFAULT)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "--out=%s needs a format: without one, the file would be parameter-golf's "
                     "int8 artifact; give --format=%s",
                     lks__shown(s->out, 256), format);
}

/* Make the folder of the output. Refuse to replace the file that the weights are read from: the
 * new one may lack an optimizer's state, or a checkpoint would become unreadable. */
static lks_status prepare_out(const char *out, const lks__weights *w)
{
    char folder[LKS__CKPT_PATH], file[LKS__CKPT_PATH + 32];
    snprintf(file, sizeof file, "%s/" LKS__CKPT_MODEL, w->path);
    if (lks__sys_same(out, file) || (lks__sys_same(out, w->path) && !lks__sys_is_folder(out)))
        return lks__fail(LKS_ERR_CONFIG, "%s contains the weights; give another --out",
                         lks__shown(out, 512));
    lks__ckpt_parent(out, folder);
    return lks__sys_make_dirs(folder);
}

lks_status lks__export(const lks__settings *s, const lks__export_sink *sink)
{
    lks__export_model e = {.s = s, .sink = sink};
    if (s->out[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG, "give the %s",
                         s->format == LKS__format_hf ? "folder to write: --out=FOLDER"
                                                     : "file to write: --out=FILE");
    LKS__TRY(lks__given_weights(s->out_dir, s, &e.w));
    lks_status st = check_name(s, e.w);
    LKS__THEN(st, open_model(&e));
    LKS__THEN(st, prepare_out(s->out, e.w));
    LKS__THEN(st, forms[s->format](&e));
    lks__table_free(&e.table);
    lks__meta_free(&e.meta);
    lks__weights_close(e.w);
    return st;
}
