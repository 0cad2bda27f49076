/* model/init.h - initial parameters, as nanoGPT's model.py draws them from PyTorch's CPU generator.
 *
 * Construction draws too (embeddings N(0,1), then each Linear's default uniforms), then the model's
 * own init in module order, in which the tied embedding is drawn twice and the second draw stays,
 * then every c_proj.weight again. All of it advances the generator. */
#ifndef LKS_MODEL_INIT_H
#define LKS_MODEL_INIT_H

#include "base/rng.h"
#include "model/table.h"

/* Fill `params` (an arena of table->count floats, zeroed) and advance `g`. With params == NULL only
 * count: returns the 32-bit draws that the generator makes, and leaves `g` alone (may be NULL). */
uint64_t lks__init_gpt2(const lks__model_config *config, const lks__table *table, lks__mt *g,
                        float *params);

#endif
