/* train/audit/seal.h - the seal of a run that is published: SHA-256 of its files. */
#pragma once

#include "train/audit/replay.h"

/* Print a line "SHA-256  NAME" for each file of the record, the checkpoints and the data, and the
 * SHA-256 of these lines, which is the seal. The names are those in the run's folder, and data/NAME
 * for token files, wherever they are. */
lks_status lks__seal_print(const lks__replay *r);

/* Compare the files with `wanted`, a seal or the path of a file with the lines. Each difference is
 * a finding (train/audit/replay.h). ERR_CONFIG if it is neither. */
lks_status lks__seal_check(lks__replay *r, const char *wanted);

/* Compare two lists of lines; other lines in `sealed` don't count. */
void lks__seal_compare(lks__replay *r, const char *sealed, const char *have);
