/* launch/launch.h - starts ranks as processes, for any program, as torchrun does. */
#pragma once

#include "base/status.h"
#include "launch/options.h"

/* Start `nproc` ranks of argv and wait for them. Their environment is torchrun's (RANK LOCAL_RANK
 * WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME
 * MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID,
 * TORCHELASTIC_ERROR_FILE with log_dir, OMP_NUM_THREADS=1 if unset and nproc > 1). They also get
 * LOCKSTEP_JOB (an identity that all starts of this job share, and no other job), a shared segment
 * (comm/shm/segment/segment.h) and the job's store (comm/store/store.h).
 *
 * If a rank dies (signal or non-zero exit), the others are ended: SIGTERM, 1 s later SIGKILL, whole
 * process groups. If restarts are left, all ranks start again. Otherwise one last message names the
 * rank that failed first, with its host, pid, signal or exit code, step, phase and last lines on
 * stderr.
 *
 * Signals to stop are passed on once, so that ranks stop in order; a second signal, or the shutdown
 * timeout, kills. While a rank saves a checkpoint, only the third signal kills. A signal that
 * arrives before a rank has its handler waits (deliver.c), and a signal that was ignored when we
 * started stays ignored. SIGUSR1 and SIGUSR2 are passed on each time, and stop nothing, unless a
 * rank then exits with 128 + that signal's number: that is an orderly stop. If the launcher itself
 * is killed, the ranks end with it (PR_SET_PDEATHSIG), and so do their children (front.c, guard.c).
 *
 * The calling process stays in front and ends as the launcher ends. The call returns in its child
 * (front.c). No other thread may be running.
 *
 * *exit_code_p: 0, or the exit code of the rank that failed first (128 + signal if it was
 * killed). */
lks_status lks__launch(const lks__launch_options *options, int *exit_code_p);
