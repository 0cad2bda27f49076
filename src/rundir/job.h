/* rundir/job.h - a run that its launcher has started anew after a failure. */
#ifndef LKS_RUNDIR_JOB_H
#define LKS_RUNDIR_JOB_H

#include <stdbool.h>

#include "base/status.h"

/* The launcher names the job (LOCKSTEP_JOB; torchrun, TORCHELASTIC_RUN_ID) and counts its starts
 * (TORCHELASTIC_RESTART_COUNT), and the run leaves the job's name in OUT/.lock, behind what
 * rundir/outdir.h writes there. So a second start
 * knows whether what is in OUT is its own first one's, to go on from, or an earlier run's, which
 * the first start had no time to move away. */

/* Rank 0, once nothing of an earlier run is in OUT any more: leave the name. Nothing without a
 * launcher that starts anew. */
lks_status lks__job_mark(const char *out_dir);

/* Is this a later start of the job whose run OUT has? */
bool lks__job_goes_on(const char *out_dir);

#endif
