/* train/recipe.h - what differs between the two scripts that runs are modelled on: where batches
 * come from, how the loss is estimated, what updates the parameters, when a run ends, how its lines
 * read. The step and the run are the same. */
#ifndef LKS_TRAIN_RECIPE_H
#define LKS_TRAIN_RECIPE_H

#include "artifact/artifact.h"
#include "base/log.h"
#include "train/trainer.h"

/* What a recipe leaves at the end of a run. */
typedef struct lks__finish_result {
    const char *name;          /* the file, in out_dir */
    lks__artifact_stats stats; /* on rank 0 */
    uint64_t model_bytes;      /* of the checkpoint's weights, on rank 0 */
    lks__eval_result eval;     /* of what the file holds */
    double eval_seconds;
} lks__finish_result;

/* What of a tensor this rank updates: its share of the blocks, all of it, or, as another rank
 * updates all of it, nothing. */
enum { LKS__OWNED_BY_BLOCKS = 0, LKS__OWNED_WHOLE, LKS__OWNED_BY_ANOTHER };

struct lks__recipe {
    /* Settings are checked, V, N, A and this rank's place are known. Opens the data and fills in
     * t->meta, t->s.vocab_size, t->data_digest. */
    lks_status (*open_data)(lks__trainer *t);
    /* Table and model are there: samplers and optimizers. */
    lks_status (*open_rest)(lks__trainer *t);
    void (*close)(lks__trainer *t);

    lks_status (*begin_step)(lks__trainer *t); /* before iteration t->iter */
    /* Micro-batch m of virtual rank v of this iteration into t->tokens, t->targets. */
    lks_status (*read)(lks__trainer *t, int v, int m);
    /* Put the update of t->params with the mean gradient, memory of the device, on its queue; fills
     * in r->lr. */
    void (*update)(lks__trainer *t, const float *grads, lks__step_result *r);
    lks_status (*end_step)(lks__trainer *t, lks__step_result *r); /* collective */
    /* owned[n_tensors]: an LKS__OWNED_... each; NULL: all by blocks. */
    lks_status (*owned)(const lks__trainer *t, int *owned);

    uint64_t (*n_steps)(const lks__settings *s);   /* iterations of the whole run */
    bool (*evaluation_due)(const lks__trainer *t); /* before iteration t->iter, or at the end */
    /* Collective; ERR_STOPPED, on all ranks: discarded, since one was asked to stop. */
    lks_status (*evaluate)(lks__trainer *t, lks__eval_result *result);

    /* After the last iteration; NULL: nothing to do. Collective; ERR_STOPPED as above. */
    lks_status (*finish)(lks__trainer *t, lks__finish_result *result);

    /* How the run is laid out, before it begins: the script's own lines. */
    void (*head_lines)(const lks__trainer *t, lks__log *log);
    /* Lines for people, in the script's format; "" for no line. */
    void (*train_line)(const lks__trainer *t, const lks__step_result *r, double mfu, char out[200]);
    void (*eval_line)(const lks__trainer *t, const lks__eval_result *eval, char out[200]);
    void (*finish_lines)(const lks__trainer *t, const lks__finish_result *result, lks__log *log);
};

extern const struct lks__recipe lks__recipe_nanogpt, lks__recipe_golf;

const struct lks__recipe *lks__recipe_of(const lks__settings *s);

/* Blocks that this rank updates, in ranges: its share of the one replica, or all of a private one.
 */
int lks__recipe_n_updates(const lks__trainer *t);
void lks__recipe_update_range(const lks__trainer *t, int i, size_t *first, size_t *end);

/* Work on the parameters' blocks that is divided over the ranks that share them. */
void lks__recipe_share(const lks__trainer *t, size_t *first, size_t *end);

#endif
