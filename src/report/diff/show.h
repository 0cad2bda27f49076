/* report/diff/show.h - helpers of diff_print.c and diff_cause.c. */
#pragma once

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text/jsontext.h"

enum { LKS__SHOWN = 4 * 256, LKS__LABEL = 18 };

/* A value from a file, safe on a terminal, in memory of the enclosing block; a member of `o`; and a
 * sentence, which can be longer than a value. */
#define lks__show_value(value)   lks__shown(lks__json_text(value, (char[256]){0}), LKS__SHOWN)
#define lks__show_member(o, key) lks__show_value(json_object_get(o, key))
#define lks__show_reason(o, key) lks__shown(lks__json_str(o, key), LKS__SHOWN)

/* Print rows of facts.h, the first after a label. */
void lks__diff_print_rows(FILE *out, const char *label, const json_t *rows);

/* `o` has "step", "entries" and "place", as in trails.h. In a place, "element" to "elements" or
 * "forms", as in tensors.h, name the first element. */
void lks__diff_print_place(FILE *out, const json_t *o);
