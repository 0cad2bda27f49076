#include "weights/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/system/sys.h"
#include "data/text/bpe/bpe.h"
#include "weights/choice/known.h"
#include "weights/forms/form.h"
#include "weights/forms/saved.h"

/* Tried in this order. */
static const lks__weights_form *const forms[] = {
    &lks__weights_lockstep, &lks__weights_hf, &lks__weights_llmc,
    &lks__weights_golf, /* before nanogpt, which accepts every other file of torch.save */
    &lks__weights_nanogpt,
};

enum {
    N_FORMS = sizeof forms / sizeof forms[0],
    /* A digest reads about this many pieces, each of this many floats, spread evenly; all if there
     * are fewer. */
    SAMPLES = 4096,
    SAMPLE = 1024,
};

/* --- for the forms --------------------------------------------------------------------------- */

lks_status lks__weights_set(lks__weights *w, const char *setting, const char *value)
{
    return lks__settings_set(&w->model, LKS__CMD_TRAIN, setting, value, LKS__FROM_CHECKPOINT,
                             w->shown);
}

lks_status lks__weights_set_int(lks__weights *w, const char *setting, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return lks__weights_set(w, setting, text);
}

lks__weights_tensor *lks__weights_add(lks__weights *w)
{
    if (w->n_tensors == w->room) {
        const size_t room = w->room == 0 ? 64 : 2 * w->room;
        lks__weights_tensor *more = realloc(w->tensors, room * sizeof *more);
        if (more == NULL) {
            lks__fail(LKS_ERR_NOMEM, "no memory for the %zu tensors of %s", room, w->shown);
            return NULL;
        }
        w->tensors = more;
        w->room = room;
    }
    lks__weights_tensor *t = &w->tensors[w->n_tensors++];
    memset(t, 0, sizeof *t);
    return t;
}

lks__weights_tensor *lks__weights_add_named(lks__weights *w, const char *prefix, const char *name)
{
    lks__weights_tensor *t = lks__weights_add(w);
    if (t != NULL)
        snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    return t;
}

bool lks__weights_has(const char *folder, const char *name)
{
    char path[LKS__CKPT_PATH + 64];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Element i is written before those from i + 1 on are overwritten: they begin at byte
 * 2 n + 2 i + 2, and the floats up to i end at 4 i + 4. */
#define WIDEN(type, convert)                                                                       \
    void lks__weights_widen_##type(float *out, size_t n)                                           \
    {                                                                                              \
        const char *from = (const char *)out + n * sizeof(uint16_t);                               \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint16_t bits;                                                                         \
            memcpy(&bits, from + i * sizeof bits, sizeof bits);                                    \
            const float x = convert(bits);                                                         \
            memcpy(out + i, &x, sizeof x);                                                         \
        }                                                                                          \
    }
#include "base/number/bf16.h"
#include "weights/artifact/half.h"
WIDEN(bf16, lks__bf16_to_float)
WIDEN(half, lks__half_to_float)

/* --- names and shapes ------------------------------------------------------------------------ */

/* Find the tensor `name`; `*at_p` is the index of the last one found, and the search begins after
 * it. */
static lks__weights_tensor *find(const lks__weights *w, const char *name, size_t *at_p)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        const size_t at = (*at_p + i) % w->n_tensors;
        lks__weights_tensor *t = &w->tensors[at];
        if (!t->tied && strcmp(t->name, name) == 0) {
            *at_p = at + 1;
            return t;
        }
    }
    return NULL;
}

static const char *own_name(const lks__weights_tensor *t, char out[120])
{
    const char *name = t->own != NULL ? t->own : t->name;
    return lks__escape(out, 120, name, strlen(name));
}

/* "[32, 96]", in the file's order. */
static const char *shape_text(int n_dims, uint64_t d0, uint64_t d1, bool transposed, char out[48])
{
    if (n_dims == 1)
        snprintf(out, 48, "[%" PRIu64 "]", d0);
    else if (n_dims == 2)
        snprintf(out, 48, "[%" PRIu64 ", %" PRIu64 "]", transposed ? d1 : d0, transposed ? d0 : d1);
    else
        snprintf(out, 48, "of %d dimensions", n_dims);
    return out;
}

static lks_status check_shape(const lks__weights *w, const lks__weights_tensor *have,
                              const lks__table_tensor *t, const char *whose)
{
    char name[120], is[48], needs[48];
    bool same = have->n_dims == t->n_dims && have->shape[0] == t->shape[0] &&
                (t->n_dims == 1 || have->shape[1] == t->shape[1]);
    if (same)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_FORMAT, "%s: tensor %s is %s, but %s has %s there", w->shown, own_name(have, name),
        shape_text(have->n_dims, have->shape[0], have->shape[1], have->transposed, is), whose,
        shape_text(t->n_dims, t->shape[0], t->shape[1], have->transposed, needs));
}

