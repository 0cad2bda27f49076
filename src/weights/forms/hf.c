/* weights/forms/hf.c - GPT-2 as Hugging Face's transformers store it: a folder with config.json and
 * model.safetensors (or its parts and model.safetensors.index.json), or only such a file.
 *
 * Names may begin with "transformer.". Their Conv1D stores a matrix as [in, out]; a file with
 * torch.nn.Linear's [out, in], like nanoGPT's model, is recognized by the shape of c_attn. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "files/safetensors/safetensors.h"
#include "weights/forms/form.h"

#define CONFIG "config.json"
#define WHOLE  "model.safetensors"
#define INDEX  "model.safetensors.index.json"

enum { MOST_PARTS = 256, MOST_JSON = 16 << 20, MOST_LAYERS = 1024 };

struct hf {
    lks__st_file *parts[MOST_PARTS];
    int n_parts;
    json_t *config; /* NULL if there is none */
};

static bool looks(const lks__weights_path *p)
{
    if (!p->folder)
        return lks__ends_with(p->path, ".safetensors");
    return lks__weights_has(p->path, CONFIG) || lks__weights_has(p->path, WHOLE) ||
           lks__weights_has(p->path, INDEX);
}

/* --- files ----------------------------------------------------------------------------------- */

static lks_status read_json(const char *folder, const char *name, json_t **json_p)
{
    char path[LKS__CKPT_PATH], *text;
    size_t bytes;
    LKS__TRY(lks__ckpt_join(path, folder, name));
    LKS__TRY(lks__sys_read_file(path, MOST_JSON, &text, &bytes));
    const char *shown = lks__shown(path, 512);
    lks_status st = lks__json_parse(text, bytes, JSON_REJECT_DUPLICATES, shown, json_p);
    free(text);
    if (st == LKS_OK && !json_is_object(*json_p)) {
        json_decref(*json_p);
        *json_p = NULL;
        st = lks__fail(LKS_ERR_FORMAT, "%s is not a JSON object", shown);
    }
    return st;
}

static lks_status open_part(struct hf *hf, const char *folder, const char *name)
{
    char path[LKS__CKPT_PATH];
    LKS__TRY(lks__ckpt_join(path, folder, name));
    LKS__TRY(lks__st_open(path, &hf->parts[hf->n_parts]));
    hf->n_parts++;
    return LKS_OK;
}

/* Open the files that the index names, each once. */
static lks_status open_parts(struct hf *hf, const lks__weights *w, const json_t *map)
{
    const char *names[MOST_PARTS], *tensor;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *name = json_string_value(value);
        int i = 0;
        if (name == NULL || strchr(name, '/') != NULL || strlen(name) != json_string_length(value))
            return lks__fail(LKS_ERR_FORMAT,
                             "%s/" INDEX
                             ": weight_map must contain only names of files in the same folder",
                             w->shown);
        while (i < n && strcmp(names[i], name) != 0)
            i++;
        if (i == MOST_PARTS)
            return lks__fail(LKS_ERR_SUPPORT, "%s/" INDEX " names more than %d files", w->shown,
                             MOST_PARTS);
        if (i < n)
            continue;
        names[n++] = name;
        LKS__TRY(open_part(hf, w->path, name));
    }
    return LKS_OK;
}

static lks_status open_folder(struct hf *hf, const lks__weights *w)
{
    json_t *index = NULL;
    if (lks__weights_has(w->path, WHOLE))
        return open_part(hf, w->path, WHOLE);
    if (!lks__weights_has(w->path, INDEX))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has a " CONFIG ", but neither " WHOLE " nor " INDEX
                         ": save the model with save_pretrained(), which writes the former",
                         w->shown);
    LKS__TRY(read_json(w->path, INDEX, &index));
    const json_t *map = json_object_get(index, "weight_map");
    lks_status st = json_is_object(map)
                        ? open_parts(hf, w, map)
                        : lks__fail(LKS_ERR_FORMAT, "%s/" INDEX " has no weight_map", w->shown);
    json_decref(index);
    return st;
}

