/* base/module.h - optional libraries. What needs one is a module, a shared object that is loaded
 * when it is first asked for: linked at start, they would cost every run milliseconds, and a
 * program without them would not start at all. */
#ifndef LKS_BASE_MODULE_H
#define LKS_BASE_MODULE_H

#include <stddef.h>

typedef void lks__module_fn(void);

/* The function `entry` of the module `file`, looked for in LOCKSTEP_MODULES, beside the program and
 * in ../lib/lockstep from there. Stays loaded. NULL: `why` says so in half a sentence, that may
 * hold any bytes. */
lks__module_fn *lks__module_entry(const char *file, const char *entry, char *why, size_t why_bytes);

#endif
