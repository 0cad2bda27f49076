/* report/plot/canvas.h - the operations that draw a picture. All lengths are in points. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Colours are 0xRRGGBB. An SVG replaces these by others on a dark screen. */
enum {
    LKS__INK_BACK = 0xffffff,
    LKS__INK_TITLE = 0x1f2328,
    LKS__INK_TEXT = 0x59636e,
    LKS__INK_RULE = 0xdde2e8,
};

enum { LKS__SIZE_TITLE = 15, LKS__SIZE_TEXT = 13 };

#define LKS__RING 1.5 /* width of the line around a dot */

/* The line is solid if `gap` is 0. Otherwise its first dash begins after `offset`. */
typedef struct lks__pen {
    unsigned colour;
    double width, dash, gap, offset;
} lks__pen;

/* `anchor` is the part of the text that is at x: its beginning (-1), middle (0) or end (1). */
typedef struct lks__canvas {
    void *ctx;
    void (*line)(void *ctx, const double *xy, size_t n, const lks__pen *pen);
    void (*dot)(void *ctx, double x, double y, double radius, unsigned fill, unsigned ring);
    void (*text)(void *ctx, double x, double y, int anchor, unsigned colour, int size,
                 const char *words);
    /* Operations between these two are one layer, which is as opaque as a whole. */
    void (*begin_layer)(void *ctx, double opacity);
    void (*end_layer)(void *ctx, double opacity);
} lks__canvas;
