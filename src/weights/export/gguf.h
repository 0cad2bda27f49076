/* weights/export/gguf.h - the values of a GGUF file's head, which its files share. */
#ifndef LKS_WEIGHTS_EXPORT_GGUF_H
#define LKS_WEIGHTS_EXPORT_GGUF_H

#include <stdio.h>

#include "weights/export/form.h"

/* Types of values, in the file */
enum {
    LKS__GGUF_UINT32 = 4,
    LKS__GGUF_INT32 = 5,
    LKS__GGUF_FLOAT32 = 6,
    LKS__GGUF_STRING = 8,
    LKS__GGUF_ARRAY = 9,
};

/* The head while it is written to memory; its failures are found when `out` is closed. */
typedef struct lks__gguf {
    FILE *out;
    uint64_t n_values;
} lks__gguf;

/* Write a string: its length and its bytes. */
void lks__gguf_text(lks__gguf *g, const char *text, size_t bytes);
/* Begin a value with its name and type. */
void lks__gguf_key(lks__gguf *g, const char *name, uint32_t type);
void lks__gguf_uint(lks__gguf *g, const char *name, uint32_t value);
void lks__gguf_string(lks__gguf *g, const char *name, const char *value);
/* Begin an array; its n items follow. */
void lks__gguf_array(lks__gguf *g, const char *name, uint32_t type, uint64_t n);

/* Write the tokenizer's values, or print why there is none. *rows_p: number of tokens with a text,
 * at most the model's. */
lks_status lks__gguf_tokenizer(const lks__export_model *e, lks__gguf *g, size_t *rows_p);

#endif
