/* base/system/module.h - optional libraries. Code that needs one is built as a module, a shared
 * object that is loaded at its first use. If the libraries were linked at start, every run would
 * lose milliseconds, and a program without them would not start at all. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Each module exports one constant,
 *
 *     LKS__MODULE_EXPORT const TYPE lks__module_table = {VERSION, ...};
 *
 * with a type from the module's own header, and with `int version` as its first member. */
#define LKS__MODULE_EXPORT __attribute__((visibility("default")))

/* Load the module `file` from the first of these folders that contains it: LOCKSTEP_MODULES, the
 * program's folder, ../lib/lockstep relative to it, or `lockstep` in liblockstep's folder or next
 * to that folder. Returns its table, which stays loaded. If no module of this `version` can be
 * loaded, return NULL and put the reason into `why`: half a sentence, which may contain any
 * bytes. */
const void *lks__module_load(const char *file, int version, char *why, size_t why_bytes);

/* Advice about a module that can't be loaded, for the end of a message. `package` is the Debian
 * package that is needed to build it; a lockstep that was built for packages (scripts/package.sh)
 * names the package that contains the module. Returns `out`. */
enum { LKS__MODULE_ADVICE = 160 };
const char *lks__module_advice(const char *file, const char *package, char out[LKS__MODULE_ADVICE]);

/* A module that all threads share, and that is loaded once. `package` as above. `failure` begins
 * the message without it, for example "cannot read zip files". */
typedef struct lks__module {
    const char *file, *package, *failure;
    int version;
    pthread_mutex_t mutex; /* guards loading; later only reads */
    const void *table;
} lks__module;

/* The module's table; NULL, with ERR_SUPPORT's message recorded, if it can't be loaded. */
const void *lks__module_get(lks__module *module);

/* True if the message reports a module that this build lacks. Then *advice_p is the part of it with
 * the advice, or "", and `package` is the package to install, or "". For lists, which would
 * otherwise repeat the whole message. */
bool lks__module_is_missing(const char *sentence, const char **advice_p, char package[80]);
