/* report/view/series.h - the numbers of a run, read from OUT/metrics.jsonl, while the run writes it
 * or later. Reading changes nothing. */
#ifndef LKS_REPORT_VIEW_SERIES_H
#define LKS_REPORT_VIEW_SERIES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Numbers that a line lacks, or has as null, are NAN. */
typedef struct lks__point {
    uint64_t iter;
    double loss, lr, grad_norm, tokens, ms, tok_per_s, mfu, wait_ms;
    double seconds; /* of all steps so far, without evaluations */
} lks__point;

typedef struct lks__eval_point {
    uint64_t iter;
    double train_loss, val_loss, val_bpb, tokens, seconds;
    bool final; /* of the final checkpoint; such a one is not a point of the curve */
} lks__eval_point;

enum { LKS__MARK_TEXT = 128 };

typedef struct lks__run_mark {
    uint64_t iter;
    char kind[16];             /* of the line: start (host), checkpoint, skip, rollback, artifact */
    char text[LKS__MARK_TEXT]; /* any characters */
} lks__run_mark;

typedef struct lks__series {
    char dir[4096], name[256]; /* the name is UTF-8 */
    json_t *config;     /* settings, with what later starts have changed; NULL: no such line yet */
    json_t *host, *end; /* the newest start's line; that of its end, NULL while it runs */
    lks__point *points;
    size_t n_points, points_room;
    lks__eval_point *evals;
    size_t n_evals, evals_room;
    lks__run_mark *marks;
    size_t n_marks, marks_room;
    unsigned starts, skips, rollbacks, checkpoints;
    char params_hash[32]; /* of the newest checkpoint */
    /* Of ranks.jsonl: an array of rows [iter, tokens, seconds, compute_ms, wait_ms, memory_bytes],
     * the last three by rank, null if they aren't there. A new array when there is more. */
    json_t *ranks;
    uint64_t ranks_bytes; /* of the file, when it was read */
    /* The newest evaluations that have a text: rows [iter, text]. NULL: none yet. */
    json_t *samples;
    unsigned samples_made; /* grows when they change */
    size_t bad;            /* lines that no run has written; they are left out */
    unsigned epoch;        /* grows when what was read before doesn't hold any more */
    /* How far the file was read, and the bytes before that place, to notice that it was cut. */
    uint64_t offset;
    char before[64];
    size_t n_before;
    double elapsed;
} lks__series;

/* The folder in `what`: all of it, or what follows NAME=. */
const char *lks__series_dir(const char *what);
/* The run in `what`: a folder, or NAME=FOLDER. Reads all that is there. ERR_CONFIG if there is no
 * metrics.jsonl. */
lks_status lks__series_open(const char *what, lks__series *s);
/* Read what was added since. *changed_p: anything was. If the file was cut, as by a resume, or
 * replaced, all is read again. */
lks_status lks__series_read(lks__series *s, bool *changed_p);
void lks__series_close(lks__series *s);

/* The last loss and the lowest validation loss; NAN, NULL if there are none. */
double lks__series_last_loss(const lks__series *s);
const lks__eval_point *lks__series_best(const lks__series *s);
/* The newest evaluation, also of the final checkpoint. */
const lks__eval_point *lks__series_last_eval(const lks__series *s);
/* True if the run has ended, its final checkpoint was evaluated, and no step follows. */
bool lks__series_complete(const lks__series *s);

/* A setting as text: strings as they are, the rest as JSON; "-" if the run has none. */
const char *lks__series_setting(const lks__series *s, const char *key, char out[256]);

#endif
