/* launch/options.h - the options of a launch. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { LKS__RUN_ID = 255 }; /* maximal bytes of a job's id */

/* Zeros are the defaults, except for nproc, argv and self. */
typedef struct lks__launch_options {
    int nproc;         /* ranks to start on this host */
    char *const *argv; /* program and arguments, NULL-terminated; argv[0] is looked up in PATH */
    const char *file;  /* the program's file, if argv[0] is only its name; or NULL */
    const char *self;  /* name for messages: "lockstep train" */
    bool trains;       /* it is `lockstep train` ... */
    int usage_code;    /* ... whose ranks exit with this code if a setting is wrong */

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
    const char *endpoint_option; /* that gave it, for messages; NULL: --master-addr */
    int endpoint_port;           /* ... and port; with one node, MASTER_PORT (0: a free one) */
    const char *token;           /* the job's secret; for several nodes */
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
