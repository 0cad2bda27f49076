/* rundir/evals.h - OUT/evals.jsonl: what `eval` and `--eval_only` found (docs/formats.md). */
#ifndef LKS_RUNDIR_EVALS_H
#define LKS_RUNDIR_EVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/jsonw.h"

typedef struct lks__evals {
    lks__jsonw w;
    char line[16 << 10];
} lks__evals;

/* One line: begin, members on the writer it returns, append. */
lks__jsonw *lks__evals_begin(lks__evals *e, const char *kind, uint64_t iter,
                             const char *params_hash);

/* Append the line, whole, at once, to the file in `out_dir`. A folder that must not be written to
 * is no failure: why[200] then says so (else it is empty), and the run goes on. */
lks_status lks__evals_append(lks__evals *e, const char *out_dir, char why[200]);

#endif
