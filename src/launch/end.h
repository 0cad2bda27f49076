/* launch/end.h - how an attempt has ended on this node. */
#pragma once

#include <stdbool.h>

enum { LKS__LAUNCH_MESSAGE = 2048 };

/* How this node's ranks have ended, in addition to the verdict. */
struct lks__nodes_report {
    int user_signal;      /* 0, or the signal on which they were asked to stop */
    bool ended_by_others; /* they were ended because another node's ranks have ended */
    bool by_signal;       /* a signal killed the culprit */
    bool killed;          /* the launcher has killed them, because they didn't stop */
    bool lasting;         /* the cause lasts, so a restart would fail, too */
    bool leaves;          /* a restart has to do without this node, which leaves */
    bool follows;      /* they have ended because of another host's ranks; the culprit isn't here */
    bool still;        /* our ranks found that a rank here or elsewhere made no progress */
    int left;          /* 1 + our first rank, of the world, if it exited with code 0; else 0 */
    const char *table; /* status table of this node's ranks; may be "" */
    double timeout_s;  /* deadline of the ranks' waits; 0: not known */
};

/* After all have ended: the local rank that failed first by itself, or -1; one sentence about it;
 * and the exit code of the launch. */
struct lks__verdict {
    int culprit;
    bool elsewhere; /* the culprit has only given up another host's ranks, which the text names */
    bool alone;     /* the connection to the other nodes is lost: no other launcher prints it */
    int exit_code;
    char text[LKS__LAUNCH_MESSAGE];
};
