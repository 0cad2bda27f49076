/* marked.h - processes that a test started, and those that they started. */
#pragma once

#include "support.h"

/* A variable for a child's environment ("NAME=VALUE") that no other process has. */
const char *marked_variable(void);

/* Was the process started with `variable` in its environment? False for zombies. */
bool marked_has(pid_t pid, const char *variable);

/* Is the signal in a mask of the process ("SigBlk", "SigIgn", "SigCgt")? */
bool marked_has_signal(pid_t pid, const char *mask, int sig);

/* Living processes that have it, whatever their parent is; up to `max` of them in pids. */
int marked_processes(const char *variable, pid_t *pids, int max);

/* The process of these that is rank `rank` of a launch; -1 if there is none. */
pid_t marked_rank(const char *variable, int rank);

/* A process's first child, or -1. A launcher's first process has one child, which starts the ranks.
 */
pid_t marked_child_of(pid_t pid);

/* All have ended within `seconds`; otherwise they are killed and the test fails. */
void marked_assert_gone(const char *variable, double seconds);
