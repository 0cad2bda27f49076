/* model/gpt2.h - the gpt2 family on a CPU: forward and backward by hand, float32.
 *
 * Knows nothing of ranks. B sequences of T tokens are `rows` = B*T rows of C everywhere; the
 * architecture and its names are nanoGPT's model.py. */
#ifndef LKS_MODEL_GPT2_H
#define LKS_MODEL_GPT2_H

#include <stdint.h>

#include "kernels/exec.h"
#include "model/table.h"

typedef struct lks__gpt2 lks__gpt2; /* opaque; close with lks__gpt2_close() */

/* Bytes of activations for `batch` sequences of block_size tokens. */
lks_status lks__gpt2_activation_bytes(const lks__model_config *config, int batch, size_t *bytes_p);

/* Allocates everything a step needs. `config` is copied, `table` and `ex` are borrowed. */
lks_status lks__gpt2_open(const lks__model_config *config, const lks__table *table, int batch,
                          const lks__exec *ex, lks__gpt2 **model_p);
void lks__gpt2_close(lks__gpt2 *model); /* NULL is fine */

/* Told of each group of the table whose gradient is complete, in order (0, 1, …). */
typedef void lks__group_done_fn(void *ctx, int group);

typedef struct lks__micro_batch {
    const int32_t *tokens, *targets; /* [B * T], ids below vocab_size */
    int B, T;
} lks__micro_batch;

typedef struct lks__backward {
    float *grads;            /* arena; gradients of the micro-batch's mean loss are added to it */
    uint64_t seed;           /* dropout's key, and its counter's first two words */
    uint32_t step, vm;       /* vm = virtual rank << 16 | micro-step */
    lks__group_done_fn *done;
    void *done_ctx;
    void (*beat)(void *ctx); /* after each layer, forward and backward: a sign of life */
    void *beat_ctx;
} lks__backward;

/* Forward and backward of one micro-batch; returns the mean loss (rows summed in double, in
 * order). */
float lks__gpt2_train(lks__gpt2 *model, const float *params, const lks__micro_batch *mb,
                      const lks__backward *bw);

/* Mean loss without dropout and gradients. */
float lks__gpt2_loss(lks__gpt2 *model, const float *params, const lks__micro_batch *mb);

/* Logits [vocab_size] of the token after tokens[0, T); T <= block_size. */
void lks__gpt2_logits(lks__gpt2 *model, const float *params, const int32_t *tokens, int T,
                      float *logits);

/* Model FLOPs of one token of a sequence of block_size, forward and backward (PaLM, appendix B, as
 * in nanoGPT's estimate_mfu): 6 N + 12 L C T, N without the position embedding. */
double lks__gpt2_flops_per_token(const lks__model_config *config, const lks__table *table);

#endif
