/* launch/launch.h - starts ranks as processes, for any program, as torchrun does. */
#ifndef LKS_LAUNCH_LAUNCH_H
#define LKS_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "launch/output/output.h"

enum { LKS__RUN_ID = 255 }; /* maximal bytes of a job's id */

/* Zeros are the defaults, except for nproc, argv and self. */
typedef struct lks__launch_options {
    int nproc;         /* ranks to start on this host */
    char *const *argv; /* program and arguments, NULL-terminated; argv[0] is looked up in PATH */
    const char *file;  /* the program's file, if argv[0] is only its name; or NULL */
    const char *self;  /* name for messages: "lockstep train" */

    int max_restarts; /* restarts after a failure, for the whole job */
    /* Time from a signal to stop, or the ranks' last heartbeat after it, to SIGKILL; 0: 30 s. */
    double shutdown_timeout_s;
    uint64_t signals;   /* bit n: signal n is passed on; 0: TERM INT HUP QUIT USR1 USR2 */
    const char *run_id; /* NULL: a new one; any bytes, at most LKS__RUN_ID */
    const char *role;   /* NULL: "default" */

    /* For several nodes, which all run the same command. */
    int min_nodes, max_nodes; /* max_nodes 0 or 1: only this node */
    int node_rank;            /* of this node; -1: any */
    /* The coordinator's address; with one node, the ranks' MASTER_ADDR. */
    const char *endpoint_host;
    int endpoint_port;      /* ... and port; with one node, MASTER_PORT (0: a free one) */
    const char *token;      /* the job's secret; for several nodes */
    const char *local_addr; /* this host's address for the others; NULL: the one that they see */
    int virtual_ranks;      /* start at most as many ranks as divide it evenly; 0: all */
    bool allow_uneven;      /* ... any number of ranks up to it */

    bool lifeline; /* stdin is a lifeline (launch/nodes/hosts.h) ... */
    bool quiet;    /* ... of a node other than the first, which prints for all */

    /* Output. By default, several ranks are shown with prefixes, and a single rank gets our own
     * streams. With log_dir both streams are also written to files. */
    /* Only rank 0 of the program writes to stdout: it gets our stdout, and streams have no
     * prefixes. */
    bool one_writer;
    const char *log_dir;      /* NULL: none, or a new one in TMPDIR if files were requested */
    const unsigned *tee;      /* [nproc] LKS__STD_... by local rank: to console and file; or NULL */
    const unsigned *redirect; /* [nproc] only to the file; or NULL */
    const bool *shown;        /* [nproc] on the console; NULL: all */
} lks__launch_options;

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

#endif
