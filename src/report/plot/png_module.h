/* report/plot/png_module.h - the interface of the module lockstep_png.so to report/plot/plot.c. */
#pragma once

#include "base/system/module.h"
#include "report/plot/canvas.h"

#define LKS__PNG_MODULE_FILE "lockstep_png.so"

enum { LKS__PNG_MODULE_VERSION = 2 }; /* increase it with every change below or in canvas.h */

typedef struct lks__png_module {
    int version;
    /* Open a white canvas, in points of 2 by 2 pixels. NULL, or an error text. */
    const char *(*open)(int width, int height, lks__canvas *canvas);
    /* Close the canvas. Returns the PNG file's bytes, which free() frees, or NULL. */
    unsigned char *(*finish)(lks__canvas *canvas, size_t *bytes_p);
} lks__png_module;
