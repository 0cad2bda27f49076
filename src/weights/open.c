/* weights/open.c - finds the form of weights, opens them and checks names and shapes. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "weights/choice/known.h"
#include "weights/forms/form.h"
#include "weights/forms/saved.h"

/* Tried in this order. */
static const lks__weights_form *const forms[] = {
    &lks__weights_lockstep, &lks__weights_hf, &lks__weights_llmc,
    &lks__weights_golf, /* before nanogpt, which accepts every other file of torch.save */
    &lks__weights_nanogpt,
};

enum { N_FORMS = sizeof forms / sizeof forms[0] };

static lks_status check_table(const lks__weights *w, const lks__table *table, bool *used,
                              const char *whose)
{
    char name[120];
    size_t at = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        const lks__weights_tensor *have = lks__weights_find(w, t->name, &at);
        if (have == NULL)
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s, which %s has, is missing", w->shown,
                             t->name, whose);
        LKS__TRY(lks__weights_check_shape(w, have, t, whose));
        used[have - w->tensors] = true;
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const lks__weights_tensor *have = &w->tensors[i];
        const lks__table_tensor *t = have->tied ? lks__table_find(table, have->name) : NULL;
        if (t != NULL) {
            LKS__TRY(lks__weights_check_shape(w, have, t, whose));
            used[i] = true;
        }
        if (!used[i])
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s doesn't belong to %s, or occurs twice",
                             w->shown, lks__weights_own_name(have, name), whose);
    }
    return LKS_OK;
}

/* Check that the tensors are those of the model that `s` describes. */
static lks_status check_tensors(const lks__weights *w, const lks__settings *s, const char *whose)
{
    const lks__model_config config = lks__state_model_config(s, (uint32_t)s->vocab_size);
    lks__table table;
    lks_status st = lks__model_tensors(&config, &table);
    if (st != LKS_OK)
        return lks__fail_in(st, "%s", w->shown);
    bool *used = calloc(w->n_tensors + 1, sizeof *used);
    st = used == NULL ? lks__no_memory("to check the tensors of %s", w->shown)
                      : check_table(w, &table, used, whose);
    free(used);
    lks__table_free(&table);
    return st;
}

/* "a model of n_layer=2, n_head=2, n_embd=32, block_size=64, vocab_size=50257". */
static lks_status check_own(const lks__weights *w)
{
    char whose[160];
    const lks__settings *s = &w->model;
    if (s->vocab_size == 0)
        return lks__fail(LKS_ERR_FORMAT, "%s: its vocabulary is empty", w->shown);
    snprintf(whose, sizeof whose,
             "a model of n_layer=%" PRId64 ", n_embd=%" PRId64 ", block_size=%" PRId64
             ", vocab_size=%" PRId64,
             s->n_layer, s->n_embd, s->block_size, s->vocab_size);
    return check_tensors(w, s, whose);
}

static lks_status check_known(const lks__weights *w, const lks__known *known)
{
    lks__settings s = w->model;
    s.n_layer = known->n_layer;
    s.n_head = known->n_head;
    s.n_embd = known->n_embd;
    s.block_size = LKS__KNOWN_BLOCK;
    s.vocab_size = LKS__KNOWN_VOCABULARY;
    s.bias = true;
    LKS__TRY(check_tensors(w, &s, known->name));
    if (w->model.n_head == known->n_head)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT, "%s has n_head = %" PRId64 ", but %s has %d", w->shown,
                     w->model.n_head, known->name, known->n_head);
}

/* --- opening --------------------------------------------------------------------------------- */

