/* weights/weights.h - trained weights, in any form that lockstep reads, with which a run begins or
 * which are used unchanged.
 *
 *     lks__weights_open(source, &want, &w);          finds the form; all checks of names and shapes
 *     lks__settings_begin(&s, &w->model, w->shown);  the run's settings: its shape, or cropped
 *     ... lks__model_table(&config, &table), memory for an arena ...
 *     lks__weights_read(w, &config, &table, seed, params);
 *     lks__weights_close(w);
 *
 * A form is a row in open.c and a file (weights/forms/form.h has its interface). Only the
 * weights are read, not the rest of a run: no optimizer's state, no schedule, no iteration. */
#pragma once

#include <stdint.h>

#include "data/text/meta.h"
#include "files/checkpoint/folder.h"
#include "model/model.h"
#include "settings/settings.h"

typedef struct lks__weights_tensor {
    char name[48];   /* as in the tensor table; cut if it is longer than any there */
    const char *own; /* its name in the file, for messages; or NULL */
    int n_dims;
    uint64_t shape[2]; /* as in the tensor table; the file has [1], [0] if it is transposed. For
                          n_dims > 2 they are not used */
    bool transposed;
    bool tied;        /* another copy of the tensor `name`, which must have the same values */
    uint64_t at;      /* for the form */
    const void *from; /* for the form */
} lks__weights_tensor;

typedef struct lks__weights {
    const struct lks__weights_form *form;
    char path[LKS__CKPT_PATH]; /* the path that was opened */
    char shown[512];           /* ... safe to print */
    char origin[160];          /* for a line: "ckpt-00000100 (best)", "Hugging Face's" */
    char note[240];            /* a remark for the user; "" if there is none */
    /* Defaults, and with LKS__FROM_CHECKPOINT the SHAPE settings from the source. These always
     * include family, n_layer, n_head, n_embd, block_size, vocab_size and bias. nanoGPT's file also
     * names its dataset ("": none). */
    lks__settings model;
    lks__meta meta; /* the tokenizer that the source names; vocab_size == 0 if it names none */
    char vocabulary[LKS__CKPT_PATH]; /* folder that may have the tokenizer's files; "": none */
    char run_dir[LKS__CKPT_PATH];    /* of lockstep's run; "" if it is in none */
    char params_hash[17];            /* of lockstep's checkpoint, else "" */
    uint64_t iter;                   /* of lockstep's checkpoint, else 0 */
    lks__weights_tensor *tensors;
    size_t n_tensors, room;
    void *source; /* private to the form */
} lks__weights;

/* The caller's knowledge in addition to the path. */
typedef struct lks__weights_want {
    const char *checkpoint; /* of a run, as --checkpoint; NULL as "" */
    int64_t n_head;         /* for a file that doesn't contain it; 0: not known */
} lks__weights_want;

/* `source`: a path, or the name of a model in LOCKSTEP_HOME or, if that is unset, in lockstep's
 * folder of the user's cache. Opens the source and checks everything but the values: settings in
 * range; every tensor of the model that they describe, and no other, in its shape; the shape of a
 * model with a known name. Allocates no more than the file contains. ERR_IO, ERR_FORMAT, ERR_CONFIG
 * name file, tensor and both shapes. */
lks_status lks__weights_open(const char *source, const lks__weights_want *want, lks__weights **w_p);
/* Open s->init_from, with the number of heads that the settings give, if they do. */
lks_status lks__weights_open_init(const lks__settings *s, lks__weights **w_p);
/* Like lks__weights_open() for out_dir, which is read as a run or a checkpoint of lockstep whatever
 * else it contains. */
lks_status lks__weights_open_run(const char *out_dir, const lks__weights_want *want,
                                 lks__weights **w_p);
/* The checkpoint of lockstep that `w` was opened from; NULL for other forms. */
const struct lks__ckpt *lks__weights_checkpoint(const lks__weights *w);
/* The tokenizer of the weights: the one that a run of lockstep recorded, or the characters or
 * vocabulary next to the file; else only vocab_size. The caller frees it. */
lks_status lks__weights_meta(const lks__weights *w, lks__meta *meta);
/* The characters or vocabulary in `folder` ("": none) of weights with this vocab_size, else only
 * that size. One that lockstep can't read counts as none. */
lks_status lks__weights_meta_in(const char *folder, uint32_t vocab_size, lks__meta *meta);
/* A number that distinguishes two sets of weights: params_hash of a checkpoint of lockstep, else a
 * hash of the values. Large weights are sampled: at most some 16 MiB are read. */
lks_status lks__weights_digest(lks__weights *w, uint64_t *digest_p);
void lks__weights_close(lks__weights *w); /* NULL does nothing */

/* Fill the zeroed arena `params`, tensor by tensor, without a second copy of any. `config` and
 * `table` come from settings that lks__settings_begin() has allowed: positions beyond block_size
 * are omitted, and rows of tokens that the file lacks are drawn from the family's initial
 * distribution by Philox(seed). ERR_NAN names the tensor and the place of a value that isn't
 * finite. */
lks_status lks__weights_read(lks__weights *w, const lks__model_config *config,
                             const lks__table *table, uint64_t seed, float *params);
