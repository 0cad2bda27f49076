/* report/view/png_module.h - the interface of the module lockstep_png.so to report/view/plot.c. */
#ifndef LKS_REPORT_VIEW_PNG_MODULE_H
#define LKS_REPORT_VIEW_PNG_MODULE_H

#include <stddef.h>

#include "base/system/module.h"

/* Operations that draw a picture. Colours are 0xRRGGBB. `anchor` is the part of the text that is at
 * x: its beginning (-1), middle (0) or end (1). */
typedef struct lks__canvas {
    void *ctx;
    void (*line)(void *ctx, const double *xy, size_t n, unsigned colour, double width,
                 double opacity);
    void (*dot)(void *ctx, double x, double y, double radius, unsigned colour);
    void (*text)(void *ctx, double x, double y, int anchor, unsigned colour, const char *words);
} lks__canvas;

#define LKS__PNG_MODULE_FILE "lockstep_png.so"

enum { LKS__PNG_MODULE_VERSION = 1 }; /* increase it with every change above or below */

typedef struct lks__png_module {
    int version;
    /* Open a white canvas, in points of 2 by 2 pixels. NULL, or an error text. */
    const char *(*open)(int width, int height, lks__canvas *canvas);
    /* Close the canvas. Returns the PNG file's bytes, which free() frees, or NULL. */
    unsigned char *(*finish)(lks__canvas *canvas, size_t *bytes_p);
} lks__png_module;

#endif
