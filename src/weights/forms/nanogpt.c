#include "weights/forms/nanogpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"
#include "weights/forms/torch.h"

struct nanogpt {
    lks__torchfile *file;
    const lks__pickle_value *root, *model;
};

static const char compiled[] = "_orig_mod."; /* torch.compile's prefix */

static lks_status bad(const lks__weights *w, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s can't be read as nanoGPT's ckpt.pt: %s", w->shown, what);
}

/* ---- the weights ----------------------------------------------------------------------------- */

static bool looks(const lks__weights_path *p)
{
    return p->folder ? lks__weights_has(p->path, LKS__NANOGPT_FILE)
                     : memcmp(p->head, "PK\3\4", 4) == 0 || memcmp(p->head, "\x80\2\x8a\n", 4) == 0;
}

bool lks__nanogpt_in(const char *folder)
{
    return lks__weights_has(folder, LKS__NANOGPT_FILE);
}

/* A tensor's name without the prefix of torch.compile. */
static const char *plain(const char *name)
{
    const size_t n = sizeof compiled - 1;
    return strncmp(name, compiled, n) == 0 ? name + n : name;
}

/* Excludes the causal mask, which old versions of PyTorch need, and the embedding's other name. */
static bool is_parameter(const char *name, const lks__pickle_value *v)
{
    bool mask = lks__ends_with(name, ".attn.bias") &&
                lks__pickle_kind_of(v) == LKS__PICKLE_TENSOR &&
                lks__pickle_tensor_of(v)->n_dims == 4;
    return !mask && strcmp(name, "lm_head.weight") != 0;
}

static lks_status add_tensors(lks__weights *w, const lks__pickle_value *model)
{
    for (size_t i = 0; i < lks__pickle_count(model); i++) {
        const lks__pickle_value *v = lks__pickle_item(model, i);
        const char *key = lks__weights_torch_key(model, i);
        if (key == NULL)
            return bad(w, "a key of its \"model\" is not a name");
        const char *name = plain(key);
        if (strcmp(name, "lm_head.weight") == 0) {
            LKS__TRY(lks__weights_torch_add(w, "transformer.wte.weight", v, true));
            w->tensors[w->n_tensors - 1].own = "lm_head.weight";
        } else if (is_parameter(name, v)) {
            LKS__TRY(lks__weights_torch_add(w, name, v, false));
        }
    }
    return LKS_OK;
}

/* The members of model_args, sizes first. */
static const char *const known[] = {"n_layer",    "n_head", "n_embd", "block_size",
                                    "vocab_size", "bias",   "dropout"};
enum { N_SIZES = 5, N_KNOWN = sizeof known / sizeof *known };

/* As in GPTConfig(**model_args), another key is refused: the model may be another one, even if its
 * tensors are equal. */
static lks_status check_args(const lks__weights *w, const lks__pickle_value *args)
{
    char why[300];
    for (size_t i = 0; i < lks__pickle_count(args); i++) {
        size_t k = 0;
        while (k < N_KNOWN && !lks__pickle_is(lks__pickle_key(args, i), known[k]))
            k++;
        if (k < N_KNOWN)
            continue;
        const char *key = lks__weights_torch_key(args, i);
        snprintf(why, sizeof why, "its \"model_args\" has %s, which nanoGPT's model lacks",
                 key != NULL ? lks__shown(key, 200) : "a key that isn't a name");
        return bad(w, why);
    }
    return LKS_OK;
}