/* Open a single file; its config may be next to it. */
static lks_status open_file(struct hf *hf, const lks__weights *w, char folder[LKS__CKPT_PATH])
{
    lks__ckpt_parent(w->path, folder);
    LKS__TRY(lks__st_open(w->path, &hf->parts[0]));
    hf->n_parts = 1;
    return LKS_OK;
}

/* --- tensors --------------------------------------------------------------------------------- */

static bool is_matrix_of_layer(const char *name)
{
    return lks__ends_with(name, "attn.c_attn.weight") ||
           lks__ends_with(name, "attn.c_proj.weight") || lks__ends_with(name, "mlp.c_fc.weight") ||
           lks__ends_with(name, "mlp.c_proj.weight");
}

/* Buffers that old versions saved. */
static bool is_buffer(const char *name)
{
    return strncmp(name, "h.", 2) == 0 &&
           (lks__ends_with(name, ".attn.bias") || lks__ends_with(name, ".attn.masked_bias"));
}

static lks_status add_tensor(lks__weights *w, const lks__st_tensor *from, uint64_t part)
{
    const char *name = from->name;
    if (strncmp(name, "transformer.", 12) == 0)
        name += 12;
    if (is_buffer(name))
        return LKS_OK;
    lks__weights_tensor *t = lks__weights_add(w, "transformer.", name);
    if (t == NULL)
        return LKS_ERR_NOMEM;
    if (strcmp(name, "lm_head.weight") == 0) {
        snprintf(t->name, sizeof t->name, "transformer.wte.weight");
        t->tied = true;
    }
    t->own = from->name;
    t->n_dims = from->n_dims;
    t->shape[0] = from->shape[0];
    t->shape[1] = from->shape[1];
    t->at = part;
    t->from = from;
    if (strcmp(from->dtype, "F32") != 0 && strcmp(from->dtype, "F16") != 0 &&
        strcmp(from->dtype, "BF16") != 0) {
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s: tensor %s is of type %s; lockstep reads F32, F16 "
                         "and BF16",
                         w->shown, lks__shown(name, 120), from->dtype);
    }
    return LKS_OK;
}

/* Swap the two extents of the [in, out] matrices. */
static bool transpose(lks__weights *w)
{
    const lks__weights_tensor *c = lks__weights_untied(w, "transformer.h.0.attn.c_attn.weight");
    if (c == NULL || c->n_dims != 2 || c->shape[0] == 3 * c->shape[1])
        return false;
    for (size_t i = 0; i < w->n_tensors; i++) {
        lks__weights_tensor *t = &w->tensors[i];
        if (t->n_dims != 2 || !is_matrix_of_layer(t->name))
            continue;
        const uint64_t in = t->shape[0];
        t->shape[0] = t->shape[1];
        t->shape[1] = in;
        t->transposed = true;
    }
    return true;
}

static lks_status count_layers(const lks__weights *w, uint64_t *n_p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        unsigned layer;
        if (sscanf(w->tensors[i].name, "transformer.h.%5u.", &layer) == 1 && layer >= n)
            n = layer + 1;
    }
    if (n == 0 || n > MOST_LAYERS)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has tensors of %" PRIu64 " layers h.0, h.1, ...; 1 to "
                         "%d are possible",
                         w->shown, n, MOST_LAYERS);
    *n_p = n;
    return LKS_OK;
}

/* --- settings -------------------------------------------------------------------------------- */

/* Read a count from the config; absent or null: `preset`. */
static lks_status count_in(const lks__weights *w, const json_t *config, const char *key,
                           json_int_t preset, json_int_t *n_p)
{
    const json_t *value = json_object_get(config, key);
    *n_p = preset;
    if (value == NULL || json_is_null(value))
        return LKS_OK;
    *n_p = json_integer_value(value);
    if (json_is_integer(value) && *n_p > 0 && *n_p <= INT32_MAX)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT, "%s: " CONFIG ": %s is not a positive number", w->shown, key);
}

