/* weights/forms/form.h - the interface of a form of weights: one struct, in a separate file, and a
 * row in weights/open.c. */
#pragma once

#include "weights/weights.h"

/* A path, and the facts about it that every form needs. */
typedef struct lks__weights_path {
    const char *path;
    bool folder;
    unsigned char head[8]; /* a file's first bytes; zeros after its end */
} lks__weights_path;

typedef struct lks__weights_form {
    const char *about; /* for messages: "a folder with Hugging Face's config.json and ..." */
    /* True if the path looks like this form. The first form that returns true opens it. */
    bool (*looks)(const lks__weights_path *p);
    /* Set w->model (lks__weights_set()), w->tensors (lks__weights_add()), w->source, and the other
     * fields that the source determines. w->path and w->shown are set. */
    lks_status (*open)(const lks__weights_want *want, lks__weights *w);
    /* Read elements [first, first + n) of a tensor, in the file's order, as float32. */
    lks_status (*read)(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                       float *out);
    void (*close)(lks__weights *w); /* also after `open` has failed; w->source may be NULL */
} lks__weights_form;

extern const lks__weights_form lks__weights_lockstep, lks__weights_hf, lks__weights_llmc,
    lks__weights_golf, lks__weights_nanogpt;

/* Set a setting from the source, with the checks of the command line. */
lks_status lks__weights_set(lks__weights *w, const char *setting, const char *value);
lks_status lks__weights_set_int(lks__weights *w, const char *setting, uint64_t value);

/* Add a tensor, zeroed but for its name; NULL if there is no memory (the failure is recorded). */
lks__weights_tensor *lks__weights_add(lks__weights *w, const char *prefix, const char *name);

/* The tensor of this name that isn't tied to another one; NULL: none. */
const lks__weights_tensor *lks__weights_untied(const lks__weights *w, const char *name);

/* Find the tensor `name`; `*at_p` is the index of the last one found, and the search begins after
 * it. */
lks__weights_tensor *lks__weights_find(const lks__weights *w, const char *name, size_t *at_p);
/* The tensor's name in the file, escaped. */
const char *lks__weights_own_name(const lks__weights_tensor *t, char out[120]);
/* Check that `have` has the shape of the table's tensor `t`, of the model `whose`. */
lks_status lks__weights_check_shape(const lks__weights *w, const lks__weights_tensor *have,
                                    const lks__table_tensor *t, const char *whose);

/* True if the folder contains a file of this name. */
bool lks__weights_has(const char *folder, const char *name);

/* Widen n numbers, float16 (`half`) or bfloat16, stored in the upper half of out[n], to floats. */
void lks__weights_widen(float *out, size_t n, bool half);
