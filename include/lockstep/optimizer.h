/* lockstep/optimizer.h - optimizers for any program's parameters: AdamW, SGD with momentum, Muon.
 * They compute the same bits as those of `lockstep train`.
 *
 *     const lks_optimizer_param params[] = {{"w1", w1, gw1, LKS_PARAM_MATRIX, HIDDEN, IN},
 *                                           {"b1", b1, gb1, LKS_PARAM_VECTOR, HIDDEN, 1}};
 *     lks_optimizer_open(comm, LKS_ADAMW, params, 2, &optimizer);
 *     for (;;) {
 *         the gradients of a step, for example by lks_ddp_step() and lks_ddp_clip()
 *         lks_optimizer_step(optimizer, &rates);
 *     }
 *
 * With a group, its ranks divide the updates, and each rank stores only its part of the moments, as
 * in ZeRO-1. A step then sends the new values to the other ranks. The division changes no bit: one
 * rank alone, with comm NULL, computes the same. Calls are then collective. Rates, gradients and
 * values must be equal on all ranks. They aren't compared, and the exchange of new values hides a
 * difference from lks_ddp_verify(), so run the program once with LOCKSTEP_CHECK=1 in its
 * environment: then lks_optimizer_step() compares their hashes, and returns ERR_DIVERGED with the
 * first that differs.
 *
 * Use an optimizer from one thread at a time. In a child of fork(), calls of one with a group
 * return ERR_ARG, and lks_optimizer_close() only frees the child's memory. */
#ifndef LOCKSTEP_OPTIMIZER_H
#define LOCKSTEP_OPTIMIZER_H

#include <stddef.h>

#include "lockstep/checkpoint.h"
#include "lockstep/comm.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct lks_optimizer lks_optimizer; /* opaque; close with lks_optimizer_close() */

typedef enum lks_optimizer_rule {
    LKS_ADAMW = 1, /* torch.optim.AdamW; matrices and embeddings decay */
    LKS_SGD = 2,   /* torch.optim.SGD with momentum; matrices and embeddings decay: it is added to
                    * the gradient */
    LKS_MUON = 3,  /* Muon for LKS_PARAM_MATRIX, Adam without decay for the others */
} lks_optimizer_rule;

typedef enum lks_param_kind {
    LKS_PARAM_VECTOR = 1, /* a bias or a gain: doesn't decay. torch.optim decays all parameters of a
                           * group: for its numbers, use LKS_PARAM_EMBED for those of cols = 1 */
    LKS_PARAM_MATRIX = 2, /* of a hidden layer */
    LKS_PARAM_EMBED = 3,  /* an embedding, or the output's matrix: Muon leaves it to Adam */
} lks_param_kind;

typedef struct lks_optimizer_param {
    const char *name;  /* for checkpoints and messages, unique; copied */
    float *value;      /* [rows * cols]; the caller's, while the optimizer is open */
    const float *grad; /* [rows * cols]; the caller's, or lks_ddp_gradient()'s. Read by each step */
    lks_param_kind kind;
    size_t rows, cols; /* row-major, each at least 1; a matrix is [out, in] */
} lks_optimizer_param;

/* The numbers of one step. 0 means 0: no member has a default. If an update needs a member that is
 * 0, lks_optimizer_step() returns ERR_ARG, with the usual values. Muon refuses a weight_decay other
 * than 0, because it decays only matrices, by matrix_decay. */
typedef struct lks_rates {
    double learning_rate; /* of AdamW, Adam and SGD */
    double weight_decay;  /* of AdamW and SGD; usual: 0.1 for AdamW */
    double beta1, beta2;  /* of AdamW and Adam, in [0, 1), beta2 more than 0; usual: 0.9 and 0.95
                           * (PyTorch: 0.999). beta1 is SGD's momentum */
    double epsilon;       /* of AdamW and Adam, more than 0; usual: 1e-8 */
    /* For Muon's matrices: learning rate, momentum, decoupled decay, Newton-Schulz iterations (1 to
     * 100). Usual: 0.02, 0.95, 0, 5. */
    double matrix_rate, matrix_momentum, matrix_decay;
    int matrix_steps;
} lks_rates;

/* `comm`: the ranks that divide the updates; NULL: none, each rank updates everything itself. Ranks
 * with different parameters get ERR_DIVERGED with rank and parameter. If a rank has no memory, all
 * get ERR_NOMEM or ERR_PEER with that rank. An argument that is wrong by itself is ERR_ARG only on
 * this rank.
 */
lks_status lks_optimizer_open(lks_comm *comm, lks_optimizer_rule rule,
                              const lks_optimizer_param *params, size_t n,
                              lks_optimizer **optimizer_p);
void lks_optimizer_close(lks_optimizer *optimizer); /* once; NULL does nothing */

/* Update all parameters. Rates that can't be used are ERR_ARG only on this rank, and nothing
 * changes. After ERR_PEER or ERR_TIMEOUT, some parameters have new values and others old ones. */
lks_status lks_optimizer_step(lks_optimizer *optimizer, const lks_rates *rates);

/* The state as tensors for lks_checkpoint_save() and lks_checkpoint_load(): the number of steps as
 * "optimizer.steps", and the moments as "NAME.exp_avg", "NAME.exp_avg_sq" or "NAME.momentum". The
 * list belongs to the optimizer and keeps its addresses until lks_optimizer_close(). With a group,
 * every rank first gets the parts of the others, which the next step frees, so call it before each
 * save: a step leaves in the list a negative number of steps, with which lks_checkpoint_save()
 * returns ERR_ARG under any name, and after a load of it lks_optimizer_step(), too. Before a load,
 * call it once for the list: the load writes to the optimizer's own memory, and the next
 * lks_optimizer_step() continues from there. With two optimizers in one checkpoint (for two
 * learning rates), copy the lists and rename "optimizer.steps" in one of them. */
lks_status lks_optimizer_state(lks_optimizer *optimizer, const lks_tensor **tensors_p, size_t *n_p);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
