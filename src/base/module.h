/* base/module.h - optional libraries. Code that needs one is built as a module, a shared object
 * that is loaded when it is first needed. If the libraries were linked at start, every run would
 * lose milliseconds, and a program without them would not start at all. */
#ifndef LKS_BASE_MODULE_H
#define LKS_BASE_MODULE_H

#include <stddef.h>

typedef void lks__module_fn(void);

/* Find the function `entry` of the module `file`: in LOCKSTEP_MODULES, beside the program, in
 * ../lib/lockstep from there, and in `lockstep` beside liblockstep or beside its folder. The module
 * stays loaded. If it fails, return NULL and put the reason into `why`: half a sentence, which may
 * hold any bytes. */
lks__module_fn *lks__module_entry(const char *file, const char *entry, char *why, size_t why_bytes);

#endif
