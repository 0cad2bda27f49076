/* weights/use/generate.h - text from a trained model (nanoGPT's GPT.generate): samples of one
 * prompt, side by side.
 *
 * Each has its own draws. A sample's text depends on model, prompt, seed and its number, but not
 * on how many others are computed beside it, on threads, or on the cuts of the prompt. It is the
 * same on all machines of one kernel level. The context is the last block_size tokens; once that is
 * full, each token takes a pass over the whole window. */
#ifndef LKS_WEIGHTS_USE_GENERATE_H
#define LKS_WEIGHTS_USE_GENERATE_H

#include <stdint.h>

#include "model/model.h"
#include "weights/use/draw.h"

typedef struct lks__generator lks__generator; /* opaque; close with lks__generator_close() */

typedef struct lks__generator_size {
    size_t samples;
    uint64_t tokens; /* of a sample, its prompt included; more than block_size count as that */
    size_t chunk;    /* most tokens of a prompt in one pass; 0: the default */
} lks__generator_size;

/* All memory that text needs. `config` is copied; `table`, `params` (memory of the device) and
 * `device` are borrowed. ERR_NOMEM gives the bytes. */
lks_status lks__generator_open(const lks__model_config *config, const lks__table *table,
                               const float *params, const lks__generator_size *size,
                               lks__device *device, lks__generator **generator_p);
void lks__generator_close(lks__generator *g); /* NULL does nothing */

/* Begin anew: `samples` texts with an empty context, at most as many as it was opened for. */
void lks__generator_begin(lks__generator *g, size_t samples);

/* Put n >= 1 tokens behind the context of every sample. */
void lks__generator_read(lks__generator *g, const int32_t *tokens, size_t n);

typedef struct lks__generate {
    lks__draw_options draw;
    uint32_t first; /* number of the first sample */
    uint64_t max_new_tokens;
    /* Gets each token as it is drawn; `sample` counts from 0. *end_p = true ends that text; a
     * failure ends all. */
    lks_status (*sink)(void *ctx, size_t sample, int32_t token, bool *end_p);
    void *ctx;
} lks__generate;

/* Draw the tokens that follow what was read. The n-th token since lks__generator_begin() is drawn
 * with the n-th number of its sample. lks__sys_stop_when() ends it between passes (ERR_STOPPED);
 * afterwards more can be read and written. */
lks_status lks__generator_write(lks__generator *g, const lks__generate *how);

#endif