static lks_status set_args(lks__weights *w, const lks__pickle_value *args)
{
    char why[80];
    for (size_t i = 0; i < N_SIZES; i++) {
        const lks__pickle_value *v = lks__pickle_find(args, known[i]);
        snprintf(why, sizeof why, "its \"model_args\" has no %s of at least 1", known[i]);
        if (lks__pickle_kind_of(v) != LKS__PICKLE_INT || lks__pickle_int(v) < 1)
            return bad(w, why);
        LKS__TRY(lks__weights_set_int(w, known[i], (uint64_t)lks__pickle_int(v)));
    }
    const lks__pickle_value *bias = lks__pickle_find(args, "bias");
    if (lks__pickle_kind_of(bias) != LKS__PICKLE_BOOL)
        return bad(w, "its \"model_args\" has no bias of True or False");
    LKS__TRY(lks__weights_set(w, "bias", lks__pickle_bool(bias) ? "true" : "false"));
    LKS__TRY(lks__weights_set(w, "gelu", "exact"));
    return check_args(w, args);
}

/* True for a plain folder name, which can't lead elsewhere. */
static bool is_plain(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (name[i] == '/' || (unsigned char)name[i] <= ' ')
            return false;
    return bytes > 0 && name[0] != '.';
}

/* The dataset's name, if it is a plain one: data to evaluate on, and of a run that continues. */
static void read_dataset(const lks__pickle_value *config, lks__settings *model)
{
    const lks__pickle_value *v = lks__pickle_find(config, "dataset");
    size_t bytes = 0;
    const char *text =
        lks__pickle_kind_of(v) == LKS__PICKLE_TEXT ? lks__pickle_text(v, &bytes) : NULL;
    model->dataset[0] = '\0';
    if (text != NULL && bytes <= 200 && is_plain(text, bytes))
        snprintf(model->dataset, sizeof model->dataset, "%.*s", (int)bytes, text);
}

/* Use the meaning of ids in `folder`, if that exists and has this vocabulary size. */
static lks_status find_tokens(lks__weights *w, const char *folder, const char *shown)
{
    bool found = false;
    lks__meta meta = {0};
    if (lks__meta_load(folder, &found, &meta) == LKS_ERR_NOMEM)
        return LKS_ERR_NOMEM;
    if (found && meta.vocab_size == (uint32_t)w->model.vocab_size) {
        snprintf(w->vocabulary, sizeof w->vocabulary, "%s", folder);
        snprintf(w->origin, sizeof w->origin, "nanoGPT's ckpt.pt, with the tokens of %.100s",
                 shown);
    }
    lks__meta_free(&meta);
    return LKS_OK;
}

/* `lockstep export` writes meta.pkl next to the file. If that is missing or has another size, take
 * data/DATASET, as the script's sample.py does. */
static lks_status find_dataset(lks__weights *w, const lks__pickle_value *config)
{
    char folder[LKS__CKPT_PATH];
    lks__ckpt_parent(w->path, folder);
    LKS__TRY(find_tokens(w, folder, "its folder"));
    read_dataset(config, &w->model);
    if (w->vocabulary[0] != '\0' || w->model.dataset[0] == '\0')
        return LKS_OK;
    snprintf(folder, sizeof folder, "data/%s", w->model.dataset);
    return find_tokens(w, folder, folder);
}

static lks_status open_file(const lks__weights_want *want, lks__weights *w)
{
    struct nanogpt *n = calloc(1, sizeof *n);
    const size_t length = strlen(w->path);
    LKS__MEMORY(n, "to open %s", w->shown);
    w->source = n;
    if (lks__weights_has(w->path, LKS__NANOGPT_FILE) &&
        length + sizeof LKS__NANOGPT_FILE < sizeof w->path) {
        strcpy(w->path + length, "/" LKS__NANOGPT_FILE);
        lks__escape(w->shown, sizeof w->shown, w->path, strlen(w->path));
    }
    LKS__TRY(lks__torchfile_open(w->path, &n->file));
    n->root = lks__torchfile_root(n->file);
    n->model = lks__pickle_find(n->root, "model");
    if (n->model == NULL && lks__pickle_kind_of(n->root) == LKS__PICKLE_DICT &&
        lks__pickle_count(n->root) > 0 &&
        lks__pickle_kind_of(lks__pickle_item(n->root, 0)) == LKS__PICKLE_TENSOR)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has tensors without the model's settings: if it is Hugging Face's, "
                         "save the model with save_pretrained(), which writes model.safetensors",
                         w->shown);
    if (lks__pickle_kind_of(n->model) != LKS__PICKLE_DICT)
        return bad(w, "it has no \"model\" with tensors");
    LKS__TRY(lks__weights_set(w, "family", "gpt2"));
    LKS__TRY(set_args(w, lks__pickle_find(n->root, "model_args")));
    snprintf(w->origin, sizeof w->origin, "nanoGPT's ckpt.pt");
    LKS__TRY(find_dataset(w, lks__pickle_find(n->root, "config")));
    return add_tensors(w, n->model);
}

