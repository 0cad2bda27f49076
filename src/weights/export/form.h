/* weights/export/form.h - definitions that the export formats share. */
#pragma once

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

/* ERR_CONFIG unless the model is of the family gpt2. */
lks_status lks__export_gpt2_only(const lks__export_model *e);

/* The tokenizer that a format should contain; neither characters nor `text`: none. */
typedef struct lks__export_vocabulary {
    bool characters; /* e->meta.chars */
    char *text;      /* GPT-2's, as a tokenizer.json, which the caller frees */
    size_t bytes;
    uint32_t size;       /* tokens of `text` */
    int32_t end_of_text; /* id of its <|endoftext|>; -1: none, also without `text` */
} lks__export_vocabulary;

/* Prints why the tokenizer is missing, if it is. */
lks_status lks__export_tokenizer(const lks__export_model *e, lks__export_vocabulary *v);

/* All parameters, in an arena that the caller frees. */
lks_status lks__export_params(const lks__export_model *e, float **params_p);

/* The same for a format that always has biases: `all` lists the tensors with their places in the
 * arena; biases that the model lacks share zeros. The caller frees both, also after errors. */
lks_status lks__export_biased(const lks__export_model *e, lks__table *all, float **params_p);

/* Write a safetensors file with "format": "pt" to `path`, a temporary name without a file. */
lks_status lks__export_tensors(const char *path, const lks__st_tensor *tensors, size_t n);

/* Print a sentence for the user. */
void lks__export_note(const lks__export_model *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Each format's function is lks__export_FORMAT(). */
#define X(of, format) lks__export_write lks__export_##format;
LKS__WORDS_format(X, )
#undef X
