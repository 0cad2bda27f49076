/* report/plot/picture.h - draws the losses of runs on a canvas. */
#pragma once

#include "report/plot/canvas.h"
#include "report/plot/plot.h"

enum { LKS__PICTURE_WIDTH = 760, LKS__PICTURE_TITLE = 128 };

/* Points of height. Each of several runs has a line in the legend. */
int lks__picture_height(const lks__plot *plot);
/* "Training and validation loss of 2 runs". */
const char *lks__picture_title(const lks__plot *plot, char out[LKS__PICTURE_TITLE]);
lks_status lks__picture_draw(const lks__plot *plot, lks__canvas *to);
