/* model/frame.h - the frame of every model: an embedding, n_layer equal layers one after the other,
 * a last norm, and a head over the vocabulary.
 *
 * frame.c contains the code that all families share: the tensor table, memory, the order of a pass,
 * the head, and the names of places. A family provides its lists of tensors and activations, and
 * its mathematics: struct lks__model_ops. Its state is a struct that begins with a lks__model. */
#pragma once

#include <stddef.h>

#include "model/carve.h"
#include "model/head.h"
#include "model/model.h"

struct lks__model {
    lks__model_config c;
    const struct lks__model_ops *ops; /* the family's functions */
    const lks__table *table;
    lks__device *device;
    const lks__layers *layers; /* the device's operations; they take `ex` */
    const lks__exec *ex;
    size_t max_rows, C, V;
    size_t act_bytes;         /* bytes per element of activations */
    bool forward_only;        /* the model has no backward pass */
    lks__recompute recompute; /* the config's; BLOCK, which needs least memory, if forward_only */
    void *once;       /* offsets of the tensors outside the layers, inside the family's struct */
    void *lt, *la;    /* [n_layer] the family's structs of each layer's offsets and activations */
    lks__act *x0;     /* [rows, C]: input of the first layer */
    lks__act *y, *dy; /* [rows, C]: input of the head, and its gradient */
    size_t head_w;    /* offset of the head's matrix [V, C] ... */
    int head_group;   /* ... and the group of its gradient */
    /* Backward ends with layer `lowest`, at the part that contains the tensor of row
     * `lowest_field`: no trained tensor precedes it in forward. Without frozen tensors, lowest is
     * -1, the embedding. n_layer: only the tensors after the layers are trained; n_layer + 1: only
     * the head. */
    int lowest;
    size_t lowest_field;
    lks__head head;
    void *arena; /* activations and work space of one pass; no contents survive the pass */
    size_t arena_bytes;
};

/* Keys and values of all layers, for passes over new tokens: [n_layer, sequences, heads, T, hs]
 * each. `k` and `v` begin at the pass's first sequence. */
typedef struct lks__kv {
    lks__act *k, *v;
    size_t layer; /* elements per layer */
    size_t T, at; /* positions, and the number of filled ones */
} lks__kv;

/* State of one pass through a model, shared by forward and backward. */
typedef struct lks__pass {
    void *m; /* the family's struct */
    const float *params;
    const lks__micro_batch *mb;
    const lks__backward *bw; /* NULL: evaluation */
    size_t rows;
    /* Not NULL: the sequences continue after kv->at tokens. The pass uses the products and
     * attention for new tokens, and positions begin at kv->at. */
    const lks__kv *kv;
    /* Recompute pass, seen by layer_forward() only: skip the layer's output, recompute its other
     * activations. */
    bool recompute;
} lks__pass;

/* Address of the gradient of the tensor at `offset`; NULL if it is frozen or doesn't exist
 * (SIZE_MAX). */
static inline float *lks__grad_at(const lks__pass *p, int group, size_t offset)
{
    const struct lks__model *m = p->m;
    return offset < m->table->trained_count ? lks__backward_grads(p->bw, group) + offset : NULL;
}

/* True if backward continues from the tensor of row `field` in `layer` to its predecessors in
 * forward. For families whose rows are in forward order. */
static inline bool lks__continues_below(const lks__pass *p, int layer, size_t field)
{
    const struct lks__model *m = p->m;
    return layer > m->lowest || m->lowest_field < field;
}

static inline lks__linear_fwd_fn *lks__pass_linear(const lks__pass *p, const lks__layers *layers)
{
    return p->kv != NULL ? layers->linear_rows_fwd : layers->linear_fwd;
}

/* The position of the first token of each sequence. */
static inline size_t lks__pass_at(const lks__pass *p)
{
    return p->kv != NULL ? p->kv->at : 0;
}

/* Attention of layer `layer`, over the pass's sequences or, with kv, also over the earlier
 * tokens. */
void lks__pass_attention(const lks__pass *p, int layer, const lks__attention_shape *shape,
                         lks__act *out, float *lse, const lks__attention_in *in,
                         const lks__dropout *drop);

/* An activation that a layer's forward stores for backward: one row of a family's list, whose last
 * row is the layer's output.
 *
 * `of`: ACTS for activations, FLOATS for numbers that are floats on every device, such as
 * statistics of rows.
 *
 * `recompute`: from this level of --recompute on, backward recomputes the activation, and all
 * layers share one memory for it. With ROWS, the family's layer_backward() recomputes it before
 * use. With BLOCK, frame.c calls layer_forward() once more before; that call may omit the
 * activations that ROWS recomputes.
 *
 * `work`: this shared memory is the family's work space. It has no other use from the time when
 * forward or backward computes the activation until its last read. If *work is NULL, so is the
 * field, and the family chooses memory for each use. */
