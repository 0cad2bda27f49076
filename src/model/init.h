/* model/init.h - initial parameters, drawn as nanoGPT's model.py draws them from PyTorch's CPU
 * generator.
 *
 * Construction draws the embeddings from N(0,1), then each Linear's default uniforms. Then the
 * model's own init draws in module order; it draws the tied embedding twice, and the second draw
 * stays. Then every c_proj.weight is drawn again. All of it advances the generator. */
#ifndef LKS_MODEL_INIT_H
#define LKS_MODEL_INIT_H

#include "base/rng.h"
#include "model/table.h"

/* Fill `params` (a zeroed arena of table->count floats) and advance `g`. With params == NULL only
 * return the number of 32-bit draws, and leave `g` alone (it may be NULL). */
uint64_t lks__init_gpt2(const lks__model_config *config, const lks__table *table, lks__mt *g,
                        float *params);

#endif