/* If the config contains it, it must agree with the tensors. */
static lks_status must_be(const lks__weights *w, const json_t *config, const char *key,
                          uint64_t have, const char *tensor)
{
    json_int_t n;
    LKS__TRY(count_in(w, config, key, (json_int_t)have, &n));
    if ((uint64_t)n == have)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT, "%s: " CONFIG " says %s = %" PRId64 ", but %s gives %" PRIu64,
                     w->shown, key, (int64_t)n, tensor, have);
}

/* Check that GPT-2's other options in the config are those that lockstep computes. */
static lks_status check_variant(const lks__weights *w, const json_t *config, uint64_t C)
{
    static const struct {
        const char *key;
        bool value;
    } flags[] = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"tie_word_embeddings", true},
                 {"add_cross_attention", false}};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const json_t *eps = json_object_get(config, "layer_norm_epsilon");
    json_int_t inner;
    if (type != NULL && strcmp(type, "gpt2") != 0)
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s: " CONFIG " says model_type = \"%s\"; lockstep reads "
                         "gpt2",
                         w->shown, lks__shown(type, 80));
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        const json_t *value = json_object_get(config, flags[i].key);
        if (value != NULL && !(flags[i].value ? json_is_true(value) : json_is_false(value)))
            return lks__fail(LKS_ERR_SUPPORT, "%s: " CONFIG ": lockstep's gpt2 has %s = %s only",
                             w->shown, flags[i].key, flags[i].value ? "true" : "false");
    }
    if (eps != NULL && !(json_is_number(eps) && json_number_value(eps) == 1e-5))
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s: " CONFIG ": lockstep's gpt2 has layer_norm_epsilon = 1e-5 only",
                         w->shown);
    LKS__TRY(count_in(w, config, "n_inner", (json_int_t)(4 * C), &inner));
    if ((uint64_t)inner != 4 * C)
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s: " CONFIG " says n_inner = %" PRId64 "; lockstep's gpt2 has 4 n_embd",
                         w->shown, (int64_t)inner);
    return LKS_OK;
}

static lks_status set_gelu(lks__weights *w, const json_t *config, bool conv)
{
    static const struct {
        const char *theirs, *ours;
    } forms[] = {{"gelu_new", "tanh"},
                 {"gelu_pytorch_tanh", "tanh"},
                 {"gelu_fast", "tanh"},
                 {"gelu", "exact"}};
    const json_t *value = json_object_get(config, "activation_function");
    const char *name = json_string_value(value);
    if (value == NULL) /* GPT2Config's default; a file with Linear's shape is nanoGPT's */
        return lks__weights_set(w, "gelu", conv || config != NULL ? "tanh" : "exact");
    for (size_t i = 0; name != NULL && i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(name, forms[i].theirs) == 0)
            return lks__weights_set(w, "gelu", forms[i].ours);
    if (name == NULL)
        name = "";
    return lks__fail(LKS_ERR_SUPPORT,
                     "%s: " CONFIG " says activation_function = \"%s\"; lockstep "
                     "has gelu_new, gelu_pytorch_tanh, gelu_fast and gelu",
                     w->shown, lks__shown(name, 80));
}

static lks_status set_heads(lks__weights *w, const json_t *config, int64_t wanted, uint64_t C)
{
    json_int_t n = (json_int_t)wanted;
    if (config != NULL)
        LKS__TRY(count_in(w, config, "n_head", 12, &n));
    if (n == 0 && C % 64 != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: there is no " CONFIG
                         " in the same folder, so the number of heads is unknown: give --n_head",
                         w->shown);
    if (n == 0) {
        n = (json_int_t)(C / 64);
        snprintf(w->note, sizeof w->note,
                 "there is no " CONFIG " next to the weights: using n_head=%" PRId64
                 ", which is n_embd / 64, as in GPT-2",
                 (int64_t)n);
    }
    return lks__weights_set_int(w, "n_head", (uint64_t)n);
}

