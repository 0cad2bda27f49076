/* base/system/cgroup.h - the control groups (cgroups) that limit this process, versions 1 and 2. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Called for one group. `own` is false for the groups above this process's own. Return false to
 * skip the groups above this one. */
typedef bool lks__cgroup_fn(void *ctx, const char *dir, int version, bool own);

/* Call fn for each folder of a control group that counts this process for `controller` ("memory",
 * "cpu", "pids"), from its own group up to the topmost mounted one, for version 2 and version 1.
 * The groups are read from /proc/self/cgroup and /proc/self/mountinfo. `root` is put in front of
 * every path ("" except in tests). If our group is not below the mounted folder (another cgroup
 * namespace), fn gets only the mounted folder. */
void lks__cgroup_walk(const char *root, const char *controller, lks__cgroup_fn *fn, void *ctx);

/* Read the number in the file DIR/NAME. False if the file doesn't exist or contains something else,
 * for example "max" (no limit). */
bool lks__cgroup_number(const char *dir, const char *name, uint64_t *value_p);

/* Cores that the quotas of this process's groups allow, for example 0.5; INFINITY without
 * quotas. */
double lks__cgroup_cores(const char *root);

/* Processes and threads that this process's groups allow; UINT64_MAX without a limit. */
uint64_t lks__cgroup_processes(const char *root);
