/* train/micro.h - a micro-batch of a step: its tokens and its pass. */
#pragma once

#include "train/trainer.h"

/* The arguments of backward for micro-batch m of virtual rank v in this iteration, without `done`
 * and `shift`. The random numbers of dropout are keyed by (seed, step, v, m). */
lks__backward lks__train_pass(const lks__trainer *t, int v, int m, float *grads);
/* Read the micro-batch's tokens and queue their copy to the device. */
lks_status lks__train_read(lks__trainer *t, int v, int m, lks__micro_batch *mb);
/* Run it alone: add its gradient to `grads`, an arena of the device, and announce no group. */
lks_status lks__train_alone(lks__trainer *t, int v, int m, float *grads);
/* Compute the gradient of virtual rank v in the reducer's spare arena, and its hash. For devices
 * whose memory is the host's. Call it after begin_step(); ERR_STOPPED if a rank was asked to stop.
 */
lks_status lks__train_leaf(lks__trainer *t, int v, uint64_t *hash_p);
