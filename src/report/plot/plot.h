/* report/plot/plot.h - the losses of runs as a picture: SVG, PNG, or characters. */
#pragma once

#include <stdio.h>

#include "report/view/series.h"

typedef enum lks__plot_axis { LKS__PLOT_STEPS, LKS__PLOT_TOKENS, LKS__PLOT_TIME } lks__plot_axis;

typedef struct lks__plot {
    const lks__series *runs;
    size_t n;
    lks__plot_axis axis;
    bool log_scale; /* of the losses */
} lks__plot;

/* Write a picture to the file `path`, whose name ends in .svg or .png, whole or not at all. Each
 * run has a faint line for its training loss, and a line with dots for its validation loss. Where a
 * run has the same losses as an earlier one, its line is dashed, so that both colours are visible.
 * The legend lists the settings that differ. ERR_SUPPORT if PNG isn't built in. */
lks_status lks__plot_file(const lks__plot *plot, const char *path);

/* ERR_SUPPORT, with the reason, if PNG can't be written. */
lks_status lks__plot_png_available(void);

/* Print it as characters, `columns` wide. With `braille` a single run is drawn in Braille dots, 2
 * by 4 per character. Several runs are drawn with one letter each. */
lks_status lks__plot_text(const lks__plot *plot, FILE *out, int columns, bool braille);
