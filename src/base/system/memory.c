#include "base/system/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/system/cgroup.h"
#include "base/system/sys.h"

/* Bytes that one control group still allows: its limit minus its use, without file cache, which can
 * be dropped. */
static uint64_t group_room(const char *dir, int version, uint64_t limit)
{
    char stat[PATH_MAX];
    uint64_t used = 0, cache = 0;
    lks__cgroup_number(dir, version == 2 ? "memory.current" : "memory.usage_in_bytes", &used);
    int n = snprintf(stat, sizeof stat, "%s/memory.stat", dir);
    if (n > 0 && (size_t)n < sizeof stat)
        lks__sys_field(stat, version == 2 ? "inactive_file" : "total_inactive_file", &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* The limit is the one at which the kernel kills, or version 2's memory.high: the kernel slows a
 * group above it down until a run makes no progress, because shared memory can't be dropped. */
static bool look_at_group(void *ctx, const char *dir, int version, bool own)
{
    uint64_t *least = ctx, limit = UINT64_MAX, high = UINT64_MAX, hierarchy = 1;
    if (version == 2) {
        lks__cgroup_number(dir, "memory.max", &limit);
        lks__cgroup_number(dir, "memory.high", &high);
        limit = high < limit ? high : limit;
    } else {
        /* With older kernels a group counts for its parents only if memory.use_hierarchy is set. */
        if (!own && lks__cgroup_number(dir, "memory.use_hierarchy", &hierarchy) && hierarchy == 0)
            return false;
        lks__cgroup_number(dir, "memory.limit_in_bytes", &limit);
    }
    if (limit < UINT64_MAX) {
        uint64_t room = group_room(dir, version, limit);
        *least = room < *least ? room : *least;
    }
    return true;
}

uint64_t lks__memory_available_in(const char *root)
{
    char path[PATH_MAX];
    uint64_t machine = UINT64_MAX, swap, groups = UINT64_MAX;
    int n = snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (n > 0 && (size_t)n < sizeof path && lks__sys_field(path, "MemAvailable", &machine) &&
        lks__sys_field(path, "SwapFree", &swap))
        machine += swap;
    lks__cgroup_walk(root, "memory", look_at_group, &groups);
    return groups < machine ? groups : machine;
}

uint64_t lks__memory_available(void)
{
    return lks__memory_available_in("");
}
