/* report/live/screen.h - runs in a terminal: what `lockstep watch --tty` shows, as text. */
#ifndef LKS_REPORT_LIVE_SCREEN_H
#define LKS_REPORT_LIVE_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

#include "report/view/series.h"

/* Print what fits into `rows` lines of `columns` characters: for each run its newest numbers and a
 * line of small bars for its loss. utf8: bars of blocks; else of letters. */
void lks__screen(FILE *out, const lks__series *runs, size_t n, int rows, int columns, bool utf8);

/* Show it until the user presses q or asked() is true, and follow the runs. ERR_SUPPORT without
 * the module; ERR_CONFIG if standard input or output is no terminal. */
lks_status lks__screen_show(lks__series *runs, size_t n, bool utf8, bool (*asked)(void));

#endif
