/* weights/forms/golf.c - the files that parameter-golf's train_gpt.py saves: final_model.pt, a
 * state_dict, and the artifact final_model.int8.ptz; also lockstep's own artifacts, which contain
 * their settings. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/artifact/artifact.h"
#include "weights/forms/saved.h"
#include "weights/forms/torch.h"

struct golf {
    lks__torchfile *file; /* of a state_dict */
    lks__artifact artifact;
    lks__table table; /* of an artifact, which is read whole */
    float *params;
};

/* ---- recognizing a path
 * ------------------------------------------------------------------------ */

static bool is_state_dict(const char *path)
{
    lks__torchfile *file;
    if (lks__torchfile_open(path, &file) != LKS_OK)
        return false;
    bool is = lks__pickle_find(lks__torchfile_root(file), "tok_emb.weight") != NULL;
    lks__torchfile_close(file);
    return is;
}

static bool is_zlib(const lks__weights_path *p)
{
    return !p->folder && p->head[0] == 0x78 && (p->head[0] << 8 | p->head[1]) % 31 == 0;
}

static bool looks(const lks__weights_path *p)
{
    if (is_zlib(p))
        return true;
    return !p->folder && memcmp(p->head, "PK\3\4", 4) == 0 && is_state_dict(p->path);
}

/* ---- the shape, from those of tensors -------------------------------------------------------- */

/* False if there is no such tensor. Missing dimensions are 1. */
static bool shape_of(const lks__weights *w, const char *name, uint64_t shape[2])
{
    const struct golf *g = w->source;
    shape[0] = shape[1] = 1;
    if (g->file == NULL)
        return lks__artifact_shape(&g->artifact, name, shape);
    for (size_t i = 0; i < w->n_tensors; i++)
        if (strcmp(w->tensors[i].name, name) == 0) {
            for (int d = 0; d < 2 && d < w->tensors[i].n_dims; d++)
                shape[d] = w->tensors[i].shape[d];
            return true;
        }
    return false;
}

static uint64_t count_layers(const lks__weights *w)
{
    uint64_t shape[2], n = 0;
    char name[48];
    do
        snprintf(name, sizeof name, "blocks.%" PRIu64 ".attn.q_gain", n);
    while (shape_of(w, name, shape) && ++n < 2048);
    return n;
}

static lks_status bad_shape(const lks__weights *w)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: the shapes of tok_emb.weight and of blocks.0's q_gain, c_k.weight and "
                     "fc.weight don't match a model of parameter-golf",
                     w->shown);
}

/* The tensors don't show the sequence length, the logit cap and RoPE's base: the script's defaults
 * are used. */
static lks_status set_shape(lks__weights *w)
{
    uint64_t embedding[2], gain[2], keys[2], fc[2], head[2];
    if (!shape_of(w, "tok_emb.weight", embedding) || !shape_of(w, "blocks.0.attn.q_gain", gain) ||
        !shape_of(w, "blocks.0.attn.c_k.weight", keys) ||
        !shape_of(w, "blocks.0.mlp.fc.weight", fc))
        return bad_shape(w);
    const uint64_t width = embedding[1], heads = gain[0];
    if (width == 0 || heads == 0 || width % heads != 0 || keys[0] % (width / heads) != 0)
        return bad_shape(w);
    LKS__TRY(lks__weights_set(w, "family", "golf"));
    LKS__TRY(lks__weights_set_int(w, "n_layer", count_layers(w)));
    LKS__TRY(lks__weights_set_int(w, "n_embd", width));
    LKS__TRY(lks__weights_set_int(w, "vocab_size", embedding[0]));
    LKS__TRY(lks__weights_set_int(w, "n_head", heads));
    LKS__TRY(lks__weights_set_int(w, "num_kv_heads", keys[0] / (width / heads)));
    LKS__TRY(lks__weights_set_int(w, "mlp_mult", fc[0] / width));
    return lks__weights_set(w, "tie_embeddings",
                            shape_of(w, "lm_head.weight", head) ? "false" : "true");
}

