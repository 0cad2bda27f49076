/* comm/ranks.h - ranks as child processes of a test, started as a launcher starts them, with a time
 * limit; or as threads, so that sanitizers see all of them.
 *
 * A test program runs itself: `program --rank BODY` in the environment of a rank. Its main() calls
 * ranks_main() first, which runs the body and ends the process if it finds those arguments. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "comm/shm/segment/status.h"
#include "lockstep/comm.h"

/* The work of a rank; its body follows, and returns the exit code. RANK_IN_GROUP: in a group `comm`
 * that is opened and closed for it. */
#define RANK(name)                                                                                 \
    static int rank_##name(void);                                                                  \
    RANK_ADD(name, .run = rank_##name)                                                             \
    static int rank_##name(void)
#define RANK_IN_GROUP(name)                                                                        \
    static int rank_##name(lks_comm *comm);                                                        \
    RANK_ADD(name, .in_group = rank_##name)                                                        \
    static int rank_##name(lks_comm *comm)
#define RANK_ADD(body, member)                                                                     \
    __attribute__((constructor)) static void add_rank_##body(void)                                 \
    {                                                                                              \
        static struct rank_body rank = {.name = #body, member};                                    \
        ranks_add(&rank);                                                                          \
    }
struct rank_body {
    const char *name;
    int (*run)(void);
    int (*in_group)(lks_comm *comm);
    struct rank_body *next;
};
void ranks_add(struct rank_body *rank);

/* Returns only if this process is no rank. */
void ranks_main(int argc, char **argv);

enum { RANKS_MAX = 8, RANKS_MAX_THREADS = 11 };

struct ranks {
    int n;
    lks__segment *segment;
    pid_t pids[RANKS_MAX];
    int status[RANKS_MAX]; /* from waitpid(); -1 while it runs */
    double ended_s[RANKS_MAX];
    double start_s;
};

void ranks_set(const char *name, int value); /* setenv() */
/* In a child before exec: it dies with its parent, and the program will find `segment`. */
void ranks_inherit(const lks__segment *segment);

/* `env`: NULL, or "NAME=VALUE" for all ranks. */
void ranks_start(struct ranks *r, int n, const char *body, const char *env);
/* Wait until all have ended; those still running after `limit_s` are killed and fail the test. */
void ranks_wait(struct ranks *r, double limit_s);
/* Start and wait; every rank must return 0. */
void ranks_run(int n, const char *body, const char *env, double limit_s);

/* Fails the rank (exit code 1) with the reason on stderr. */
#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %s: not true: %s (last error: %s)\n", __FILE__, __LINE__, \
                    getenv("RANK"), #cond, lks_last_error());                                      \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* In a rank: open the group that the environment describes, with the engine ENGINE if it is set.
 * NULL after printing the reason. */
lks_comm *ranks_open(double timeout_s);

/* Run `body` on `n` ranks, which are threads of this process. Rank i gets element i of `ranks`, an
 * array of elements of `bytes`. */
void ranks_as_threads(int n, double timeout_s, void (*body)(lks_comm *comm, void *rank),
                      void *ranks, size_t bytes);

/* Open and close `n` groups of one rank, one after the other, each while a thread beats it. With
 * `aborts` the thread also reports failures, and the next group opens when it has let go of the
 * last one; else it beats on. */
void ranks_close_in_beats(int n, bool aborts);
