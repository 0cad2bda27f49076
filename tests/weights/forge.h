/* forge.h - a small GPT-2 with made-up weights, written in the forms that lockstep reads, right or
 * with one thing wrong. */
#pragma once

#include "support.h"

#include "model/model.h"

/* The arena that everything here is written from. Every value is a multiple of 1/64 below 2, which
 * all types represent. */
typedef struct forge_model {
    lks__model_config config;
    lks__table table;
    float *params;
} forge_model;

/* n_layer=2, n_head=2, n_embd=16, block_size=12, vocab_size=65. */
forge_model forge_open(bool bias);
/* The same with the shape of the laws' runs (tests/laws). */
forge_model forge_open_as(const lks__model_config *config);
void forge_close(forge_model *m);

/* How to write a folder or file of Hugging Face's form. */
typedef struct forge_hf {
    const char *dtype;     /* "F32" if NULL */
    bool no_prefix;        /* "h.0.…" instead of "transformer.h.0.…" */
    bool linear;           /* matrices [out, in], as nanoGPT has them */
    bool lm_head, buffers; /* tensors that old versions saved, too */
    int parts;             /* > 0: so many files and an index */
    const char *config;    /* text of config.json; NULL: the model's; "": no file */
    const char *gelu;      /* activation_function; NULL: gelu_new */
    const char *left_out;  /* a tensor that is left out (name with prefix) */
    const char *longer;    /* a tensor with one row (or element) more than it should have */
    const char *added;     /* a tensor that doesn't belong there */
    const char *nan;       /* a tensor whose element 5 is NaN */
    bool other_head;       /* lm_head has another last value than wte */
} forge_hf;

/* Write it into `folder`. */
void forge_write_hf(const forge_model *m, const char *folder, const forge_hf *how);
/* A folder with it. */
const char *forge_hf_folder(const forge_model *m, const forge_hf *how);
/* The text of its config.json, with an activation. */
const char *forge_config(const forge_model *m, const char *gelu);

/* A model file of llm.c: version 3 or 5; the vocabulary padded to a multiple of 128. */
const char *forge_llmc(const forge_model *m, int version, size_t *bytes_p);
