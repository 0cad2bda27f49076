/* base/text/nearest.h - "did you mean": the name closest to a mistyped one. */
#pragma once

#include <stddef.h>

/* The name with the smallest edit distance to `word` (insert, delete, replace and swap neighbours
 * cost 1 each; '-' equals '_'), or NULL if all are too far away. NULL entries are skipped. Words
 * may have any length; only the first 64 bytes count. */
const char *lks__nearest(const char *word, const char *const *names, size_t n_names);
