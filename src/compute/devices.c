#include "compute/devices.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

const lks__device_row lks__device_rows[] = {
#define X(name) {#name, lks__device_open_##name, lks__device_look_##name},
    LKS__DEVICES(X)
#undef X
        {.name = NULL},
};

const lks__device_row *lks__device_find(const char *text, int *number_p)
{
    *number_p = -1;
    for (const lks__device_row *row = lks__device_rows; row->name != NULL; row++) {
        const size_t n = strlen(row->name);
        if (strncmp(text, row->name, n) != 0 || (text[n] != '\0' && text[n] != ':'))
            continue;
        if (text[n] == ':') {
            const long number = strtol(text + n + 1, NULL, 10);
            *number_p = number < INT_MAX ? (int)number : INT_MAX;
        }
        return row;
    }
    return NULL;
}
