/* rundir/metrics.h - OUT/metrics.jsonl: what a run leaves for programs to read; its
 * fields: docs/formats.md.
 *
 * Two equal runs give equal lines, but for `host` lines and the fields ms, tok_per_s, mfu and
 * comm_exposed_ms. Rank 0 writes. */
#ifndef LKS_RUNDIR_METRICS_H
#define LKS_RUNDIR_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/jsonw.h"

typedef struct lks__metrics lks__metrics; /* opaque; close with lks__metrics_close() */

/* Open the file in `out_dir`, empty. ERR_IO names it. */
lks_status lks__metrics_create(const char *out_dir, lks__metrics **metrics_p);

/* What of the file belongs to the checkpoint that a run goes on from. */
typedef struct lks__metrics_cut {
    uint64_t iter;
    bool eval_done; /* evaluation `iter` was made before the checkpoint */
    bool own_line;  /* false: its own line goes too, as the run will write it again */
} lks__metrics_cut;

/* Open it to go on from a checkpoint: it is cut behind that checkpoint's own line, or, where the
 * run died before writing it, behind the last line of what the checkpoint holds (*has_line_p =
 * false). The file is read from its end, in pieces, so its size doesn't matter. A line that isn't
 * whole is cut off. *empty_p: nothing is left. ERR_FORMAT names the file and the offset of a line
 * behind the cut that no run has written. */
lks_status lks__metrics_resume(const char *out_dir, const lks__metrics_cut *cut, bool *empty_p,
                               bool *has_line_p, lks__metrics **metrics_p);
lks_status lks__metrics_close(lks__metrics *metrics); /* NULL is fine */

/* One object: lks__metrics_begin(m, "train"), members on the writer it returns, lks__metrics_end().
 * Lines are written whole, at once. */
lks__jsonw *lks__metrics_begin(lks__metrics *metrics, const char *kind);
lks_status lks__metrics_end(lks__metrics *metrics);

#endif
