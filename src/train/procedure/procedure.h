/* train/procedure/procedure.h - the differences between the two scripts that runs are modelled on:
 * source of batches, estimate of the loss, update of the parameters, end of a run, format of lines.
 * The step and the loop are the same. */
#ifndef LKS_TRAIN_PROCEDURE_PROCEDURE_H
#define LKS_TRAIN_PROCEDURE_PROCEDURE_H

#include "base/log.h"
#include "data/read/source.h"
#include "train/step.h"
#include "weights/artifact/artifact.h"

/* Results of a procedure at the end of a run. */
typedef struct lks__finish_result {
    const char *name;          /* the file, in out_dir */
    lks__artifact_stats stats; /* set on rank 0 */
    uint64_t model_bytes;      /* size of the checkpoint's weights, set on rank 0 */
    lks__eval_result eval;     /* of the model in the file */
    double eval_seconds;
} lks__finish_result;

struct lks__procedure {
    const struct lks__source_ops *data; /* the form of its token files */
    uint32_t vocab_size;                /* of data without meta.json */
    const char *length;                 /* the setting that ends a run ("max_iters") */
    const lks__optimizer *optimizer;    /* the script's, for optimizer=auto */
    /* Seconds of training that end a run, so that checkpoints hold the time; 0: none. NULL: never.
     */
    double (*time_limit)(const lks__settings *s);

    /* Called when settings are checked, and V, N, A and this rank's place are known. Opens the data
     * and sets run->meta, run->s.vocab_size, run->data_digest. */
    lks_status (*open_data)(lks__run *run);
    /* Called when table and model exist: opens samplers and optimizers. */
    lks_status (*open_rest)(const lks__run *run, lks__state *state);
    void (*close)(const lks__run *run, const lks__state *state);

    lks_status (*begin_step)(const lks__state *state,
                             lks__work *work); /* before iteration state->iter */
    /* Read micro-batch m of virtual rank v of this iteration; `tokens` has room for one more. */
    lks_status (*read)(const lks__run *run, const lks__state *state, const lks__work *work, int v,
                       int m, int32_t *tokens, int32_t *targets);
    /* Fill in the rates of iteration state->iter: lr, orthogonal_lr, eps. Returns the one to
     * report. */
    double (*rates)(const lks__run *run, const lks__state *state, lks__rates *rates);
    lks_status (*end_step)(const lks__run *run, const lks__session *ses, lks__state *state,
                           lks__guard *guard, lks__step_result *r); /* collective */

    uint64_t (*n_steps)(const lks__settings *s); /* iterations of the whole run */
    bool (*evaluation_due)(
        const lks__run *run, const lks__state *state,
        const lks__guard *guard); /* before iteration state->iter, or at the end */
    /* Collective; ERR_STOPPED, on all ranks: discarded, because a rank was asked to stop. */
    lks_status (*evaluate)(const lks__run *run, lks__session *ses, const lks__state *state,
                           lks__work *work, lks__eval_result *result);

    /* Called before a run's first step: fails if finish() will, maybe hours from then. NULL: it
     * can't. */
    lks_status (*can_finish)(void);
    /* Called after the last iteration; NULL: nothing to do. Collective; ERR_STOPPED as above. */
    lks_status (*finish)(const lks__run *run, lks__session *ses, const lks__state *state,
                         lks__work *work, lks__finish_result *result);

    /* The script's own file for the log, beside train.log, in a new folder if need be; "": none.
     * NULL: never one. */
    lks_status (*log_path)(const lks__run *run, char out[LKS__SETTING_STR + 16]);
    /* Describe the run before it begins, in the script's own lines. */
    void (*head_lines)(const lks__run *run, const lks__session *ses, lks__log *log);
    /* Lines for people, in the script's format; "" for no line. */
    void (*train_line)(const lks__run *run, const lks__state *state, const lks__guard *guard,
                       const lks__step_result *r, double mfu, char out[200]);
    void (*eval_line)(const lks__run *run, const lks__state *state, const lks__guard *guard,
                      const lks__eval_result *eval, char out[200]);
    void (*finish_lines)(const lks__run *run, const lks__state *state, const lks__guard *guard,
                         const lks__finish_result *result, lks__log *log);
};

extern const struct lks__procedure lks__procedure_nanogpt, lks__procedure_golf;

const struct lks__procedure *lks__procedure_of(const lks__settings *s);

/* Open a split of the folder `dir`, of either form (read/shards.h). *shards_p = NULL if it is the
 * validation split, the folder has none, and the run makes no evaluations. */
lks_status lks__procedure_open_split(const lks__settings *s, const char *dir, int split,
                                     uint32_t vocab_size, lks__shards **shards_p);

/* run->data_dir, by the settings. */
lks_status lks__procedure_find_data(lks__run *run);

/* Read the meta.json of the data folder `dir`, without which the ids have no text; its vocabulary
 * must be that of the settings, unless these leave it open. `began`: with given weights, whose
 * vocabulary the settings have, and of which the data may use less. */
lks_status lks__procedure_meta(const lks__settings *s, const char *dir, bool began, bool *found_p,
                               lks__meta *meta);
/* The same for a run: run->meta, and the vocabulary in its settings. Data without a meta.json
 * have the tokenizer of the weights that the run begins with. */
lks_status lks__procedure_open_meta(lks__run *run);
/* The digest of both splits of the data, which checkpoints record. An element is NULL if the data
 * have no such split. */
lks_status lks__procedure_digest(lks__shards *const data[2], uint64_t *digest_p);

#endif
