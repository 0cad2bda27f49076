/* tests/attention/reference.h - attention written down plainly in double, with its T x T matrices:
 * what the blocked version is compared with. */
#ifndef LKS_TESTS_ATTENTION_REFERENCE_H
#define LKS_TESTS_ATTENTION_REFERENCE_H

#include "kernels/layers.h"

/* Shapes as in kernels/layers.h. `mask` [B,NH,T,T]: each probability's factor; NULL: all 1. */
void reference_fwd(const lks__attention_shape *shape, double *out, double *lse, const double *qkv,
                   const double *mask);
void reference_bwd(const lks__attention_shape *shape, double *dqkv, const double *dout,
                   const double *qkv, const double *mask);

/* The factors that `drop` stands for, from Philox as the design fixes its counter. */
void reference_mask(const lks__attention_shape *shape, double *mask, const lks__dropout *drop);

#endif
