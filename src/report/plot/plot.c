/* report/plot/plot.c - pictures as files: SVG, and PNG by a module. */
#include "report/plot/plot.h"

#include <stdlib.h>
#include <string.h>

#include "base/system/module.h"
#include "base/system/sys.h"
#include "base/text/memstream.h"
#include "report/plot/picture.h"
#include "report/plot/png_module.h"

/* --- SVG -------------------------------------------------------------------------------------- */

static void svg_line(void *ctx, const double *xy, size_t n, const lks__pen *pen)
{
    FILE *out = ctx;
    fprintf(out, "<polyline fill=\"none\" stroke=\"#%06x\" stroke-width=\"%g\"", pen->colour,
            pen->width);
    if (pen->gap > 0.0)
        fprintf(out, " stroke-dasharray=\"%g %g\" stroke-dashoffset=\"%g\"", pen->dash, pen->gap,
                -pen->offset);
    fputs(" stroke-linejoin=\"round\" points=\"", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%.1f,%.1f", i > 0 ? " " : "", xy[2 * i], xy[2 * i + 1]);
    fputs("\"/>\n", out);
}

static void svg_dot(void *ctx, double x, double y, double radius, unsigned fill, unsigned ring)
{
    fprintf(ctx,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"#%06x\" stroke=\"#%06x\" "
            "stroke-width=\"%g\"/>\n",
            x, y, radius, fill, ring, LKS__RING);
}

/* `words` is valid UTF-8. XML also excludes control characters, U+FFFE and U+FFFF. */
static void svg_words(FILE *out, const char *words)
{
    for (const char *from = words; *words != '\0'; words++) {
        const unsigned char c = (unsigned char)*words;
        if (words - from >= 2 && memcmp(words - 2, "\xef\xbf", 2) == 0 && c >= 0xbe)
            fputc(0xbd, out); /* U+FFFD */
        else if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'')
            fprintf(out, "&#%u;", c);
        else
            fputc(c < 0x20 || c == 0x7f ? ' ' : c, out);
    }
}

static void svg_text(void *ctx, double x, double y, int anchor, unsigned colour, int size,
                     const char *words)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(ctx, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"#%06x\"", x, y,
            anchors[anchor + 1], colour);
    if (size == LKS__SIZE_TITLE)
        fprintf(ctx, " font-size=\"%d\" font-weight=\"bold\"", size);
    fputc('>', ctx);
    svg_words(ctx, words);
    fputs("</text>\n", ctx);
}

static void svg_begin_layer(void *ctx, double opacity)
{
    fprintf(ctx, "<g opacity=\"%g\">\n", opacity);
}

static void svg_end_layer(void *ctx, double opacity)
{
    fputs("</g>\n", ctx);
}

/* The background is a part of the picture: text stays readable whatever a viewer puts below it. */
static void svg_head(FILE *out, const lks__plot *p)
{
    static const unsigned inks[][2] = {{LKS__INK_BACK, 0x16191d},
                                       {LKS__INK_TITLE, 0xe6eaef},
                                       {LKS__INK_TEXT, 0x9da7b3},
                                       {LKS__INK_RULE, 0x2f363f}};
    const int width = LKS__PICTURE_WIDTH, height = lks__picture_height(p);
    char title[LKS__PICTURE_TITLE];
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\" font-family=\"sans-serif\" font-size=\"%d\">\n<title>",
            width, height, width, height, LKS__SIZE_TEXT);
    svg_words(out, lks__picture_title(p, title));
    fputs("</title>\n<style>@media (prefers-color-scheme: dark) {", out);
    for (size_t i = 0; i < sizeof inks / sizeof inks[0]; i++)
        fprintf(out, " [fill=\"#%06x\"] { fill: #%06x } [stroke=\"#%06x\"] { stroke: #%06x }",
                inks[i][0], inks[i][1], inks[i][0], inks[i][1]);
    fprintf(out, " }</style>\n<rect width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#%06x\"/>\n", width,
            height, LKS__INK_BACK);
}

static lks_status write_svg(const lks__plot *p, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    LKS__MEMORY(out, "for a picture");
    lks__canvas to = {.ctx = out,
                      .line = svg_line,
                      .dot = svg_dot,
                      .text = svg_text,
                      .begin_layer = svg_begin_layer,
                      .end_layer = svg_end_layer};
    svg_head(out, p);
    lks_status st = lks__picture_draw(p, &to);
    fputs("</svg>\n", out);
    if (lks__memstream_end(out, &text) == NULL && st == LKS_OK)
        st = lks__no_memory("for a picture");
    LKS__THEN(st, lks__sys_write_file(path, text, bytes));
    free(text);
    return st;
}

/* --- PNG -------------------------------------------------------------------------------------- */

static lks_status png_module(const lks__png_module **module_p)
{
    char why[256], advice[LKS__MODULE_ADVICE];
    *module_p = lks__module_load(LKS__PNG_MODULE_FILE, LKS__PNG_MODULE_VERSION, why, sizeof why);
    if (*module_p == NULL)
        return lks__fail(
            LKS_ERR_SUPPORT,
            "this build of lockstep can't write PNG (%s): give a name that ends in .svg, or %s",
            why, lks__module_advice(LKS__PNG_MODULE_FILE, "libcairo2-dev", advice));
    return LKS_OK;
}

lks_status lks__plot_png_available(void)
{
    const lks__png_module *module;
    return png_module(&module);
}

static lks_status write_png(const lks__plot *p, const char *path)
{
    const lks__png_module *module = NULL;
    lks__canvas to;
    size_t bytes;
    LKS__TRY(png_module(&module));
    const char *why = module->open(LKS__PICTURE_WIDTH, lks__picture_height(p), &to);
    if (why != NULL)
        return lks__fail(LKS_ERR_NOMEM, "can't draw the picture: %s", why);
    lks_status st = lks__picture_draw(p, &to);
    unsigned char *file = module->finish(&to, &bytes);
    if (st == LKS_OK && file == NULL)
        st = lks__no_memory("for a picture");
    LKS__THEN(st, lks__sys_write_file(path, file, bytes));
    free(file);
    return st;
}

/* --- both ------------------------------------------------------------------------------------- */

lks_status lks__plot_file(const lks__plot *p, const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot != NULL && dot > path && strcmp(dot, ".svg") == 0)
        return write_svg(p, path);
    if (dot != NULL && dot > path && strcmp(dot, ".png") == 0)
        return write_png(p, path);
    return lks__fail(LKS_ERR_CONFIG, "--out=%s: the name must end in .svg or .png",
                     lks__shown(path, 512));
}
