/* optim/muon.h - Muon (Jordan et al., 2024) over the matrices of a tensor table: momentum,
 * Nesterov, and orthogonalized updates, as in parameter-golf's train_gpt.py. Everything is float32,
 * except the products of Newton-Schulz if the exec uses bfloat16. */
#ifndef LKS_OPTIM_MUON_H
#define LKS_OPTIM_MUON_H

#include "kernels/exec.h"
#include "model/table.h"

/* Decide which rank of W updates each tensor: owner[n_tensors] out, -1 for tensors that aren't
 * matrices of Muon's. The most expensive matrix goes to the rank with the least work so far, and
 * so on; all ranks get the same result. Which rank updates a matrix changes no bit of it.
 * ERR_NOMEM. */
lks_status lks__muon_assign(const lks__table *table, int W, int *owner);

typedef struct lks__muon lks__muon; /* a rank's matrices and work space */

/* `ex` and `table` must outlive it. A rank with a private replica updates all of it: W = 1, rank =
 * 0. */
lks_status lks__muon_open(const lks__exec *ex, const lks__table *table, int W, int rank,
                          lks__muon **muon_p);
void lks__muon_close(lks__muon *muon); /* NULL does nothing */

/* Work in `memory` instead of own memory, if it is large enough. It is aligned to 64 bytes, and
 * unused during updates. If it has room for each thread, each works on a matrix of its own. */
void lks__muon_borrow(lks__muon *muon, void *memory, size_t bytes);

typedef struct lks__muon_step {
    double lr, momentum;
    double clip;  /* factor for the gradient */
    int ns_steps; /* Newton-Schulz iterations */
} lks__muon_step;

/* For each matrix [rows, cols] of this rank, in arenas of the table:
 *   momentum = m * momentum + g;  u = g + m * momentum;
 *   params -= lr * sqrt(max(1, rows / cols)) * newton_schulz(u). */
void lks__muon_update(lks__muon *muon, const lks__muon_step *step, float *params, float *momentum,
                      const float *grads);

#endif
