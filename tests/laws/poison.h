/* laws/poison.h - runs that meet a number that isn't finite, and checkpoints that were altered.
 *
 * The cause is as in practice: one token's embedding is NaN (in an altered checkpoint with right
 * hashes), so exactly the micro-batches that read that token have no finite loss. The model is
 * golf's, whose head has its own weights. The data have the token in iterations 5 and 6: first in
 * micro-batch 1 of virtual rank 2, then in 0 of 0 and 1 of 3. */
#pragma once

#include "laws.h"

enum { POISON_V = 4, POISON_A = 2, POISON_T = 16, POISON_VOCAB = 64 };

/* Write the data, shards of golf's, into `dir`; and the folder where this program keeps them. */
void poison_write_data(const char *dir);
const char *poison_data(void);

/* "lockstep train" on them, on W ranks of its own (0: no such setting), with a checkpoint every 2
 * iterations and no time limit. */
law_args poison_train(const char *out, int W);

/* Alter the newest checkpoint of a run and compute all hashes again: `change` gets each tensor of
 * model or optimizer. */
enum poison_part { POISON_MODEL, POISON_OPTIMIZER };
typedef void poison_change(const char *name, float *x, size_t n, size_t width);
void poison_alter(const char *out, enum poison_part part, poison_change *change);
/* The same for the checkpoint of an iteration. `latest` names it afterwards. */
void poison_alter_at(const char *out, uint64_t iter, enum poison_part part, poison_change *change);

/* Make the token's embedding NaN; change one weight to another finite one; change one moment. */
void poison_embedding(const char *out);
void poison_weight(const char *out);
void poison_moment(const char *out);
/* Set only a member of state.json; its best validation loss; or the kernels' fingerprint. */
void poison_state(const char *out, const char *member, json_t *value);
void poison_value(const char *out);
void poison_fingerprint(const char *out);
