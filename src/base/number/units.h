/* base/number/units.h - numbers as text. */
#pragma once

#include <stdint.h>

enum { LKS__UNITS_TEXT = 24 };

/* Format a number of bytes with its unit, in powers of 1000: "512 bytes", "12.5 MB", "1.50 TB". The
 * text belongs to the enclosing block. */
#define lks__units_bytes(bytes) lks__units_bytes_to((char[LKS__UNITS_TEXT]){0}, bytes)
const char *lks__units_bytes_to(char out[LKS__UNITS_TEXT], double bytes); /* returns `out` */

/* Format it in MB, GB or TB, for tables whose small values need no other unit. */
#define lks__units_memory(bytes) lks__units_memory_to((char[LKS__UNITS_TEXT]){0}, bytes)
const char *lks__units_memory_to(char out[LKS__UNITS_TEXT], double bytes);

/* A hash as in all files: 16 lower-case hex digits. The text belongs to the enclosing block. */
#define lks__hex(hash) lks__hex_to((char[17]){0}, hash)
char *lks__hex_to(char out[17], uint64_t hash); /* returns `out` */

/* The value, but a NaN without a sign: printf() writes "-nan" for the NaN that a processor
 * computes. */
double lks__units_plain(double x);
