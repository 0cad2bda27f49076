/* models.h - small models of both families, for tests of what every model does. */
#pragma once

#include "support.h"

#include "model/frame.h"

/* Three layers (golf: one of the encoder, two of the decoder), and no size equals another. */
typedef struct small_model {
    const char *name;
    lks__model_config config;
} small_model;

enum { N_SMALL_MODELS = 4 };
extern const small_model small_models[N_SMALL_MODELS];

/* An open model with weights far from zero everywhere, and a micro-batch of three sequences, in
 * which one token occurs once, at the very end. */
enum { SMALL_B = 3, SMALL_T = 7, SMALL_VOCAB = 29, SMALL_LAST = SMALL_VOCAB - 1 };

typedef struct small_run {
    lks__model_config config;
    lks__table table;
    lks__model *model;
    float *params;
    int32_t tokens[SMALL_B * SMALL_T], targets[SMALL_B * SMALL_T];
    lks__micro_batch mb;
} small_run;

/* Logits [vocab_size] of the token after tokens[0, T); T <= block_size. */
void models_logits(lks__model *model, const float *params, const int32_t *tokens, int T,
                   float *logits);

/* For passes whose gradients are read at the end only. */
void models_ignore_group(void *ctx, int group);

int small_open_exec(void **state); /* for lks_test_run_all() */
int small_close_exec(void **state);
void small_open(const small_model *m, small_run *run);
void small_close(small_run *run);
