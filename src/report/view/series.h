/* report/view/series.h - the numbers of a run, read from OUT/metrics.jsonl, while the run writes it
 * or later. Reading changes nothing. */
#pragma once

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
    bool final; /* of the final checkpoint; not a point of the curve */
} lks__eval_point;

enum { LKS__MARK_TEXT = 128 };

typedef struct lks__run_mark {
    uint64_t iter;
    char kind[16]; /* start, resume and segment (host lines); checkpoint, skip, rollback, … */
    char text[LKS__MARK_TEXT]; /* any characters */
} lks__run_mark;

typedef struct lks__series {
    char dir[4096], name[256]; /* the name is UTF-8 */
    bool named;                /* by the user: NAME=FOLDER */
    json_t *config;            /* settings, updated by later starts; NULL: no such line yet */
    json_t *host, *end;        /* lines of the newest start and of its end; NULL: none yet */
    json_t *artifact;          /* the newest line of golf's artifact; NULL: none yet */
    lks__point *points;
    size_t n_points, points_room;
    lks__eval_point *evals;
    size_t n_evals, evals_room;
    lks__run_mark *marks;
    size_t n_marks, marks_room;
    unsigned starts, skips, rollbacks, rechecks, checkpoints;
    char params_hash[32]; /* of the newest checkpoint */
    /* From ranks.jsonl: rows [iter, tokens, seconds, compute_ms, wait_ms, memory_bytes]; the last
     * three are arrays by rank, or null. A new array replaces it when the file grows. */
    json_t *ranks;
    uint64_t ranks_bytes; /* size of the file when it was read */
    /* Texts of the newest evaluations: rows [iter, text]. NULL: none yet. */
    json_t *samples;
    unsigned samples_made; /* increases when they change */
    bool running;          /* a process has the run's lock */
    size_t bad;            /* lines that no run has written; they are left out */
    unsigned epoch;        /* increases when the numbers read before become invalid */
    /* Offset up to which the file was read, and the bytes before it: if those change, the file was
     * truncated or replaced. */
    uint64_t offset;
    char before[64];
    size_t n_before;
    double elapsed;
} lks__series;

/* Several runs. */
typedef struct lks__runs {
    lks__series *all;
    size_t n;
    /* Append runs that have begun since. May move `all`. NULL: none can. */
    void (*find)(struct lks__runs *runs);
    void *ctx; /* for find() */
} lks__runs;

/* The folder in `arg`, which is FOLDER or NAME=FOLDER. */
const char *lks__series_dir(const char *arg);
/* Open the run in that folder, and read its lines. ERR_CONFIG if it has no metrics.jsonl. */
lks_status lks__series_open(const char *arg, lks__series *s);
/* Read new lines. A file that was replaced, or cut by a resume, is read again from its start. */
lks_status lks__series_read(lks__series *s);
void lks__series_close(lks__series *s);

/* The step after the last one. */
uint64_t lks__series_steps(const lks__series *s);
/* The last loss and the lowest validation loss; NAN, NULL if there are none. */
double lks__series_last_loss(const lks__series *s);
const lks__eval_point *lks__series_best(const lks__series *s);
/* The newest evaluation, including the final checkpoint's; NULL if there is none. */
const lks__eval_point *lks__series_last_eval(const lks__series *s);
/* True if the run has ended, no step follows, and its final checkpoint was evaluated, unless the
 * run makes no evaluations. */
bool lks__series_complete(const lks__series *s);

/* "running", "complete", "stopped"; "running, or stopped without an end" if the run uses no lock;
 * "" without a record. */
const char *lks__series_state(const lks__series *s);

/* The mark of the next segment, which a resume with another batch has begun; `after` is NULL for
 * the first one. NULL: none is left. */
const lks__run_mark *lks__series_segment(const lks__series *s, const lks__run_mark *after);

/* A setting as text: strings unchanged, others as JSON; "-" if the run lacks it. */
const char *lks__series_setting(const lks__series *s, const char *key, char out[256]);
/* True if both runs have the same value of a setting, or none. */
bool lks__series_same(const lks__series *a, const lks__series *b, const char *key);
