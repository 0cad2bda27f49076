/* weights/forms/form.h - what a form of weights brings: one struct, in a file of its own, and a row
 * in weights.c. */
#ifndef LKS_WEIGHTS_FORMS_FORM_H
#define LKS_WEIGHTS_FORMS_FORM_H

#include "weights/weights.h"

/* A path, as far as every form needs to look at it. */
typedef struct lks__weights_path {
    const char *path;
    bool folder;
    unsigned char head[8]; /* a file's first bytes; zeros behind its end */
} lks__weights_path;

typedef struct lks__weights_form {
    const char *about; /* for messages: "a folder with Hugging Face's config.json and ..." */
    /* Does the path look like it? The first form that answers yes opens it. */
    bool (*looks)(const lks__weights_path *p);
    /* Set w->model (lks__weights_set()), w->tensors (lks__weights_add()), w->source, and what else
     * the source gives. w->path and w->shown are set. */
    lks_status (*open)(const lks__weights_want *want, lks__weights *w);
    /* Elements [first, first + n) of a tensor, in the file's order, as float32. */
    lks_status (*read)(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                       float *out);
    void (*close)(lks__weights *w); /* also after `open` has failed; w->source may be NULL */
} lks__weights_form;

extern const lks__weights_form lks__weights_lockstep, lks__weights_hf, lks__weights_llmc,
    lks__weights_golf, lks__weights_nanogpt;

/* A setting that the source gives, with the checks of the command line. */
lks_status lks__weights_set(lks__weights *w, const char *setting, const char *value);
lks_status lks__weights_set_int(lks__weights *w, const char *setting, uint64_t value);

/* One more tensor, zeroed; NULL if there is no memory (the failure is recorded). */
lks__weights_tensor *lks__weights_add(lks__weights *w);
lks__weights_tensor *lks__weights_add_named(lks__weights *w, const char *prefix, const char *name);

/* Is there a file of this name in the folder? */
bool lks__weights_has(const char *folder, const char *name);

/* n numbers of a type of two bytes each, as they lie in the upper half of out[n], to floats. */
void lks__weights_widen_bf16(float *out, size_t n);
void lks__weights_widen_half(float *out, size_t n);

#endif
