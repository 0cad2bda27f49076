/* base/system/module.h - optional libraries. Code that needs one is built as a module, a shared
 * object that is loaded when it is first needed. If the libraries were linked at start, every run
 * would lose milliseconds, and a program without them would not start at all. */
#ifndef LKS_BASE_SYSTEM_MODULE_H
#define LKS_BASE_SYSTEM_MODULE_H

#include <stdbool.h>
#include <stddef.h>

/* Each module defines one constant that others see,
 *
 *     LKS__MODULE_EXPORT const TYPE lks__module_table = {VERSION, ...};
 *
 * whose type is in the module's own header, and whose first member is `int version`. */
#define LKS__MODULE_EXPORT __attribute__((visibility("default")))

/* Load the module `file` from LOCKSTEP_MODULES, beside the program, ../lib/lockstep from there, or
 * `lockstep` beside liblockstep or beside its folder: the first that is there. Returns its table,
 * which stays loaded. If there is none of this `version`, return NULL and put the reason into
 * `why`: half a sentence, which may hold any bytes. */
const void *lks__module_load(const char *file, int version, char *why, size_t why_bytes);

/* What to do about a missing module, for the end of a message. `package` is the Debian package that
 * it is built with; a lockstep that was built for packages (scripts/package.sh) names the package
 * that has the module. Returns `out`. */
enum { LKS__MODULE_ADVICE = 160 };
const char *lks__module_advice(const char *file, const char *package, char out[LKS__MODULE_ADVICE]);

/* Does this sentence report a module that this build lacks? Then *advice_p is the part of it that
 * says what to do, or "", and `package` is the package to install, or "". For lists, in which the
 * whole sentence would be repeated. */
bool lks__module_is_missing(const char *sentence, const char **advice_p, char package[80]);

#endif
