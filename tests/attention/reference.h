/* tests/attention/reference.h - plain attention in double, with its T x T matrices: the reference
 * for the blocked version. */
#pragma once

#include "compute/cpu/layers.h"

/* Shapes as in compute/cpu/layers.h. `mask` [B,NH,T,T]: each probability's factor; NULL: all 1. */
void reference_fwd(const lks__attention_shape *shape, double *out, double *lse, const double *qkv,
                   const double *mask);
void reference_bwd(const lks__attention_shape *shape, double *dqkv, const double *dout,
                   const double *qkv, const double *mask);

/* The factors of `drop`, from Philox with the counter that rng.h defines. */
void reference_mask(const lks__attention_shape *shape, double *mask, const lks__dropout *drop);
