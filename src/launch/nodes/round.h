/* launch/nodes/round.h - one round of a job on several nodes: its attempt as one node sees it. */
#pragma once

#include <stdbool.h>

#include "comm/store/store.h"
#include "launch/end.h"

/* This node's part in an attempt. */
struct lks__nodes_part {
    int attempt; /* the attempt's number */
    int nproc, first_global, world_size, group_rank, n_groups, master_port;
    int first_in_role, role_size; /* as first_global and world_size, of the nodes with our role */
    char job_id[LKS__TOKEN_BYTES];
};

/* Actions that this node's ranks need because of other nodes. */
struct lks__nodes_event {
    int signal;        /* 0, or the user's signal on another node: pass it on to our ranks */
    bool end_ours;     /* another node's ranks have failed, or the job is lost: end ours */
    bool orderly;      /* ... because they have stopped on the user's signal, as ours do */
    lks_status status; /* ... status of their failure; OK: it isn't known */
    char why[LKS__LAUNCH_MESSAGE]; /* ... and a sentence about it; "": none */
};