typedef struct lks__activation_row {
    size_t field; /* the pointer's offset in the family's struct of a layer's activations */
    enum { LKS__OF_ACTS, LKS__OF_FLOATS } of;
    size_t width;             /* elements per row of the pass */
    const char *module;       /* the module whose output this is (ACTS), for messages; or NULL */
    lks__recompute recompute; /* NEVER: each layer has its own memory for it */
    lks__act *const *work;    /* NULL: separate memory */
} lks__activation_row;

#define LKS__ACTIVATION_FIELD(field, of, ...) LKS__ELEMENT_##of *field;
#define LKS__ELEMENT_ACTS                     lks__act
#define LKS__ELEMENT_FLOATS                   float
#define LKS__ACTIVATION_ROW(acts, field, of, width, module, recompute, work)                       \
    ((lks__activation_row){offsetof(acts, field), LKS__OF_##of, width, module,                     \
                           LKS__RECOMPUTE_##recompute, work})

enum { LKS__MOST_ACTIVATIONS = 20 };

struct lks__model_ops {
    /* --- tensors and activations --- */
    /* Open the table and add the tensors; lks__model_table() lays them out. */
    lks_status (*table)(const lks__model_config *config, lks__table *table);
    uint64_t (*init)(const lks__model_config *config, const lks__table *table, lks__mt *g,
                     float *params);
    double (*flops_per_token)(const lks__model_config *config, const lks__table *table);
    /* For a tensor outside the layers: the lowest layer whose backward adds to its gradient (as
     * lks__model.lowest). NULL: -1 for all tensors outside group 0 of n_layer + 2. */
    int (*lowest)(const lks__model_config *config, const lks__table_tensor *t);
    /* Sizes of the family's structs; once: offset in its struct, see lks__model.once. */
    size_t bytes, once, layer_tensors, layer_activations;
    size_t once_bytes;
    bool positions; /* positions are learned, so block_size is the longest context */
    const char *layer, *first, *last; /* module names: of the layers ("transformer.h", extended by
                                         ".3."), and of the modules whose outputs are x0 and y */

    /* --- memory --- */
    lks_status (*check)(const lks__model_config *config,
                        int batch); /* checks beyond those of table() */
    void (*size)(void *m);          /* sets the family's sizes, head_w, head_group */
    int (*activations)(const void *m, lks__activation_row rows[LKS__MOST_ACTIVATIONS]);
    /* Carve memory for x0, y, dy, work space, and the head's logits, which may share memory.
     * frame.c carves the layers' activations. */
    void (*carve)(void *m, lks__carver *v);
    /* Open everything outside the arena; or NULL. */
    lks_status (*open)(void *m);
    void (*close)(void *m);
    size_t (*more_bytes)(const void *m);

    /* Heads of keys and values per layer. NULL: the family's passes don't use lks__pass.kv, and
     * each new token needs a pass over its whole context. */
    int (*kv_heads)(const lks__model_config *config);

    /* --- the pass, in the order of the calls --- */
    void (*embed_forward)(const lks__pass *p); /* tokens to x0 */
    /* To the next layer's input; with p->recompute only the activations that backward needs. */
    void (*layer_forward)(const lks__pass *p, int layer);
    void (*last_forward)(const lks__pass *p);  /* to y */
    void (*last_backward)(const lks__pass *p); /* from dy */
    void (*layer_backward)(const lks__pass *p, int layer);
    void (*embed_backward)(const lks__pass *p);
};

/* Bytes of the activations of lks__model_open_forward(). */
lks_status lks__model_forward_bytes(const lks__model_config *config, size_t rows,
                                    const lks__layers *layers, size_t *bytes_p);

lks__pass lks__pass_of(lks__model *m, const float *params, const lks__micro_batch *mb,
                       const lks__backward *bw);

/* Called after each layer's forward, while its activations are valid; layer -1: after the
 * embedding, n_layer: after the last norm. */
typedef struct lks__visitor {
    void (*layer_done)(void *ctx, int layer);
    void *ctx;
} lks__visitor;

/* A visitor's context: `fn` gets the outputs of each layer's modules, and of those before and after
 * the layers. */
typedef struct lks__outputs {
    const lks__pass *p;
    lks__output_fn *fn;
    void *ctx;
} lks__outputs;
void lks__outputs_visit(void *outputs, int layer);

/* Compute the head's input from tokens; `visitor` may be NULL. */
void lks__model_forward(const lks__pass *p, const lks__visitor *visitor);

/* The activation of layer `l` that a row describes. */
void *lks__model_activation(const lks__model *m, int l, const lks__activation_row *row);
