/* launch/nodes/hosts.h - one command for all nodes: starts a launcher on each of them, through ssh
 * or the user's own command.
 *
 * The launchers' standard inputs are their lifelines. The first line is the job's token, so it
 * isn't in any argument. Later lines are signals that we received. A lifeline ends when we end, and
 * that ends the launchers. LKS__LIFELINE_ENV tells a launcher that it has a lifeline. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

#define LKS__LIFELINE_ENV "LOCKSTEP_LIFELINE" /* "first", or "more" on the other nodes */

enum {
    LKS__MAX_HOSTS = 1024,
    /* A launcher with a lifeline ends with this code instead of 0: a command that reaches a host
     * may end with 0 without having started a launcher there. */
    LKS__LIFELINE_DONE = 123,
};

struct lks__host {
    char name[256];
    int slots; /* ranks */
};

/* Parse "a:2,b" (without a number: `slots`), or the lines of a file: HOST, HOST:N or HOST slots=N;
 * `#` begins a comment. ERR_CONFIG, ERR_IO. */
lks_status lks__hosts_parse(const char *text, int slots, struct lks__host *hosts, int *n_p);
lks_status lks__hosts_read(const char *path, int slots, struct lks__host *hosts, int *n_p);

/* True if it is "localhost" or this machine's name: then ssh isn't needed. */
bool lks__host_is_here(const char *host);

typedef struct lks__hosts_options {
    const char *self; /* name for messages */
    const struct lks__host *hosts;
    int n;
    const char *rsh;      /* words of a command that takes a host and a command line; NULL: ssh */
    char *const *options; /* for `lockstep run` on every node, NULL-terminated */
    char *const *argv;    /* the program, NULL-terminated */
} lks__hosts_options;

/* Run `lockstep run` on every host, in this folder. *exit_code_p is the first host's exit code, or
 * the code of a host that couldn't be started; 1 if a host's command ended without the launcher's
 * report that its ranks exited with 0. */
lks_status lks__hosts_launch(const lks__hosts_options *o, int *exit_code_p);

/* On a launcher: read the token from the first line of the lifeline. */
lks_status lks__lifeline_token(char *token, int bytes);
/* On a launcher: its exit code for the launching host. */
int lks__lifeline_code(int code);
/* Check for later lines without blocking: a signal's number, 0 if there is none, -1 at the end. */
int lks__lifeline_look(void);
