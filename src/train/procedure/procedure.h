/* train/procedure/procedure.h - training procedures: the differences between nanoGPT's train.py and
 * parameter-golf's train_gpt.py, namely batches, evaluation, learning rates, end of a run and log
 * lines. The step and the loop are common. */
#pragma once

#include "base/log.h"
#include "data/read/source.h"
#include "train/result.h"
#include "train/trainer.h"
#include "weights/artifact/artifact.h"

/* Results at the end of a run. */
typedef struct lks__finish_result {
    const char *name;          /* of the file in out_dir */
    lks__artifact_stats stats; /* on rank 0 */
    uint64_t model_bytes;      /* size of the checkpoint's model.safetensors, on rank 0 */
    lks__eval_result eval;     /* of the model in that file */
    double eval_seconds;
} lks__finish_result;

/* `n` spans of the training split, each of `length` tokens and one more for the last target. */
typedef struct lks__spans {
    const uint64_t *at; /* [n] positions of their first tokens */
    size_t n, length;
    uint64_t single; /* storage of `at` if n is 1 */
} lks__spans;

struct lks__procedure {
    const struct lks__source_ops *data; /* format of its token files */
    uint32_t vocab_size;                /* for data without meta.json */
    const char *length;                 /* setting that ends a run ("max_iters") */
    bool by_clock; /* max_wallclock_seconds ends a run, so checkpoints record the time */

    /* Called when settings are checked, and V, N, A and this rank's virtual ranks are known. Opens
     * the data and sets run->meta, run->s.vocab_size, run->data_digest. */
    lks_status (*open_data)(lks__run *run);
    /* Called when table and model exist: opens the sampler. */
    lks_status (*open_rest)(const lks__run *run, lks__state *state);
    void (*close)(const lks__run *run, const lks__state *state);

    /* The start of the data of a segment that begins at `step`, after one with the batch of `old`
     * that has read since `from`. */
    lks__data_start (*data_at)(const lks__run *run, const lks__state *state,
                               const lks__settings *old, const lks__data_start *from,
                               uint64_t step);
    /* Read on from state->segment.data. */
    void (*start_data)(const lks__run *run, const lks__state *state);

    /* Before iteration state->iter. */
    void (*begin_step)(const lks__state *state, lks__step_work *work);
    /* The tokens of micro-batch m of virtual rank v of this iteration. */
    void (*spans)(const lks__run *run, const lks__state *state, const lks__step_work *work, int v,
                  int m, lks__spans *spans);
    /* Fill in the rates of iteration state->iter: lr, orthogonal_lr, eps. Returns the rate to
     * report. */
    double (*rates)(const lks__run *run, const lks__state *state, lks__rates *rates);

    uint64_t (*n_steps)(const lks__settings *s);
    /* Before iteration state->iter, or at the end. */
    bool (*evaluation_due)(const lks__run *run, const lks__state *state);
    /* It evaluates at every end, also without a schedule, and prints that as another evaluation. */
    bool evaluates_end;
    /* Evaluations draw batches of the run's size, so another batch gives another loss. */
    bool draws;
    /* Collective. ERR_STOPPED, on all ranks: discarded, because a rank was asked to stop. */
    lks_status (*evaluate)(lks__trainer *t, lks__eval_result *result);

    /* Call evaluate()'s passes for a rehearsal (compute/device.h). NULL: they are a step's. */
    lks_status (*rehearse_evaluation)(lks__trainer *t);

    /* Called before a run's first step: fails if finish() would fail, perhaps hours later. NULL: it
     * can't fail. */
    lks_status (*can_finish)(void);
    /* Called after the last iteration; NULL: does nothing. Collective; ERR_STOPPED as above. */
    lks_status (*finish)(lks__trainer *t, lks__finish_result *result);
    /* For a resume with unchanged settings: true if finish() has nothing to do. On rank 0; NULL if
     * finish() is. */
    bool (*has_finished)(const lks__run *run, const lks__state *state);

    /* Path of the script's own log file, written in addition to train.log; creates its folder. "":
     * no such file. NULL: never one. */
    lks_status (*log_path)(const lks__run *run, char out[LKS__SETTING_STR + 16]);
    /* Lines that describe the run before it begins. */
    void (*head_lines)(const lks__run *run, const lks__session *ses, lks__log *log);
    /* Lines after a step and an evaluation; "" for no line. */
    void (*train_line)(const lks__run *run, const lks__state *state, const lks__step_result *r,
                       double mfu, char out[200]);
    void (*eval_line)(const lks__run *run, const lks__state *state, const lks__eval_result *eval,
                      char out[200]);
    void (*finish_lines)(const lks__trainer *t, const lks__finish_result *result, lks__log *log);
};

extern const struct lks__procedure lks__procedure_nanogpt, lks__procedure_golf;

const struct lks__procedure *lks__procedure_of(const lks__settings *s);

/* Open a split of the folder `dir`, in either format (data/read/shards.h). *shards_p = NULL if the
 * folder has no validation split and the run makes no evaluations. */
lks_status lks__procedure_open_split(const lks__settings *s, const char *dir, int split,
                                     uint32_t vocab_size, lks__shards **shards_p);

/* True if out_dir has an earlier run. */
bool lks__procedure_has_run(const lks__settings *s);

/* Set run->data_dir from the settings. */
lks_status lks__procedure_find_data(lks__run *run);

/* Read the meta.json or meta.pkl of the data folder `dir`, if it has one. Its vocabulary must be
 * the settings' one, unless they leave it open. `from_weights`: the run begins with given weights,
 * which set the vocabulary in the settings, and the data may use less. */
lks_status lks__procedure_meta(const lks__settings *s, const char *dir, bool from_weights,
                               bool *found_p, lks__meta *meta);
/* The same for a run: sets run->meta, and the vocabulary in its settings. Data without that file
 * have the tokenizer of the weights that the run begins with. */
lks_status lks__procedure_open_meta(lks__run *run);
/* Open both splits in run->data_dir, and set the digest and hash. */
lks_status lks__procedure_open_data(lks__run *run, uint32_t vocab_size);
void lks__procedure_close_data(const lks__run *run);
/* The digest of both splits, which checkpoints record; NULL for a split that doesn't exist. */
lks_status lks__procedure_digest(lks__shards *const data[2], uint64_t *digest_p);