static lks_status check_table(const lks__weights *w, const lks__table *table, bool *used,
                              const char *whose)
{
    char name[120];
    size_t at = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        const lks__weights_tensor *have = find(w, t->name, &at);
        if (have == NULL)
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s, which %s has, is missing", w->shown,
                             t->name, whose);
        LKS__TRY(check_shape(w, have, t, whose));
        used[have - w->tensors] = true;
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const lks__weights_tensor *have = &w->tensors[i];
        const lks__table_tensor *t = have->tied ? lks__table_find(table, have->name) : NULL;
        if (t != NULL) {
            LKS__TRY(check_shape(w, have, t, whose));
            used[i] = true;
        }
        if (!used[i])
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s doesn't belong to %s, or occurs twice",
                             w->shown, own_name(have, name), whose);
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
    st = used == NULL ? lks__fail(LKS_ERR_NOMEM, "no memory to check the tensors of %s", w->shown)
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
    char list[800];
    size_t o = 0;
    for (size_t i = 0; i < N_FORMS && o < sizeof list; i++)
        o += (size_t)snprintf(list + o, sizeof list - o, "%s%s", i == 0 ? "" : "; ",
                              forms[i]->about);
    return lks__fail(LKS_ERR_FORMAT, "%s is no %s with weights that lockstep knows. It reads: %s",
                     w->shown, folder ? "folder" : "file", list);
}

