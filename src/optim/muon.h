/* optim/muon.h - Muon (Jordan et al., 2024) over the matrices of a table: momentum, Nesterov, and
 * orthogonalized updates; layers.h has the formula. */
#ifndef LKS_OPTIM_MUON_H
#define LKS_OPTIM_MUON_H

#include "layers/device.h"
#include "model/table.h"

/* Which rank of W updates each tensor: owner[n_tensors] out, -1 where it isn't a matrix of Muon's.
 * The matrix that costs most goes to the rank that has least so far, and so on; equal on all ranks.
 * Which rank updates a matrix changes no bit of it. ERR_NOMEM. */
lks_status lks__muon_assign(const lks__table *table, int W, int *owner);

typedef struct lks__muon lks__muon; /* a rank's matrices and work space */

/* Floating-point operations of `steps` Newton-Schulz iterations: Gram matrix and polynomial are
 * symmetric, and half of each is enough. */
double lks__muon_flops(size_t rows, size_t cols, int steps);

/* `device` and `table` outlive it. A private replica is updated whole: W = 1, rank = 0. */
lks_status lks__muon_open(lks__device *device, const lks__table *table, int W, int rank,
                          lks__muon **muon_p);
void lks__muon_close(lks__muon *muon); /* NULL is fine */

/* Work in `memory` of the device, aligned to 64 bytes and free for that during updates, if it is
 * large enough, instead of memory of its own. More of it may be faster. */
void lks__muon_borrow(lks__muon *muon, void *memory, size_t bytes);

typedef struct lks__muon_step {
    double lr, momentum;
    double clip;  /* the gradient is multiplied by this first */
    int ns_steps; /* Newton-Schulz iterations */
} lks__muon_step;

/* Update each matrix of this rank; all three arenas are the table's. */
void lks__muon_update(lks__muon *muon, const lks__muon_step *step, float *params, float *momentum,
                      const float *grads);

#endif