static lks_status read_part(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                            float *out)
{
    const struct nanogpt *source = w->source;
    return lks__weights_torch_read(source->file, t, first, n, out);
}

static void close_file(lks__weights *w)
{
    const struct nanogpt *source = w->source;
    if (source != NULL)
        lks__torchfile_close(source->file);
    free(w->source);
}

const lks__weights_form lks__weights_nanogpt = {
    .about = "a ckpt.pt of nanoGPT, or a folder with it",
    .looks = looks,
    .open = open_file,
    .read = read_part,
    .close = close_file,
};

/* ---- the optimizer --------------------------------------------------------------------------- */

/* A number of any type, or a tensor of one float. */
static lks_status number(lks__weights *w, const lks__pickle_value *v, const char *what, double *x_p)
{
    const struct nanogpt *n = w->source;
    char why[100];
    float one;
    snprintf(why, sizeof why, "its %s is not a number", what);
    switch (lks__pickle_kind_of(v)) {
    case LKS__PICKLE_INT:
        *x_p = (double)lks__pickle_int(v);
        return LKS_OK;
    case LKS__PICKLE_FLOAT:
        *x_p = lks__pickle_float(v);
        break;
    case LKS__PICKLE_TENSOR: {
        const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
        if (t->count != 1 || strcmp(t->storage->dtype, "F32") != 0)
            return bad(w, why);
        LKS__TRY(lks__torchfile_read(n->file, t, &one));
        *x_p = (double)one;
        break;
    }
    default:
        return bad(w, why);
    }
    return isfinite(*x_p) ? LKS_OK : bad(w, why);
}

/* Group 0 contains the matrices, group 1 the other tensors. */
static const lks__pickle_value *group(const lks__weights *w, size_t i)
{
    const struct nanogpt *n = w->source;
    const lks__pickle_value *groups =
        lks__pickle_find(lks__pickle_find(n->root, "optimizer"), "param_groups");
    return lks__pickle_kind_of(groups) == LKS__PICKLE_LIST && lks__pickle_count(groups) == 2
               ? lks__pickle_item(groups, i)
               : NULL;
}

/* State of parameter `i` of a group. */
static const lks__pickle_value *state_of(const lks__weights *w, size_t which, size_t i)
{
    const struct nanogpt *n = w->source;
    const lks__pickle_value *params = lks__pickle_find(group(w, which), "params");
    const lks__pickle_value *states =
        lks__pickle_find(lks__pickle_find(n->root, "optimizer"), "state");
    if (lks__pickle_kind_of(params) != LKS__PICKLE_LIST || i >= lks__pickle_count(params))
        return NULL;
    const lks__pickle_value *id = lks__pickle_item(params, i);
    return lks__pickle_kind_of(id) == LKS__PICKLE_INT
               ? lks__pickle_find_int(states, lks__pickle_int(id))
               : NULL;
}

typedef lks_status for_each(lks__weights *w, const char *name, const lks__pickle_value *state,
                            void *ctx);

/* Visit every parameter with its state. configure_optimizers() iterates over named_parameters(),
 * the order of "model", and lists tensors with two dimensions first. */
