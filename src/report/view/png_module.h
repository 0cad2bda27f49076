/* report/view/png_module.h - what the module lockstep_png.so offers to report/view/plot.c: cairo.
 */
#ifndef LKS_REPORT_VIEW_PNG_MODULE_H
#define LKS_REPORT_VIEW_PNG_MODULE_H

#include <stddef.h>

#include "base/system/module.h"

/* What a picture is made of. Colours are 0xRRGGBB; an anchor is -1 (the text begins there), 0 (its
 * middle is there) or 1 (it ends there). */
typedef struct lks__canvas {
    void *ctx;
    void (*line)(void *ctx, const double *xy, size_t n, unsigned colour, double width,
                 double opacity);
    void (*dot)(void *ctx, double x, double y, double radius, unsigned colour);
    void (*text)(void *ctx, double x, double y, int anchor, unsigned colour, const char *words);
} lks__canvas;

/* The module lockstep_png.so: a canvas that becomes a PNG file. */
#define LKS__PNG_MODULE_FILE "lockstep_png.so"

enum { LKS__PNG_MODULE_VERSION = 1 }; /* increase it with every change of what is above or below */

typedef struct lks__png_module {
    int version;
    /* A picture of so many points, on white, twice as many pixels; 0 or an error text. */
    const char *(*open)(int width, int height, lks__canvas *canvas);
    /* Returns the bytes of the file in memory that free() frees, or NULL. */
    unsigned char *(*finish)(lks__canvas *canvas, size_t *bytes_p);
} lks__png_module;

#endif
