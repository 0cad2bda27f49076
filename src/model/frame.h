/* model/frame.h - the frame of every model: an embedding, n_layer equal layers one after the other,
 * a last norm, and a head over the vocabulary.
 *
 * model.c has what all families do alike: the tensor table, memory, the order of a pass, the head,
 * and the names of places. A family brings its lists of tensors and activations, and its
 * mathematics: struct lks__model_ops. Its own state is a struct that begins with a lks__model. */
#ifndef LKS_MODEL_FRAME_H
#define LKS_MODEL_FRAME_H

#include "model/carve.h"
#include "model/head.h"
#include "model/model.h"

struct lks__model {
    lks__model_config c;
    const struct lks__model_ops *ops; /* the family's */
    const lks__table *table;
    lks__device *device;
    const lks__layers *layers; /* the device's, and what they take */
    const lks__exec *ex;
    size_t max_rows, C, V;
    size_t act_bytes;         /* of an element of activations */
    bool forward_only;        /* no backward */
    lks__recompute recompute; /* the config's; without backward BLOCK, which needs least memory */
    void *once;       /* the family's offsets of the tensors outside the layers: in its struct */
    void *lt, *la;    /* [n_layer] its structs of a layer's offsets, of a layer's activations */
    lks__act *x0;     /* [rows, C]: what goes into the first layer */
    lks__act *y, *dy; /* [rows, C]: what goes into the head, and its gradient */
    size_t head_w;    /* offset of the head's matrix [V, C] ... */
    int head_group;   /* ... and the group of its gradient */
    /* Backward ends with layer `lowest`, and there with the part that has the tensor of row
     * `lowest_field`: no trained tensor lies before it in forward. Without frozen tensors lowest is
     * -1, the embedding; n_layer: only what stands behind the layers; n_layer + 1: the head. */
    int lowest;
    size_t lowest_field;
    lks__head head;
    void *arena; /* activations and work space of one pass: nothing in it is kept for the next */
    size_t arena_bytes;
};

/* Keys and values of all layers, for passes over new tokens: [n_layer, sequences, heads, T, hs]
 * each; `k` and `v` begin at the pass's first sequence. */
typedef struct lks__kv {
    lks__act *k, *v;
    size_t layer; /* elements from one layer to the next */
    size_t T, at; /* positions, and how many are filled */
} lks__kv;

/* One pass through a model: what forward and backward share. */
typedef struct lks__pass {
    void *m; /* the family's struct */
    const float *params;
    const lks__micro_batch *mb;
    const lks__backward *bw; /* NULL: evaluation */
    size_t rows;
    /* Not NULL: the sequences go on after kv->at tokens. Products and attention are those for new
     * tokens, and positions begin at kv->at. */
    const lks__kv *kv;
    /* Only layer_forward() sees it: the layer's output is known, and backward needs all else that
     * forward makes. */
    bool again;
} lks__pass;

/* Where the gradient of the tensor at `offset` goes; NULL: it is frozen, or there is no such tensor
 * (SIZE_MAX). */
static inline float *lks__grad_at(const lks__pass *p, int group, size_t offset)
{
    const struct lks__model *m = p->m;
    return offset < m->table->trained_count ? lks__backward_grads(p->bw, group) + offset : NULL;
}

/* Does backward go on from the tensor of row `field` in `layer` to what comes before it in forward?
 * For families whose rows are in forward order. */
static inline bool lks__goes_on(const lks__pass *p, int layer, size_t field)
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

/* Attention of layer `layer`: over the pass's sequences, or also over the tokens before. */
void lks__pass_attention(const lks__pass *p, int layer, const lks__attention_shape *shape,
                         lks__act *out, float *lse, const lks__attention_in *in,
                         const lks__dropout *drop);

