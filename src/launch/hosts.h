/* launch/hosts.h - one command for all nodes: a launcher on each of them, through ssh or a command
 * of the user's.
 *
 * The launchers' standard inputs are their lifelines: the first line brings the job's token, which
 * so stands in no argument; later ones are signals that we were sent; its end is ours, and ends
 * them. That a launcher has a lifeline it knows by LKS__LIFELINE_ENV. */
#ifndef LKS_LAUNCH_HOSTS_H
#define LKS_LAUNCH_HOSTS_H

#include <stdbool.h>

#include "base/status.h"

#define LKS__LIFELINE_ENV "LOCKSTEP_LIFELINE" /* "first", or on the others "more" */

enum { LKS__MAX_HOSTS = 1024 };

struct lks__host {
    char name[256];
    int slots; /* ranks */
};

/* "a:2,b" (without a number: `slots`), or the lines of a file: HOST, HOST:N or HOST slots=N, `#`
 * begins a comment. ERR_CONFIG, ERR_IO. */
lks_status lks__hosts_parse(const char *text, int slots, struct lks__host *hosts, int *n_p);
lks_status lks__hosts_read(const char *path, int slots, struct lks__host *hosts, int *n_p);

typedef struct lks__hosts_options {
    const char *self; /* name for messages */
    const struct lks__host *hosts;
    int n;
    const char *rsh;      /* words of a command that takes a host and a command line; NULL: ssh */
    char *const *options; /* of `lockstep run` on every node, NULL-terminated */
    char *const *argv;    /* the program, NULL-terminated */
} lks__hosts_options;

/* Run `lockstep run` on every host, from this folder; the first one's exit code, or that of
 * whichever couldn't be started. */
lks_status lks__hosts_launch(const lks__hosts_options *o, int *exit_code_p);

/* A launcher's end of the lifeline: the token, from its first line. */
lks_status lks__lifeline_token(char *token, int bytes);
/* What has come since, on a non-blocking look: a signal's number, 0 for nothing, -1 for the end. */
int lks__lifeline_look(void);

#endif
