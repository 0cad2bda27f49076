/* model/golf_table.h - tensors and initial values of the golf family. */
#ifndef LKS_MODEL_GOLF_TABLE_H
#define LKS_MODEL_GOLF_TABLE_H

#include <stdint.h>

#include "base/rng.h"
#include "model/table.h"

lks_status lks__table_golf(const lks__model_config *config, lks__table *table);

/* For struct lks__model_ops. The draws are those of train_gpt.py's GPT(...). */
uint64_t lks__init_golf(const lks__model_config *config, const lks__table *table, lks__mt *g,
                        float *params);

/* Number of layers in the U-net's first half, whose outputs go to the second half; that has as many
 * layers or one more. */
size_t lks__golf_encoders(const lks__model_config *config);

#endif
