/* use/generate.h - text from a trained model (nanoGPT's GPT.generate). */
#ifndef LKS_USE_GENERATE_H
#define LKS_USE_GENERATE_H

#include <stdint.h>

#include "model/model.h"

typedef struct lks__generate_options {
    uint64_t seed;
    uint32_t sample; /* number of the sample: each has its own draws */
    uint64_t max_new_tokens;
    double temperature; /* > 0; divides the logits */
    uint32_t top_k;     /* only tokens whose logit reaches the k-th largest; 0: all */
} lks__generate_options;

/* Append tokens to prompt[n], each drawn from softmax(logits / temperature) with the uniform number
 * Philox(seed; token, sample, SITE_SAMPLE): the same seed gives the same text on all machines of
 * one kernel level. The context is the last block_size tokens. `sink` gets each token as it is
 * drawn. A failure of `sink` ends the text, and so does lks__sys_stop_when() between tokens.
 * `model` was opened with a batch of 1. */
lks_status lks__generate(lks__model *model, const lks__model_config *config, const float *params,
                         const lks__generate_options *options, const int32_t *prompt, size_t n,
                         lks_status (*sink)(void *ctx, int32_t token), void *ctx);

#endif
