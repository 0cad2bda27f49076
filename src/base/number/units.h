/* base/number/units.h - numbers for people. */
#ifndef LKS_BASE_NUMBER_UNITS_H
#define LKS_BASE_NUMBER_UNITS_H

enum { LKS__UNITS_TEXT = 24 };

/* Format a number of bytes with its unit, in powers of 1000: "512 bytes", "12.5 MB", "1.50 TB".
 * Returns `out`. */
const char *lks__units_bytes(double bytes, char out[LKS__UNITS_TEXT]);

/* Format it in MB, GB or TB, for tables whose small values need no other unit. */
const char *lks__units_memory(double bytes, char out[LKS__UNITS_TEXT]);

/* The value, but a NaN without a sign: printf() writes "-nan" for the NaN that a processor
 * computes. */
double lks__units_plain(double x);

#endif