static lks_status set_path(lks__weights *w, const char *path)
{
    size_t n = strlen(path);
    if (n >= sizeof w->path)
        return lks__fail(LKS_ERR_CONFIG, "the path of the weights has %zu bytes: too many", n);
    memcpy(w->path, path, n + 1);
    while (n > 1 && w->path[n - 1] == '/')
        w->path[--n] = '\0';
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
    if (wanted.which == NULL)
        wanted.which = "";
    if (known != NULL)
        wanted.n_head = known->n_head;
    lks__weights *w = calloc(1, sizeof *w);
    if (w == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to open weights");
    lks__settings_defaults(&w->model);
    w->form = form;
    lks_status st = set_path(w, path);
    if (st == LKS_OK && form == NULL)
        st = choose_form(w, known);
    if (st == LKS_OK)
        st = w->form->open(&wanted, w);
    if (st == LKS_OK)
        st = check_own(w);
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
    if (json == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the tokenizer of %s", w->shown);
    lks_status st = lks__meta_from_json(json, w->shown, meta);
    json_decref(json);
    return st;
}

lks_status lks__weights_meta(const lks__weights *w, lks__meta *meta)
{
    lks__meta own;
    if (w->meta.vocab_size != 0)
        return copy_meta(w, meta);
    *meta = (lks__meta){.vocab_size = (uint32_t)w->model.vocab_size};
    if (w->vocabulary[0] == '\0' || !lks__bpe_is_at(w->vocabulary))
        return LKS_OK;
    LKS__TRY(lks__meta_of_vocabulary(w->vocabulary, &own));
    if (own.vocab_size <= meta->vocab_size) /* otherwise it belongs to other weights */
        *meta = own;
    return LKS_OK;
}

static uint64_t count_of(const lks__weights_tensor *t)
{
    return t->shape[0] * (t->n_dims == 2 ? t->shape[1] : 1);
}

lks_status lks__weights_digest(lks__weights *w, uint64_t *digest_p)
{
    float sample[SAMPLE];
    uint64_t total = 0;
    if (w->params_hash[0] != '\0') {
        *digest_p = strtoull(w->params_hash, NULL, 16);
        return LKS_OK;
    }
    for (size_t i = 0; i < w->n_tensors; i++)
        total += count_of(&w->tensors[i]);
    const uint64_t step = total / SAMPLES > SAMPLE ? total / SAMPLES : SAMPLE;
    *digest_p = total;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const lks__weights_tensor *t = &w->tensors[i];
        const uint64_t count = count_of(t);
        for (uint64_t at = 0; at < count; at += step) {
            const size_t n = count - at < SAMPLE ? (size_t)(count - at) : SAMPLE;
            LKS__TRY(w->form->read(w, t, at, n, sample));
            *digest_p = XXH3_64bits_withSeed(sample, n * sizeof *sample, *digest_p);
        }
    }
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

/* --- values ---------------------------------------------------------------------------------- */

enum { PIECE = 1 << 18 }; /* floats of a tensor that can't be read in place */

static lks_status check_finite(const lks__weights *w, const lks__weights_tensor *t, const float *x,
                               uint64_t first, size_t n)
{
    char name[120];
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return lks__fail(
                LKS_ERR_NAN,
                "%s: tensor %s has %s at index %" PRIu64 ": such weights can't be trained or used",
                w->shown, own_name(t, name), isnan(x[i]) ? "NaN" : "infinity", first + i);
    return LKS_OK;
}

/* Transpose rows of the file's [in, out] to columns of x [out, in]. */
static lks_status read_transposed(lks__weights *w, const lks__weights_tensor *t, float *x)
{
    const size_t out = t->shape[0], in = t->shape[1];
    const size_t most = out == 0 || out > PIECE ? 1 : PIECE / out;
    float *rows = malloc((most * out + 1) * sizeof *rows);
    if (rows == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a part of a tensor of %s", w->shown);
    lks_status st = LKS_OK;
    for (size_t i = 0, n; i < in && st == LKS_OK; i += n) {
        n = in - i < most ? in - i : most;
        st = w->form->read(w, t, (uint64_t)i * out, n * out, rows);
        if (st == LKS_OK)
            st = check_finite(w, t, rows, (uint64_t)i * out, n * out);
        for (size_t o = 0; o < out && st == LKS_OK; o++)
            for (size_t r = 0; r < n; r++)
                x[o * in + i + r] = rows[r * out + o];
    }
    free(rows);
    return st;
}

/* Check that the second copy of a tied tensor has the values of x. */
static lks_status compare_tied(lks__weights *w, const lks__weights_tensor *t, const float *x)
{
    char name[120];
    const uint64_t count = count_of(t);
    float *piece = malloc(PIECE * sizeof *piece);
    if (piece == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a part of a tensor of %s", w->shown);
    lks_status st = LKS_OK;
    for (uint64_t at = 0; at < count && st == LKS_OK; at += PIECE) {
        const size_t n = count - at < PIECE ? (size_t)(count - at) : PIECE;
        st = w->form->read(w, t, at, n, piece);
        if (st == LKS_OK && memcmp(piece, x + at, n * sizeof *piece) != 0)
            st = lks__fail(LKS_ERR_FORMAT,
                           "%s: tensor %s differs from %s, but lockstep's models of this family "
                           "have one matrix for both",
                           w->shown, own_name(t, name), t->name);
    }
    free(piece);
    return st;
}

/* The standard deviation of initial values, for added rows. */
static double deviation(const lks__model_config *config, const lks__table_tensor *t)
{
    if (t->init == LKS__INIT_EMBED)
        return config->tie_embeddings ? (double)config->tied_embed_init_std : 1.0;
    return t->init == LKS__INIT_TIED || t->init == LKS__INIT_NORMAL ? 0.02 : 0.0;
}

/* Draw elements [from, count) of a tensor: N(0, std^2) by Box and Muller, four per number of the
 * generator, keyed by tensor and element. */
static void draw(const lks__model_config *config, const lks__table_tensor *t, size_t index,
                 uint64_t seed, size_t from, float *x)
{
    const double std = deviation(config, t);
    const lks__philox_key key = lks__philox_key_of(seed);
    uint32_t word[4] = {0};
    for (size_t i = from, quad = SIZE_MAX; i < t->count; i++) {
        if (i / 4 != quad) {
            quad = i / 4;
            const uint32_t counter[4] = {(uint32_t)((uint64_t)quad >> 32), (uint32_t)index,
                                         LKS__SITE_ROWS, (uint32_t)quad};
            lks__philox4x32(key, counter, word);
        }
        const double u = ((double)word[i % 4 & 2] + 1.0) * 0x1p-32;
        const double angle = 2.0 * 3.14159265358979323846 * (double)word[i % 4 | 1] * 0x1p-32;
        const double r = sqrt(-2.0 * log(u));
        x[i] = (float)(std * r * (i % 2 == 0 ? cos(angle) : sin(angle)));
    }
}

static lks_status read_tensor(lks__weights *w, const lks__weights_tensor *have,
                              const lks__table_tensor *t, float *x)
{
    if (have->transposed)
        return read_transposed(w, have, x);
    const uint64_t count = count_of(have);
    const size_t n = count < t->count ? (size_t)count : t->count;
    LKS__TRY(w->form->read(w, have, 0, n, x));
    return check_finite(w, have, x, 0, n);
}

/* Only positions and tokens may have another number of rows. */
static bool rows_may_differ(const lks__table_tensor *t, const lks__weights_tensor *have)
{
    return !have->transposed && t->n_dims == have->n_dims &&
           (t->kind == LKS__PARAM_EMBED || t->kind == LKS__PARAM_HEAD) &&
           have->shape[1] == t->shape[1];
}

lks_status lks__weights_read(lks__weights *w, const lks__model_config *config,
                             const lks__table *table, uint64_t seed, float *params)
{
    size_t at = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        const lks__weights_tensor *have = find(w, t->name, &at);
        float *x = params + t->offset;
        if (have == NULL)
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s is missing", w->shown, t->name);
        if (!rows_may_differ(t, have))
            LKS__TRY(check_shape(w, have, t, "the model"));
        LKS__TRY(read_tensor(w, have, t, x));
        if (t->n_dims == 2 && have->shape[0] < t->shape[0])
            draw(config, t, i, seed, (size_t)have->shape[0] * t->shape[1], x);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const lks__weights_tensor *have = &w->tensors[i];
        if (have->tied)
            LKS__TRY(compare_tied(w, have, params + lks__table_find(table, have->name)->offset));
    }
    return LKS_OK;
}
