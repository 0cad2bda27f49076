/* report/plot/png_module.c - pictures as PNG, drawn by cairo: the module lockstep_png.so. */
#include <cairo.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "report/plot/png_module.h"

enum { SCALE = 2 }; /* pixels per point, in both directions */

struct file {
    unsigned char *data;
    size_t bytes;
};

static void use_colour(cairo_t *c, unsigned colour)
{
    cairo_set_source_rgb(c, (colour >> 16 & 0xff) / 255.0, (colour >> 8 & 0xff) / 255.0,
                         (colour & 0xff) / 255.0);
}

static void draw_line(void *ctx, const double *xy, size_t n, const lks__pen *pen)
{
    const double dashes[] = {pen->dash, pen->gap};
    use_colour(ctx, pen->colour);
    cairo_set_line_width(ctx, pen->width);
    cairo_set_line_join(ctx, CAIRO_LINE_JOIN_ROUND);
    cairo_set_dash(ctx, dashes, pen->gap > 0.0 ? 2 : 0, -pen->offset);
    cairo_new_path(ctx); /* a text leaves a current point */
    for (size_t i = 0; i < n; i++)
        cairo_line_to(ctx, xy[2 * i], xy[2 * i + 1]);
    cairo_stroke(ctx);
}

static void draw_dot(void *ctx, double x, double y, double radius, unsigned fill, unsigned ring)
{
    cairo_new_path(ctx);
    cairo_arc(ctx, x, y, radius, 0.0, 6.283185307179586);
    use_colour(ctx, fill);
    cairo_fill_preserve(ctx);
    use_colour(ctx, ring);
    cairo_set_line_width(ctx, LKS__RING);
    cairo_set_dash(ctx, NULL, 0, 0.0);
    cairo_stroke(ctx);
}

static void draw_text(void *ctx, double x, double y, int anchor, unsigned colour, int size,
                      const char *words)
{
    cairo_text_extents_t extents;
    cairo_select_font_face(ctx, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           size == LKS__SIZE_TITLE ? CAIRO_FONT_WEIGHT_BOLD
                                                   : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(ctx, size);
    cairo_text_extents(ctx, words, &extents);
    use_colour(ctx, colour);
    cairo_move_to(ctx, x - extents.x_advance * (anchor + 1) / 2.0, y);
    cairo_show_text(ctx, words);
}

static void begin_layer(void *ctx, double opacity)
{
    cairo_push_group(ctx);
}

static void end_layer(void *ctx, double opacity)
{
    cairo_pop_group_to_source(ctx);
    cairo_paint_with_alpha(ctx, opacity);
}

static const char *open_png(int width, int height, lks__canvas *canvas)
{
    cairo_surface_t *s =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, width * SCALE, height * SCALE);
    cairo_t *c = cairo_create(s);
    cairo_surface_destroy(s); /* `c` keeps it */
    if (cairo_status(c) != CAIRO_STATUS_SUCCESS) {
        const char *why = cairo_status_to_string(cairo_status(c));
        cairo_destroy(c);
        return why;
    }
    cairo_scale(c, SCALE, SCALE);
    cairo_set_source_rgb(c, 1.0, 1.0, 1.0);
    cairo_paint(c);
    *canvas = (lks__canvas){.ctx = c,
                            .line = draw_line,
                            .dot = draw_dot,
                            .text = draw_text,
                            .begin_layer = begin_layer,
                            .end_layer = end_layer};
    return NULL;
}

static cairo_status_t append(void *ctx, const unsigned char *data, unsigned bytes)
{
    struct file *f = ctx;
    unsigned char *more = realloc(f->data, f->bytes + bytes);
    if (more == NULL)
        return CAIRO_STATUS_NO_MEMORY;
    f->data = more;
    memcpy(f->data + f->bytes, data, bytes);
    f->bytes += bytes;
    return CAIRO_STATUS_SUCCESS;
}

static unsigned char *finish(lks__canvas *canvas, size_t *bytes_p)
{
    struct file f = {NULL, 0};
    cairo_t *c = canvas->ctx;
    bool drawn = cairo_status(c) == CAIRO_STATUS_SUCCESS;
    if (drawn)
        drawn = cairo_surface_write_to_png_stream(cairo_get_target(c), append, &f) ==
                CAIRO_STATUS_SUCCESS;
    cairo_destroy(c);
    if (!drawn) {
        free(f.data);
        return NULL;
    }
    *bytes_p = f.bytes;
    return f.data;
}

LKS__MODULE_EXPORT const lks__png_module lks__module_table = {LKS__PNG_MODULE_VERSION, open_png,
                                                              finish};
