/* report/live/screen.h - runs in a terminal (`lockstep watch --tty`). */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "report/view/series.h"

/* Print each run's newest numbers and its loss as a line of bars, as far as they fit into `rows`
 * lines of `columns` characters, from run `first` on. If not all of them fit, the last line says
 * which ones are shown. Returns the end of those. utf8: bars of block characters; otherwise of
 * ASCII. */
size_t lks__screen(FILE *out, const lks__runs *runs, size_t first, int rows, int columns,
                   bool utf8);

/* Show it until the user presses q or asked() is true, and follow the runs, with those that begin
 * later. ERR_SUPPORT without the module; ERR_CONFIG if standard input or output isn't a terminal.
 */
lks_status lks__screen_show(lks__runs *runs, bool utf8, bool (*asked)(void));
