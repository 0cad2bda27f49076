/* weights/export/form.h - definitions that the export formats share. */
#ifndef LKS_WEIGHTS_EXPORT_FORM_H
#define LKS_WEIGHTS_EXPORT_FORM_H

#include "data/text/bpe/bpe.h"
#include "data/text/meta.h"
#include "files/checkpoint/ckpt.h"
#include "model/model.h"
#include "weights/weights.h"

typedef struct lks__export_model {
    const lks__settings *s;              /* the command's settings */
    const struct lks__export_sink *sink; /* weights/export/export.h */
    lks__weights *w;                     /* the model's weights; their tensors have been checked */
    /* lockstep's checkpoint with these weights, or NULL. Its optimizer is not opened. */
    const lks__ckpt *ckpt;
    lks__settings run;               /* the settings of its training, as far as they are known */
    lks__meta meta;                  /* its tokenizer, or only the size of its vocabulary */
    char vocabulary[LKS__CKPT_PATH]; /* folder or file that may have GPT-2's vocabulary; or "" */
    lks__model_config config;
    lks__table table;
} lks__export_model;

typedef lks_status lks__export_write(const lks__export_model *e);

lks__export_write lks__export_golf, lks__export_nanogpt, lks__export_hf, lks__export_safetensors,
    lks__export_gguf;

/* ERR_CONFIG unless the model is of the family gpt2. */
lks_status lks__export_gpt2_only(const lks__export_model *e);

/* The tokenizer that a format should contain: *bpe_p, which the caller closes, or e->meta.chars if
 * *characters_p. Otherwise prints why the tokenizer is missing. */
lks_status lks__export_tokenizer(const lks__export_model *e, lks__bpe **bpe_p, bool *characters_p);

/* All parameters, in an arena that the caller frees. */
lks_status lks__export_params(const lks__export_model *e, float **params_p);

/* Write a safetensors file with "format": "pt" under a temporary name, and rename it to `path`. */
lks_status lks__export_tensors(const char *path, const lks__st_tensor *tensors, size_t n);

/* Print a sentence for the user. */
void lks__export_note(const lks__export_model *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
