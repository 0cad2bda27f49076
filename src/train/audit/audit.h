/* train/audit/audit.h - `lockstep audit`: executes parts of a run again, and compares them with the
 * run's record. */
#pragma once

#include <stdio.h>

#include "settings/settings.h"

/* FALSE: a claim of the record is false. IMPOSSIBLE: none is, but a part can't be executed here. */
enum lks__verdict { LKS__VERDICT_EQUAL, LKS__VERDICT_FALSE, LKS__VERDICT_IMPOSSIBLE };

/* Audit the parts that `s` asks for, and print the results. Writes nothing; the run may be in
 * progress. ERR_CONFIG for settings that don't fit the run; other errors: the record can't be
 * read. */
lks_status lks__audit(const char *run, const lks__settings *s, FILE *out,
                      enum lks__verdict *verdict_p);