static lks_status set_model(lks__weights *w, const json_t *config, int64_t n_head)
{
    const lks__weights_tensor *wte = lks__weights_untied(w, "transformer.wte.weight");
    const lks__weights_tensor *wpe = lks__weights_untied(w, "transformer.wpe.weight");
    uint64_t L = 0;
    if (wte == NULL || wpe == NULL || wte->n_dims != 2 || wpe->n_dims != 2)
        return lks__fail(
            LKS_ERR_FORMAT,
            "%s: the matrix wte.weight or wpe.weight is missing, so this is not a GPT-2 model",
            w->shown);
    const uint64_t V = wte->shape[0], C = wte->shape[1], T = wpe->shape[0];
    const bool conv = transpose(w);
    LKS__TRY(count_layers(w, &L));
    LKS__TRY(lks__weights_set(w, "family", "gpt2"));
    LKS__TRY(lks__weights_set_int(w, "n_layer", L));
    LKS__TRY(lks__weights_set_int(w, "n_embd", C));
    LKS__TRY(lks__weights_set_int(w, "block_size", T));
    LKS__TRY(lks__weights_set_int(w, "vocab_size", V));
    const bool bias = lks__weights_untied(w, "transformer.ln_f.bias") != NULL;
    LKS__TRY(lks__weights_set(w, "bias", bias ? "true" : "false"));
    LKS__TRY(must_be(w, config, "n_layer", L, "the numbering of its tensors"));
    LKS__TRY(must_be(w, config, "n_embd", C, "the shape of wte.weight"));
    LKS__TRY(must_be(w, config, "vocab_size", V, "the shape of wte.weight"));
    LKS__TRY(must_be(w, config, "n_positions", T, "the shape of wpe.weight"));
    LKS__TRY(check_variant(w, config, C));
    LKS__TRY(set_gelu(w, config, conv));
    return set_heads(w, config, n_head, C);
}

/* --- the form -------------------------------------------------------------------------------- */

static lks_status open_model(const lks__weights_want *want, lks__weights *w)
{
    char folder[LKS__CKPT_PATH];
    struct hf *hf = calloc(1, sizeof *hf);
    LKS__MEMORY(hf, "to open %s", w->shown);
    w->source = hf;
    memcpy(folder, w->path, sizeof folder);
    LKS__TRY(lks__sys_is_folder(w->path) ? open_folder(hf, w) : open_file(hf, w, folder));
    if (lks__weights_has(folder, CONFIG))
        LKS__TRY(read_json(folder, CONFIG, &hf->config));
    for (int p = 0; p < hf->n_parts; p++)
        for (size_t i = 0; i < lks__st_count(hf->parts[p]); i++)
            LKS__TRY(add_tensor(w, lks__st_get(hf->parts[p], i), (uint64_t)p));
    LKS__TRY(set_model(w, hf->config, want->n_head));
    memcpy(w->vocabulary, folder, sizeof folder);
    snprintf(w->origin, sizeof w->origin, "Hugging Face's form");
    return LKS_OK;
}

static lks_status read_part(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                            float *out)
{
    const struct hf *hf = w->source;
    const lks__st_tensor *from = t->from;
    lks__st_file *file = hf->parts[t->at];
    if (strcmp(from->dtype, "F32") == 0) {
        if (first == 0 && n * sizeof *out == from->bytes) /* checks its hash, if any */
            return lks__st_read(file, from, out);
        return lks__st_read_part(file, from, first * sizeof *out, out, n * sizeof *out);
    }
    LKS__TRY(lks__st_read_part(file, from, first * 2, (char *)out + n * 2, n * 2));
    lks__weights_widen(out, n, strcmp(from->dtype, "F16") == 0);
    return LKS_OK;
}

static void close_model(lks__weights *w)
{
    struct hf *hf = w->source;
    if (hf == NULL)
        return;
    for (int i = 0; i < hf->n_parts; i++)
        lks__st_close(hf->parts[i]);
    json_decref(hf->config);
    free(hf);
}

const lks__weights_form lks__weights_hf = {
    .about = "Hugging Face's GPT-2 (a folder with config.json and model.safetensors, or only the "
             "latter)",
    .looks = looks,
    .open = open_model,
    .read = read_part,
    .close = close_model,
};