static lks_status each_state(lks__weights *w, for_each *visit, void *ctx)
{
    const struct nanogpt *n = w->source;
    size_t seen[2] = {0, 0};
    for (size_t i = 0; i < lks__pickle_count(n->model); i++) {
        const lks__pickle_value *v = lks__pickle_item(n->model, i);
        const char *key = lks__weights_torch_key(n->model, i);
        if (!is_parameter(plain(key), v))
            continue;
        const size_t which = lks__pickle_tensor_of(v)->n_dims >= 2 ? 0 : 1;
        const lks__pickle_value *state = state_of(w, which, seen[which]++);
        LKS__TRY(visit(w, plain(key), state, ctx));
    }
    for (size_t g = 0; g < 2; g++)
        if (lks__pickle_count(lks__pickle_find(group(w, g), "params")) != seen[g])
            return bad(w, "its optimizer's parameters differ from its model's");
    return LKS_OK;
}

static bool same_shape(const lks__pickle_value *v, const lks__pickle_tensor *of)
{
    if (lks__pickle_kind_of(v) != LKS__PICKLE_TENSOR)
        return false;
    const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
    bool same = t->n_dims == of->n_dims && strcmp(t->storage->dtype, "F32") == 0;
    for (int d = 0; same && d < t->n_dims; d++)
        same = t->shape[d] == of->shape[d];
    return same;
}

static lks_status check_state(lks__weights *w, const char *name, const lks__pickle_value *state,
                              void *ctx)
{
    const double counted = 1 << 24; /* float32, in which PyTorch counts, ends here */
    const uint64_t *iter = ctx;
    const lks__weights_tensor *have = lks__weights_untied(w, name);
    double step = -1;
    const char *shown = lks__shown(name, 120);
    if (have == NULL || !same_shape(lks__pickle_find(state, "exp_avg"), have->from) ||
        !same_shape(lks__pickle_find(state, "exp_avg_sq"), have->from))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: the optimizer has no moments (F32) in the shape of tensor %s",
                         w->shown, shown);
    LKS__TRY(number(w, lks__pickle_find(state, "step"), "optimizer's step", &step));
    if (step == (double)*iter || (step >= counted && (double)*iter >= counted))
        return LKS_OK;
    return lks__fail(LKS_ERR_SUPPORT,
                     "%s: the optimizer has updated %s %.0f times in %" PRIu64
                     " iterations (with float16 nanoGPT leaves some out): such a run can't be "
                     "continued; --init_from=PATH starts a new run with its weights",
                     w->shown, shown, step, *iter);
}

/* Both groups have the same betas and epsilon; the second has no decay. */
static lks_status read_group(lks__weights *w, size_t i, double *beta1, double *beta2, double *decay)
{
    double eps;
    const lks__pickle_value *g = group(w, i), *betas = lks__pickle_find(g, "betas");
    const lks__pickle_value *amsgrad = lks__pickle_find(g, "amsgrad");
    if (lks__pickle_kind_of(betas) != LKS__PICKLE_TUPLE || lks__pickle_count(betas) != 2 ||
        lks__pickle_kind_of(lks__pickle_find(g, "params")) != LKS__PICKLE_LIST)
        return bad(w, "its optimizer has no two groups of parameters, as nanoGPT's AdamW has");
    LKS__TRY(number(w, lks__pickle_item(betas, 0), "beta1", beta1));
    LKS__TRY(number(w, lks__pickle_item(betas, 1), "beta2", beta2));
    LKS__TRY(number(w, lks__pickle_find(g, "weight_decay"), "weight_decay", decay));
    LKS__TRY(number(w, lks__pickle_find(g, "eps"), "eps", &eps));
    if (eps != 1e-8 ||
        (lks__pickle_kind_of(amsgrad) == LKS__PICKLE_BOOL && lks__pickle_bool(amsgrad)))
        return bad(w, "its optimizer has another eps than 1e-8, or amsgrad");
    return LKS_OK;
}