/* What forward makes of a layer for backward: one row of a family's list, whose last row is the
 * layer's output.
 *
 * `of`: ACTS for activations, FLOATS for numbers that are floats on every device, as statistics of
 * rows are.
 *
 * `again`: from this way of --recompute on backward makes it again, and it has memory once for all
 * layers. With ROWS the family's layer_backward() makes it before it is used. With BLOCK model.c
 * calls layer_forward() once more before; that call may leave out what is made again with ROWS.
 * `work`: that memory is the family's work space, which nothing else uses from the time when
 * forward or backward makes the activation until it is read for the last time. */
typedef struct lks__activation_row {
    size_t field; /* of the pointer in the family's struct of a layer's activations */
    enum { LKS__OF_ACTS, LKS__OF_FLOATS } of;
    size_t width;          /* elements of each of the pass's rows */
    const char *module;    /* whose output it is (ACTS), for messages; NULL: of none */
    lks__recompute again;  /* NEVER: each layer has its own memory for it */
    lks__act *const *work; /* NULL: memory of its own */
} lks__activation_row;

#define LKS__ACTIVATION_FIELD(field, of, ...) LKS__ELEMENT_##of *field;
#define LKS__ELEMENT_ACTS                     lks__act
#define LKS__ELEMENT_FLOATS                   float

enum { LKS__MOST_ACTIVATIONS = 16 };

struct lks__model_ops {
    /* --- tensors and activations --- */
    /* Opens the table and adds the tensors; lks__model_table() lays them out. */
    lks_status (*table)(const lks__model_config *config, lks__table *table);
    uint64_t (*init)(const lks__model_config *config, const lks__table *table, lks__mt *g,
                     float *params);
    double (*flops_per_token)(const lks__model_config *config, const lks__table *table);
    /* For a tensor outside the layers: the lowest layer whose backward adds to its gradient (as
     * lks__model.lowest). NULL: -1 for all that group 0 of n_layer + 2 doesn't have. */
    int (*lowest)(const lks__model_config *config, const lks__tensor *t);
    size_t bytes, once, layer_tensors, layer_activations; /* of its structs; once: offset in it */
    size_t once_bytes;
    bool positions;                   /* learned, so that block_size is the longest context */
    const char *layer, *first, *last; /* module names: of layers ("transformer.h", to which ".3."
                                       * is added), of what has x0 and y as its output */

    /* --- memory --- */
    lks_status (*check)(const lks__model_config *config, int batch); /* more than table() does */
    void (*size)(void *m); /* sizes of its own, head_w, head_group */
    int (*activations)(const void *m, lks__activation_row rows[LKS__MOST_ACTIVATIONS]);
    /* x0, y, dy, work space, and the head's logits, which may share memory with something. model.c
     * carves the layers' activations. */
    void (*carve)(void *m, lks__carver *v);
    /* What lies outside the arena; or NULL. */
    lks_status (*open)(void *m);
    void (*close)(void *m);
    size_t (*more_bytes)(const void *m);

    /* Heads of keys and values in a layer. NULL: the family's passes don't use lks__pass.kv, and
     * each new token takes a pass over its whole context. */
    int (*kv_heads)(const lks__model_config *config);

    /* --- the pass, in the order of the calls --- */
    void (*embed_forward)(const lks__pass *p);            /* tokens to x0 */
    void (*layer_forward)(const lks__pass *p, int layer); /* to the next layer's input, unless
                                                           * `again` */
    void (*last_forward)(const lks__pass *p);             /* to y */
    void (*last_backward)(const lks__pass *p);            /* from dy */
    void (*layer_backward)(const lks__pass *p, int layer);
    void (*embed_backward)(const lks__pass *p);
};

/* A model for forward passes of at most `rows` rows. ERR_NOMEM, ERR_CONFIG. */
lks_status lks__model_open_forward(const lks__model_config *config, const lks__table *table,
                                   size_t rows, lks__device *device, lks__model **model_p);
/* Bytes of its activations. */
lks_status lks__model_forward_bytes(const lks__model_config *config, size_t rows,
                                    const lks__layers *layers, size_t *bytes_p);

/* Tokens to the head's input. */
void lks__model_forward(const lks__pass *p);

#endif
