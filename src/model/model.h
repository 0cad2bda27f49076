/* model/model.h - the interface of a model of any family. It doesn't depend on ranks. B sequences
 * of T tokens are `rows` = B*T rows everywhere.
 *
 * Parameters, gradients, tokens, losses and logits are memory of the model's device. A call queues
 * its work on the compute queue; the results are valid after a wait. */
#pragma once

#include <stdint.h>

#include "base/number/rng.h"
#include "compute/device.h"
#include "model/table/table.h"

typedef struct lks__model lks__model; /* opaque; close with lks__model_close() */

/* Called for each group of the table that has trained tensors when its gradient is complete, in
 * order (0, 1, …). */
typedef void lks__group_done_fn(void *ctx, int group);

typedef struct lks__micro_batch {
    const int32_t *tokens, *targets; /* [B * T], ids below vocab_size */
    int B, T;
} lks__micro_batch;

enum { LKS__PLACE = 64 }; /* bytes of a module's name */

/* The output of a module ("transformer.h.2.mlp.c_fc"), in memory of the device. */
typedef struct lks__output {
    char module[LKS__PLACE];
    const lks__act *x;         /* [rows, width] */
    size_t rows, width, bytes; /* bytes per element */
} lks__output;

typedef void lks__output_fn(void *ctx, const lks__output *output);

typedef struct lks__backward {
    float *grads; /* arena; the gradient of the micro-batch's mean loss is added to it */
    /* [n_groups], or NULL. With shift, `grads` is a staging buffer, and group g begins shift[g]
     * floats before its place in an arena. All groups but the last may share one place: each is
     * written between the calls of `done` for the previous group and for itself. */
    const size_t *shift;
    /* The gradients of tensors that the table calls overwritten have no contents yet: this
     * micro-batch's replace what their memory holds. */
    bool fresh;
    uint64_t seed;            /* key of dropout, and the first two words of its counter */
    uint32_t step, vm;        /* vm = virtual rank << 16 | micro-step */
    lks__group_done_fn *done; /* or NULL */
    void *done_ctx;
    /* Called in forward for each module's output, in order, once its work is on the queue; the
     * output is valid until the call returns. Or NULL. */
    lks__output_fn *output;
    void *output_ctx;
    /* Called after each layer, forward and backward: counts as a heartbeat. None for a device
     * that computes later; there the waits report progress. */
    lks__beat beat;
} lks__backward;

/* The address that offsets of `group`'s tensors are relative to. */
static inline float *lks__backward_grads(const lks__backward *bw, int group)
{
    size_t shift = bw->shift == NULL ? 0 : bw->shift[group];
    return (float *)((uintptr_t)bw->grads - shift * sizeof(float));
}

/* The tensor table of the config's family. ERR_CONFIG if the sizes don't fit together. */
lks_status lks__model_table(const lks__model_config *config, lks__table *table);
/* Its tensors only, without offsets and blocks. The size depends only on n_layer, so the call is
 * safe for unchecked sizes from a file. */
lks_status lks__model_tensors(const lks__model_config *config, lks__table *table);

/* Draw initial parameters as in the family's PyTorch script: fill `params` (a zeroed arena in the
 * host's memory, which the caller copies to the device) and advance `g`. With params == NULL only
 * count the 32-bit draws and don't advance `g`, which may be NULL. */
uint64_t lks__model_init(const lks__model_config *config, const lks__table *table, lks__mt *g,
                         float *params);

/* Bytes of activations for `batch` sequences of block_size tokens on the device of `layers`. */
lks_status lks__model_activation_bytes(const lks__model_config *config, int batch,
                                       const lks__layers *layers, size_t *bytes_p);

/* Allocate everything that a step needs, in memory of the device. `config` is copied, `table` and
 * `device` are borrowed. The device's exec determines the type of products' operands (bfloat16). */
lks_status lks__model_open(const lks__model_config *config, const lks__table *table, int batch,
                           lks__device *device, lks__model **model_p);
/* The same for forward passes only, of at most `rows` rows together: layers share the memory of
 * their activations. */
lks_status lks__model_open_forward(const lks__model_config *config, const lks__table *table,
                                   size_t rows, lks__device *device, lks__model **model_p);
void lks__model_close(lks__model *model); /* NULL does nothing */

/* Forward and backward of one micro-batch. *loss: the mean loss (rows summed in double, in order);
 * NULL: not computed. */
void lks__model_train(lks__model *model, const float *params, const lks__micro_batch *mb,
                      const lks__backward *bw, float *loss);

/* *loss: the mean loss without dropout and gradients. */
void lks__model_loss(lks__model *model, const float *params, const lks__micro_batch *mb,
                     float *loss);

/* losses[B * T]: each row's loss, without dropout and gradients. */
void lks__model_row_losses(lks__model *model, const float *params, const lks__micro_batch *mb,
                           double *losses);

/* Find where a training pass over `mb` first produces a non-finite number: the module with this
 * output ("transformer.h.2.mlp.c_fc"), or the head if all modules before it are finite. For
 * messages; costs a forward pass and a wait. Only the keys and the beat of `bw` are used. */
lks_status lks__model_find_bad(lks__model *model, const float *params, const lks__micro_batch *mb,
                               const lks__backward *bw, char place[LKS__PLACE]);

/* Work memory of the device that is unused between the calls above. Others may use it meanwhile:
 * the next pass overwrites it. */
void *lks__model_scratch(lks__model *model, size_t *bytes_p);

/* Model FLOPs of one token of a sequence of block_size, forward and backward (PaLM, appendix B),
 * without those that frozen tensors make unnecessary. */
double lks__model_flops_per_token(const lks__model_config *config, const lks__table *table);

/* True if the model has parameters for each position, so that block_size is the longest context. */
bool lks__model_has_positions(const lks__model_config *config);

/* The families (model/frame.h). */
extern const struct lks__model_ops lks__model_gpt2, lks__model_golf;
