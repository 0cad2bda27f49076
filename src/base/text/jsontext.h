/* base/text/jsontext.h - jansson's reader and writer, made safe for low memory. If a string can't
 * grow, jansson 2.14 drops some of its bytes and continues. Here the call returns NULL at the first
 * allocation that fails; its earlier allocations are not freed. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Call a function that uses jansson; false if it was left at an allocation of jansson that failed.
 * Numbers are read and written in the default floating-point environment: a program that calls
 * liblockstep may have set another one. */
bool lks__json_in_memory(void (*call)(void *), void *arg);

/* json_loadb() */
json_t *lks__json_load(const char *text, size_t bytes, size_t flags, json_error_t *error);
/* json_loadb() with a status: ERR_FORMAT with line, column and reason, or ERR_NOMEM; `name`
 * (escaped) is the text's name. */
lks_status lks__json_parse(const char *text, size_t bytes, size_t flags, const char *name,
                           json_t **json_p);
/* Read a line as an object, which the caller frees; NULL if it isn't one, or contains a zero, which
 * jansson ignores after a number. ERR_NOMEM. */
lks_status lks__json_line(const char *line, size_t bytes, size_t flags, json_t **object_p);
/* True if the call returned NULL because it ran out of memory. */
bool lks__json_no_memory(const json_error_t *error);

/* The number; null if it isn't finite, which JSON can't express. */
json_t *lks__json_real(double x);

/* The same for the double with at most 9 digits that rounds to `x`, so that its text is short. */
json_t *lks__json_float(float x);
/* The value that a reader of lks__jsonw_float() gets. */
double lks__nine_digits(double x);

/* True if both are equal; files write a number without a fraction with or without ".0". */
bool lks__json_same(const json_t *a, const json_t *b);

/* The member of `object` as a number; NAN if it isn't one. */
double lks__json_number(const json_t *object, const char *key);
/* The same as a string and as an integer; NULL and 0 if it isn't one. */
const char *lks__json_str(const json_t *object, const char *key);
json_int_t lks__json_int(const json_t *object, const char *key);

/* The member of `object` as a number of 64 bits that was written as 16 hexadecimal digits; false if
 * it isn't one. */
bool lks__json_hash(const json_t *object, const char *key, uint64_t *hash_p);

/* Write the number with the fewest digits that read back as the same value: "0.001", not
 * "0.001000…02". */
void lks__json_shortest(double x, char *out, size_t bytes);

/* The value as text: strings unchanged, reals by lks__json_shortest(), others as JSON; "-" if
 * `value` is NULL or null. Valid UTF-8. Returns `out`. */
const char *lks__json_text(const json_t *value, char out[256]);

/* For each `item` of an array; none if `array` is NULL or something else. `break` works: it leaves
 * item_on 1, so the outer loop ends. */
#define lks__each(item, array)                                                                     \
    for (size_t item##_i = 0, item##_on = 1; item##_on && item##_i < json_array_size(array);       \
         item##_on = !item##_on, item##_i++)                                                       \
        for (json_t *item = json_array_get(array, item##_i); item##_on; item##_on = 0)

/* The text as a string, with question marks for bytes that aren't UTF-8; NULL if out of memory. */
json_t *lks__json_utf8(const char *text);

/* json_dumps(): the caller frees the text; NULL if out of memory. */
char *lks__json_dump(const json_t *json, size_t flags);