/* ---- opening --------------------------------------------------------------------------------- */

static lks_status open_state_dict(lks__weights *w, struct golf *g)
{
    LKS__TRY(lks__torchfile_open(w->path, &g->file));
    const lks__pickle_value *root = lks__torchfile_root(g->file);
    for (size_t i = 0; i < lks__pickle_count(root); i++) {
        const char *key = lks__weights_torch_key(root, i);
        if (key == NULL)
            return lks__fail(LKS_ERR_FORMAT, "%s: a key is not a tensor's name", w->shown);
        LKS__TRY(lks__weights_torch_add(w, key, lks__pickle_item(root, i), false));
    }
    snprintf(w->origin, sizeof w->origin, "parameter-golf's state_dict");
    return set_shape(w);
}

static lks_status set_own(lks__weights *w, const lks__artifact *a)
{
    LKS__TRY(lks__settings_from_json(a->settings, w->shown, &w->model));
    return a->tokenizer != NULL ? lks__meta_from_json(a->tokenizer, w->shown, &w->meta) : LKS_OK;
}

static lks_status add_from_table(lks__weights *w, const struct golf *g)
{
    for (size_t i = 0; i < g->table.n_tensors; i++) {
        const lks__table_tensor *from = &g->table.tensors[i];
        lks__weights_tensor *t = lks__weights_add(w, "", from->name);
        if (t == NULL)
            return LKS_ERR_NOMEM;
        t->n_dims = from->n_dims;
        t->shape[0] = from->shape[0];
        t->shape[1] = from->n_dims > 1 ? from->shape[1] : 0;
        t->at = from->offset;
    }
    return LKS_OK;
}

/* An artifact is decompressed from its beginning to its end, so it is read whole here. */
static lks_status open_artifact(lks__weights *w, struct golf *g)
{
    LKS__TRY(lks__artifact_open(w->path, &g->artifact));
    LKS__TRY(g->artifact.settings != NULL ? set_own(w, &g->artifact) : set_shape(w));
    const lks__model_config config =
        lks__state_model_config(&w->model, (uint32_t)w->model.vocab_size);
    LKS__TRY(lks__model_table(&config, &g->table));
    LKS__TRY(lks__artifact_check(&g->artifact, &g->table));
    g->params = calloc(g->table.count, sizeof *g->params);
    LKS__MEMORY(g->params, "for the weights in %s", w->shown);
    LKS__TRY(lks__artifact_read(&g->artifact, &g->table, g->params));
    snprintf(w->origin, sizeof w->origin, "an artifact of %s",
             g->artifact.settings != NULL ? "lockstep's" : "parameter-golf's");
    w->iter = g->artifact.iter;
    lks__artifact_close(&g->artifact);
    return add_from_table(w, g);
}

static lks_status open_any(const lks__weights_want *want, lks__weights *w)
{
    struct golf *g = calloc(1, sizeof *g);
    LKS__MEMORY(g, "to open %s", w->shown);
    w->source = g;
    return lks__torchfile_looks_like(w->path) ? open_state_dict(w, g) : open_artifact(w, g);
}

static lks_status read_part(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                            float *out)
{
    const struct golf *g = w->source;
    if (g->file != NULL)
        return lks__weights_torch_read(g->file, t, first, n, out);
    memcpy(out, g->params + t->at + first, n * sizeof *out);
    return LKS_OK;
}

static void close_any(lks__weights *w)
{
    struct golf *g = w->source;
    if (g != NULL) {
        lks__torchfile_close(g->file);
        lks__artifact_close(&g->artifact);
        lks__table_free(&g->table);
        free(g->params);
    }
    free(g);
}

const lks__weights_form lks__weights_golf = {
    .about = "a final_model.pt or an artifact (.ptz) of parameter-golf or lockstep",
    .looks = looks,
    .open = open_any,
    .read = read_part,
    .close = close_any,
};
