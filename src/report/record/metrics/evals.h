/* report/record/metrics/evals.h - OUT/evals.jsonl: results of `eval` and `--eval_only`
 * (docs/reference/formats.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/text/jsonw.h"

typedef struct lks__evals {
    lks__jsonw w;
    char line[16 << 10];
} lks__evals;

/* To write one line: begin, add members to the returned writer, append. */
lks__jsonw *lks__evals_begin(lks__evals *e, const char *kind, uint64_t iter,
                             const char *params_hash);

/* Append the line to the file in `out_dir` with one write. A folder that isn't writable is not an
 * error: why[200] then contains the reason; otherwise it is empty. */
lks_status lks__evals_append(lks__evals *e, const char *out_dir, char why[200]);
