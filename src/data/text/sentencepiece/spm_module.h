/* data/text/sentencepiece/spm_module.h - the interface of the module lockstep_sentencepiece.so to
 * sentencepiece/spm.c.
 *
 * SentencePiece has only a C++ interface. The module wraps it in C, in a separate file that is
 * loaded at its first use, so the rest of the program needs neither C++ nor that library. It lets
 * no exception out. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/system/module.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LKS__SPM_MODULE_FILE "lockstep_sentencepiece.so"

enum { LKS__SPM_MODULE_VERSION = 2 }; /* increase it with every change below */

/* Properties of a token id, as bits. */
enum {
    LKS__SPM_CONTROL = 1 << 0,
    LKS__SPM_UNKNOWN = 1 << 1,
    LKS__SPM_UNUSED = 1 << 2,
    LKS__SPM_BYTE = 1 << 3,
};

/* Return the next sentence to train on; 0 at the end. The text must stay valid until the next
 * call. */
typedef int lks__spm_next(void *ctx, const char **text_p, size_t *bytes_p);

/* Functions that can fail return NULL or nonzero and put the reason, cut to fit, into `why`;
 * "" if out of memory. Returned memory comes from malloc(). Ids are in [0, size). */
typedef struct lks__spm_module {
    int version;
    void *(*open)(const char *model, size_t bytes, char *why, size_t why_bytes);
    void (*close)(void *sp);
    int (*size)(const void *sp);
    int (*bos)(const void *sp);                                    /* -1: none */
    const char *(*piece)(const void *sp, int id, size_t *bytes_p); /* UTF-8; belongs to sp */
    unsigned (*kind)(const void *sp, int id);
    int (*encode)(const void *sp, const char *text, size_t bytes, int32_t **ids_p, size_t *n_p,
                  char *why, size_t why_bytes);
    /* options: alternating names and values, terminated by NULL */
    int (*train)(const char *const *options, lks__spm_next *next, void *ctx, char **model_p,
                 size_t *bytes_p, char *why, size_t why_bytes);
} lks__spm_module;

#ifdef __cplusplus
}
#endif
