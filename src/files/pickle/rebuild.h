/* files/pickle/rebuild.h - calls of the known names: the values that they return for their
 * arguments. On failure these functions return NULL and set *why_p to a reason, or to NULL if out
 * of memory. */
#ifndef LKS_FILES_PICKLE_REBUILD_H
#define LKS_FILES_PICKLE_REBUILD_H

#include "files/pickle/value.h"

/* REDUCE: `arguments` is a tuple. */
lks__pickle_value *lks__pickle_rebuild(lks__pickle_heap *heap, const lks__pickle_global *global,
                                       const lks__pickle_value *arguments, const char **why_p);
/* BINPERSID: ('storage', type, key, device, count). */
lks__pickle_value *lks__pickle_storage_of(lks__pickle_heap *heap, const lks__pickle_value *id,
                                          const char **why_p);

#endif
