/* launch/launch.h - ranks as processes on this host. */
#ifndef LKS_LAUNCH_LAUNCH_H
#define LKS_LAUNCH_LAUNCH_H

#include <stdbool.h>

#include "base/status.h"

typedef struct lks__launch_options {
    int nproc;         /* ranks to start */
    char *const *argv; /* program and arguments, NULL-terminated; argv[0] is searched in PATH */
    const char *self;  /* name for messages: "lockstep train" */
} lks__launch_options;

/* Start `nproc` ranks of argv with torchrun's environment (RANK LOCAL_RANK WORLD_SIZE
 * LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR
 * MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID,
 * OMP_NUM_THREADS=1 if unset and nproc > 1) and a shared segment (comm/shm/segment.h), and wait for
 * them.
 *
 * A rank that dies (signal or non-zero exit) ends the others: SIGTERM, 1 s later SIGKILL, whole
 * process groups; one message names the first that failed with its pid, signal or exit code, step
 * and phase. SIGINT, SIGTERM, SIGHUP of the launcher are passed on once (ranks stop orderly); a
 * second one, or 30 s, kills. When the launcher itself is killed, the ranks die with it
 * (PR_SET_PDEATHSIG).
 *
 * *exit_code_p: 0, or the first failed rank's exit code (128 + signal where it was killed). */
lks_status lks__launch(const lks__launch_options *options, int *exit_code_p);

#endif
