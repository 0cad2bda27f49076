/* report/record/job.h - recognizes a run that its launcher has restarted after a failure. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* The launcher names the job (LOCKSTEP_JOB, or torchrun's TORCHELASTIC_RUN_ID) and counts its
 * starts (TORCHELASTIC_RESTART_COUNT). The run writes the job's name into OUT/.lock, after the line
 * that report/record/outdir.h writes there. So a later start knows whether the files in OUT come
 * from the job's first start, which it continues, or from an earlier run that the first start had
 * no time to move away. */

enum { LKS__JOB_LINE = 256 };

/* The line that names the job; "" if it has no name, or one that doesn't identify it. */
void lks__job_line(char line[LKS__JOB_LINE]);

/* Write the job's name. Rank 0 calls it after the files of an earlier run have left OUT. Does
 * nothing if the launcher never restarts. */
lks_status lks__job_mark(const char *out_dir);

/* True if this is a later start of the job whose run is in OUT. */
bool lks__job_restarted(const char *out_dir);
