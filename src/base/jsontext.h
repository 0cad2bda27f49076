/* base/jsontext.h - jansson's reader and writer, without their ways of running out of memory: where
 * a string can't grow, jansson 2.14 drops bytes of it and goes on. Here it is left at the
 * allocation that failed, with NULL; what it had so far is not given back. */
#ifndef LKS_BASE_JSONTEXT_H
#define LKS_BASE_JSONTEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* json_loadb() */
json_t *lks__json_load(const char *text, size_t bytes, size_t flags, json_error_t *error);
/* Was want of memory why it gave NULL? */
bool lks__json_no_memory(const json_error_t *error);

/* json_dumps(): the caller frees; NULL: out of memory. */
char *lks__json_dump(const json_t *json, size_t flags);

#endif
