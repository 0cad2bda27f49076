/* report/plot/curves.h - the points of a picture, and the marks of its axes. */
#pragma once

#include "report/plot/plot.h"

typedef struct lks__plot_point {
    double x, y;       /* with log_scale, y is log10 of the loss */
    unsigned repeated; /* earlier runs that have the same point */
    bool final;        /* the evaluation of a final checkpoint */
} lks__plot_point;

typedef struct lks__curve {
    lks__plot_point *train, *val;
    size_t n_train, n_val;
    const lks__series *same; /* an earlier run with all of this run's losses; NULL: none */
} lks__curve;

typedef struct lks__bounds {
    double x_low, x_high, y_low, y_high;
} lks__bounds;

/* The points of plot->n runs, which lks__curves_free() frees, and their bounds, which are never
 * empty. ERR_CONFIG if there are fewer than two points of training. */
lks_status lks__curves_read(const lks__plot *plot, lks__curve **curves_p, lks__bounds *bounds);
void lks__curves_free(lks__curve *curves, size_t n);

/* The place of iteration `iter` of a run on the horizontal axis. */
double lks__curves_x(const lks__plot *plot, const lks__series *run, uint64_t iter);

enum { LKS__PLOT_MARKS = 24, LKS__PLOT_MARK = 24 };

typedef struct lks__marks {
    int n;
    double at[LKS__PLOT_MARKS];
    char text[LKS__PLOT_MARKS][LKS__PLOT_MARK];
    char name[LKS__PLOT_MARK]; /* of the axis, with its unit */
} lks__marks;

/* Round numbers within the bounds. */
void lks__marks_x(const lks__plot *plot, const lks__bounds *bounds, lks__marks *marks);
void lks__marks_y(const lks__plot *plot, const lks__bounds *bounds, lks__marks *marks);