lks_status lks__nanogpt_run_of(lks__weights *w, lks__nanogpt_run *run)
{
    double beta1, beta2, no_decay;
    char why[160];
    if (w->form != &lks__weights_nanogpt) {
        snprintf(why, sizeof why, "it is %s", w->form->about);
        return bad(w, why);
    }
    const struct nanogpt *n = w->source;
    const lks__pickle_value *iter = lks__pickle_find(n->root, "iter_num");
    if (lks__pickle_find(n->root, "optimizer") == NULL)
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s has no state of the optimizer, so its run can't be continued; "
                         "--init_from=PATH of this file starts a new run with its weights",
                         w->shown);
    if (lks__pickle_kind_of(iter) != LKS__PICKLE_INT || lks__pickle_int(iter) < 1 ||
        lks__pickle_int(iter) > UINT32_MAX - 1)
        return bad(w, "its \"iter_num\" is not a count of at least 1");
    run->iter = (uint64_t)lks__pickle_int(iter);
    LKS__TRY(number(w, lks__pickle_find(n->root, "best_val_loss"), "best_val_loss",
                    &run->best_val_loss));
    LKS__TRY(read_group(w, 0, &run->beta1, &run->beta2, &run->weight_decay));
    LKS__TRY(read_group(w, 1, &beta1, &beta2, &no_decay));
    if (beta1 != run->beta1 || beta2 != run->beta2 || no_decay != 0.0)
        return bad(w, "the two groups of its optimizer don't have nanoGPT's betas and decay");
    return each_state(w, check_state, &run->iter);
}

bool lks__nanogpt_setting(const lks__weights *w, const char *name, char text[40])
{
    const struct nanogpt *n = w->source;
    const lks__pickle_value *v = lks__pickle_find(lks__pickle_find(n->root, "config"), name);
    switch (lks__pickle_kind_of(v)) {
    case LKS__PICKLE_BOOL:
        snprintf(text, 40, "%s", lks__pickle_bool(v) ? "true" : "false");
        return true;
    case LKS__PICKLE_INT:
        snprintf(text, 40, "%" PRId64, lks__pickle_int(v));
        return true;
    case LKS__PICKLE_FLOAT:
        snprintf(text, 40, "%.17g", lks__pickle_float(v));
        return true;
    default:
        return false;
    }
}

struct arenas {
    const lks__table *table;
    float *exp_avg, *exp_avg_sq;
};

static lks_status read_moment(lks__weights *w, const char *name, const lks__pickle_value *v,
                              const lks__table_tensor *t, float *out)
{
    const struct nanogpt *n = w->source;
    LKS__TRY(lks__torchfile_read(n->file, lks__pickle_tensor_of(v), out));
    for (size_t i = 0; i < t->count; i++)
        if (!isfinite(out[i]))
            return lks__fail(LKS_ERR_NAN, "%s: a moment of tensor %s is not finite at index %zu",
                             w->shown, name, i);
    return LKS_OK;
}

static lks_status read_state(lks__weights *w, const char *name, const lks__pickle_value *state,
                             void *ctx)
{
    const struct arenas *a = ctx;
    const lks__table_tensor *t = lks__table_find(a->table, name);
    const lks__weights_tensor *have = lks__weights_untied(w, name);
    bool whole = t != NULL && have != NULL && t->shape[0] == have->shape[0] &&
                 (t->n_dims < 2 || t->shape[1] == have->shape[1]);
    if (!whole)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: a run is continued in its own shape: leave --block_size and "
                         "--vocab_size out",
                         w->shown);
    if (t->frozen)
        return LKS_OK;
    LKS__TRY(
        read_moment(w, t->name, lks__pickle_find(state, "exp_avg"), t, a->exp_avg + t->offset));
    return read_moment(w, t->name, lks__pickle_find(state, "exp_avg_sq"), t,
                       a->exp_avg_sq + t->offset);
}

lks_status lks__nanogpt_moments(lks__weights *w, const lks__table *table, float *exp_avg,
                                float *exp_avg_sq)
{
    struct arenas a = {table, exp_avg, exp_avg_sq};
    return each_state(w, read_state, &a);
}