static lks_status look(const char *source, lks__weights_path *p)
{
    struct stat info;
    *p = (lks__weights_path){.path = source};
    if (stat(source, &info) < 0)
        return lks__known_missing(source);
    p->folder = S_ISDIR(info.st_mode);
    if (!S_ISREG(info.st_mode))
        return LKS_OK;
    int fd = lks__sys_open(source, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return lks__sys_fail("cannot open", source);
    size_t n = info.st_size < (off_t)sizeof p->head ? (size_t)info.st_size : sizeof p->head;
    int rc = lks__sys_read_at(fd, p->head, n, 0);
    lks_status st = rc < 0 ? lks__sys_fail("cannot read", source) : LKS_OK;
    lks__sys_close(fd);
    return st;
}

static lks_status none_of_them(const lks__weights *w, bool folder)
{
    char list[800] = "";
    for (size_t i = 0; i < N_FORMS; i++)
        lks__append(list, sizeof list, "; ", "%s", forms[i]->about);
    return lks__fail(LKS_ERR_FORMAT, "%s is no %s with weights that lockstep knows. It reads: %s",
                     w->shown, folder ? "folder" : "file", list);
}

static lks_status set_path(lks__weights *w, const char *path)
{
    const size_t n = lks__sys_path_length(path);
    if (n >= sizeof w->path)
        return lks__fail(LKS_ERR_CONFIG, "the path of the weights has %zu bytes: too many", n);
    memcpy(w->path, path, n);
    w->path[n] = '\0';
    lks__escape(w->shown, sizeof w->shown, w->path, n);
    return LKS_OK;
}

static lks_status choose_form(lks__weights *w, const lks__known *known)
{
    lks__weights_path p;
    LKS__TRY(look(w->path, &p));
    for (size_t i = 0; i < N_FORMS && w->form == NULL; i++)
        if (forms[i]->looks(&p))
            w->form = forms[i];
    if (w->form != NULL)
        return LKS_OK;
    return known != NULL ? lks__known_empty(known, w->path) : none_of_them(w, p.folder);
}

/* `form` NULL: the form is found from the path. */
static lks_status open_path(const char *path, const lks__weights_form *form,
                            const lks__weights_want *want, const lks__known *known,
                            lks__weights **w_p)
{
    lks__weights_want wanted = want != NULL ? *want : (lks__weights_want){0};
    if (wanted.checkpoint == NULL)
        wanted.checkpoint = "";
    if (known != NULL)
        wanted.n_head = known->n_head;
    lks__weights *w = calloc(1, sizeof *w);
    LKS__MEMORY(w, "to open weights");
    lks__settings_defaults(&w->model);
    w->form = form;
    lks_status st = set_path(w, path);
    if (st == LKS_OK && form == NULL)
        st = choose_form(w, known);
    LKS__THEN(st, w->form->open(&wanted, w));
    LKS__THEN(st, check_own(w));
    if (st == LKS_OK && known != NULL)
        st = check_known(w, known);
    if (st != LKS_OK) {
        lks__weights_close(w);
        return st;
    }
    *w_p = w;
    return LKS_OK;
}

lks_status lks__weights_open(const char *source, const lks__weights_want *want, lks__weights **w_p)
{
    char path[LKS__CKPT_PATH];
    const lks__known *known = lks__known_find(source);
    if (known == NULL)
        return open_path(source, NULL, want, NULL, w_p);
    LKS__TRY(lks__known_path(known, path));
    return open_path(path, NULL, want, known, w_p);
}

lks_status lks__weights_open_init(const lks__settings *s, lks__weights **w_p)
{
    const bool given = s->from[LKS__SETTING_n_head] >= LKS__FROM_FILE;
    const lks__weights_want want = {.n_head = given ? s->n_head : 0};
    return lks__weights_open(s->init_from, &want, w_p);
}

lks_status lks__weights_open_run(const char *out_dir, const lks__weights_want *want,
                                 lks__weights **w_p)
{
    return open_path(out_dir, &lks__weights_lockstep, want, NULL, w_p);
}

const struct lks__ckpt *lks__weights_checkpoint(const lks__weights *w)
{
    return w->form == &lks__weights_lockstep ? w->source : NULL;
}

static lks_status copy_meta(const lks__weights *w, lks__meta *meta)
{
    json_t *json = lks__meta_to_json(&w->meta);
    LKS__MEMORY(json, "for the tokenizer of %s", w->shown);
    lks_status st = lks__meta_from_json(json, w->shown, meta);
    json_decref(json);
    return st;
}

lks_status lks__weights_meta(const lks__weights *w, lks__meta *meta)
{
    if (w->meta.vocab_size != 0)
        return copy_meta(w, meta);
    return lks__weights_meta_in(w->vocabulary, (uint32_t)w->model.vocab_size, meta);
}

lks_status lks__weights_meta_in(const char *folder, uint32_t vocab_size, lks__meta *meta)
{
    lks__meta own = {0};
    bool found = false;
    *meta = (lks__meta){.vocab_size = vocab_size};
    const lks_status st = folder[0] == '\0' ? LKS_OK : lks__meta_find(folder, &found, &own);
    if (st != LKS_OK) /* one that lockstep can't read is like none */
        return st == LKS_ERR_NOMEM ? st : LKS_OK;
    if (found && own.vocab_size <= vocab_size) /* otherwise it belongs to other weights */
        *meta = own;
    else
        lks__meta_free(&own);
    return LKS_OK;
}

void lks__weights_close(lks__weights *w)
{
    if (w == NULL)
        return;
    if (w->form != NULL)
        w->form->close(w);
    lks__meta_free(&w->meta);
    free(w->tensors);
    free(w);
}
