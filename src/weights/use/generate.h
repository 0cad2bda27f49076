/* weights/use/generate.h - text from a trained model (nanoGPT's GPT.generate): several samples of
 * one prompt at a time.
 *
 * Each sample has its own random numbers. Its text depends on model, prompt, seed and its number,
 * but not on the number of other samples, on threads, or on how the prompt is cut into passes. It
 * is the same on all machines of one kernel level. The context is the last block_size tokens; once
 * it is full, each token needs a pass over the whole window. */
#pragma once

#include <stdint.h>

#include "model/model.h"
#include "weights/use/draw.h"

typedef struct lks__generator lks__generator; /* opaque; close with lks__generator_close() */

typedef struct lks__generator_size {
    size_t samples;
    uint64_t tokens; /* per sample, its prompt included; more than block_size count as block_size */
    size_t chunk;    /* most tokens of a prompt in one pass; 0: the default */
} lks__generator_size;

/* Allocate all memory that generation needs. `config` is copied; `table`, `params` (memory of the
 * device) and `device` are borrowed. The message of ERR_NOMEM names the bytes. */
lks_status lks__generator_open(const lks__model_config *config, const lks__table *table,
                               const float *params, const lks__generator_size *size,
                               lks__device *device, lks__generator **generator_p);
void lks__generator_close(lks__generator *g); /* NULL does nothing */

/* Start over: `samples` texts with an empty context, at most as many as it was opened for. */
void lks__generator_begin(lks__generator *g, size_t samples);

/* Append n >= 1 tokens to the context of every sample. */
void lks__generator_read(lks__generator *g, const int32_t *tokens, size_t n);

typedef struct lks__generate {
    lks__draw_options draw;
    uint32_t first; /* number of the first sample */
    uint64_t max_new_tokens;
    /* Receives each token as it is drawn; `sample` counts from 0. *end_p = true ends that text; a
     * failure ends all. */
    lks_status (*sink)(void *ctx, size_t sample, int32_t token, bool *end_p);
    void *ctx;
} lks__generate;

/* Draw the tokens that follow those read; none follow an empty context. The n-th token since
 * lks__generator_begin() is drawn with the n-th number of its sample. lks__sys_stop_when() ends it
 * between passes (ERR_STOPPED); afterwards more can be read and written. */
lks_status lks__generator_write(lks__generator *g, const lks__generate *how);
