/* marked.h - the processes that a test started, and those that they started. */
#ifndef LKS_TESTS_MARKED_H
#define LKS_TESTS_MARKED_H

#include "support.h"

/* A variable for a child's environment ("NAME=VALUE") that no other process has. */
const char *marked_variable(void);

/* Is `variable` in the environment that the process was started with? A zombie has none. */
bool marked_has(pid_t pid, const char *variable);

/* Processes alive that have it, whoever is their parent by now; up to `max` of them in pids. */
int marked_processes(const char *variable, pid_t *pids, int max);

/* The one of them that is rank `rank` of a launch; -1: there is none, or it is no more. */
pid_t marked_rank(const char *variable, int rank);

/* All are gone within `seconds`; else they are killed and the test fails. */
void marked_assert_gone(const char *variable, double seconds);

#endif
