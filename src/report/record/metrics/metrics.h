/* report/record/metrics/metrics.h - OUT/metrics.jsonl: the record of a run for programs;
 * docs/reference/formats.md describes its fields.
 *
 * Two equal runs give equal lines, except `host` lines and the fields ms, tok_per_s, mfu and
 * comm_exposed_ms. Rank 0 writes it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/text/jsonw.h"

/* Version of metrics.jsonl's form, in host lines. Increase it if a reader of the old form would
 * misread the new one; additional members and kinds don't count. */
enum { LKS__METRICS_SCHEMA = 1 };

typedef struct lks__metrics lks__metrics; /* opaque; close with lks__metrics_close() */

/* Open an empty file in `out_dir`. ERR_IO names it. */
lks_status lks__metrics_create(const char *out_dir, lks__metrics **metrics_p);

/* The checkpoint from which a run continues. */
typedef struct lks__metrics_cut {
    uint64_t iter;
    bool eval_done;          /* evaluation `iter` precedes the checkpoint */
    bool own_line;           /* false: cut its own line, too, because the run will write it again */
    const char *params_hash; /* of its weights; "" or NULL: unknown */
} lks__metrics_cut;

/* Open it to continue from a checkpoint. It is cut after that checkpoint's own line, or, if the run
 * died before it wrote that, after the last line of the checkpoint's state (*has_line_p = false).
 * If the run ended with this checkpoint, its `final` and `artifact` lines stay after the own line;
 * an equal line that is written again is left out.
 * The file is read from its end, in pieces, so its size doesn't matter. An incomplete line is cut
 * off. *empty_p: nothing is left. ERR_FORMAT names the file and the offset of a line after the cut
 * that no run has written. */
lks_status lks__metrics_resume(const char *out_dir, const lks__metrics_cut *cut, bool *empty_p,
                               bool *has_line_p, lks__metrics **metrics_p);
/* True if the checkpoint's own line has other weights: the file may be another run's. */
bool lks__metrics_is_other(const lks__metrics *metrics);
/* The dataset's path in the run's last host line: as it was used, and absolute ("" in lines of
 * 0.1.0). *found_p is false if the line or the file is missing. A line that no run has written is
 * ERR_FORMAT. */
enum { LKS__METRICS_PATH = 4096 };
lks_status lks__metrics_dataset(const char *out_dir, char used[LKS__METRICS_PATH],
                                char absolute[LKS__METRICS_PATH], bool *found_p);

/* The settings in its last host line, which checkpoints lack, as an object that the caller frees;
 * NULL if it has none. Errors as above. */
lks_status lks__metrics_settings(const char *out_dir, json_t **settings_p);

/* The newest `eval` line of iteration `iter` in an open file, as an object that the caller frees;
 * NULL if there is none. Reads backwards to an earlier iteration's line. */
lks_status lks__metrics_eval_at(const lks__metrics *metrics, uint64_t iter, json_t **eval_p);

lks_status lks__metrics_close(lks__metrics *metrics); /* NULL does nothing */

/* Write one object: lks__metrics_begin(m, "train"), members on the returned writer,
 * lks__metrics_end(). Each line is written at once. */
lks__jsonw *lks__metrics_begin(lks__metrics *metrics, const char *kind);
lks_status lks__metrics_end(lks__metrics *metrics);

/* ERR_IO if the file at the path isn't the open one any more: a resume would miss these lines, and
 * a checkpoint might get into another run's folder. */
lks_status lks__metrics_check(const lks__metrics *metrics);

/* Make durable all lines that were written, then lks__metrics_check(). */
lks_status lks__metrics_sync(lks__metrics *metrics);
