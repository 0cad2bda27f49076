#include "base/number/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const char *lks__units_bytes_to(char out[LKS__UNITS_TEXT], double bytes)
{
    /* The unit is chosen after rounding: 999.96 kB would print as 1000.0 kB. */
    if (!(bytes >= 999.5))
        snprintf(out, LKS__UNITS_TEXT, "%.0f byte%s", bytes, bytes == 1.0 ? "" : "s");
    else if (bytes < 999.95e3)
        snprintf(out, LKS__UNITS_TEXT, "%.1f kB", bytes * 1e-3);
    else if (bytes < 999.95e6)
        snprintf(out, LKS__UNITS_TEXT, "%.1f MB", bytes * 1e-6);
    else if (bytes < 999.995e9)
        snprintf(out, LKS__UNITS_TEXT, "%.2f GB", bytes * 1e-9);
    else
        snprintf(out, LKS__UNITS_TEXT, "%.2f TB", bytes * 1e-12);
    return out;
}

const char *lks__units_memory_to(char out[LKS__UNITS_TEXT], double bytes)
{
    if (bytes >= 999.95e6)
        return lks__units_bytes_to(out, bytes);
    snprintf(out, LKS__UNITS_TEXT, "%.1f MB", bytes * 1e-6);
    return out;
}

char *lks__hex_to(char out[17], uint64_t hash)
{
    snprintf(out, 17, "%016" PRIx64, hash);
    return out;
}

double lks__units_plain(double x)
{
    return isnan(x) ? fabs((double)NAN) : x;
}
