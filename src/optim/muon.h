/* optim/muon.h - Muon (Jordan et al., 2024) over the matrices of a table: momentum, Nesterov, and
 * orthogonalized updates, as parameter-golf's train_gpt.py has it. Everything is float32, but for
 * Newton-Schulz products where the exec is for bfloat16. */
#ifndef LKS_OPTIM_MUON_H
#define LKS_OPTIM_MUON_H

#include "kernels/exec.h"
#include "model/table.h"

/* Which rank of W updates each tensor: owner[n_tensors] out, -1 where it isn't a matrix of Muon's.
 * The matrix that costs most goes to the rank that has least so far, and so on; equal on all ranks.
 * Which rank updates a matrix changes no bit of it. ERR_NOMEM. */
lks_status lks__muon_assign(const lks__table *table, int W, int *owner);

typedef struct lks__muon lks__muon; /* a rank's matrices and work space */

/* `ex` and `table` outlive it. A private replica is updated whole: W = 1, rank = 0. */
lks_status lks__muon_open(const lks__exec *ex, const lks__table *table, int W, int rank,
                          lks__muon **muon_p);
void lks__muon_close(lks__muon *muon); /* NULL is fine */

/* Work in `memory`, aligned to 64 bytes and free for that during updates, where it is large enough,
 * instead of memory of its own; where it has room for each thread, on a matrix for each. */
void lks__muon_borrow(lks__muon *muon, void *memory, size_t bytes);

typedef struct lks__muon_step {
    double lr, momentum;
    double clip;  /* the gradient is multiplied by this first */
    int ns_steps; /* Newton-Schulz iterations */
} lks__muon_step;

/* For each matrix [rows, cols] of this rank, all three arenas being the table's:
 *   momentum = m * momentum + g;  u = g + m * momentum;
 *   params -= lr * sqrt(max(1, rows / cols)) * newton_schulz(u). */
void lks__muon_update(lks__muon *muon, const lks__muon_step *step, float *params, float *momentum,
                      const float *grads);

#endif
