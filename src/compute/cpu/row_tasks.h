/* compute/cpu/row_tasks.h - cuts operations on [rows, C] into tasks. The cuts depend only on the
 * shape. */
#pragma once

#include <stddef.h>

#include "base/number/checked.h"

/* Blocks of this size give few partial sums, and their rows fit in the second-level cache. */
enum { ROWS_A_TASK = 32, COLS_A_TASK = 64 };

/* Rows [first, end) of a task. */
struct row_range {
    size_t first, end;
};

static inline struct row_range rows_of(size_t task, size_t rows)
{
    return (struct row_range){task * ROWS_A_TASK, lks__min((task + 1) * ROWS_A_TASK, rows)};
}

static inline size_t row_tasks(size_t rows)
{
    return (rows + ROWS_A_TASK - 1) / ROWS_A_TASK;
}

static inline size_t col_tasks(size_t C)
{
    return (C + COLS_A_TASK - 1) / COLS_A_TASK;
}
