#include "comm/shm/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind `key` in a file of "key number" or "key: number kB" lines. */
static bool read_field(const char *path, const char *key, uint64_t *value_p)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    char line[256];
    size_t key_len = strlen(key);
    bool found = false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, key_len) != 0 || strchr(": ", line[key_len]) == NULL)
            continue;
        char *end;
        errno = 0;
        unsigned long long v = strtoull(line + key_len + 1, &end, 10);
        found = errno == 0 && end != line + key_len + 1;
        if (found)
            *value_p = strstr(end, "kB") != NULL ? v * 1024 : v;
    }
    fclose(f);
    return found;
}

static bool read_number(const char *path, uint64_t *value_p)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    unsigned long long v;
    bool found = fscanf(f, "%llu", &v) == 1; /* "max" means no limit */
    fclose(f);
    if (found)
        *value_p = v;
    return found;
}

/* What a cgroup leaves: its limit less what it holds, of which file cache can be dropped. */
static uint64_t cgroup_room(const char *limit_path, const char *used_path, const char *stat_path,
                            const char *cache_key)
{
    uint64_t limit, used, cache = 0;
    if (!read_number(limit_path, &limit) || !read_number(used_path, &used))
        return UINT64_MAX;
    (void)read_field(stat_path, cache_key, &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

uint64_t lks__memory_available(void)
{
    uint64_t machine = UINT64_MAX, swap;
    if (read_field("/proc/meminfo", "MemAvailable", &machine) &&
        read_field("/proc/meminfo", "SwapFree", &swap))
        machine += swap;
    /* A container sees its own limits at the root of the hierarchy: version 2, then version 1. */
    uint64_t v2 = cgroup_room("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                              "/sys/fs/cgroup/memory.stat", "inactive_file");
    uint64_t v1 = cgroup_room("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                              "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                              "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file");
    uint64_t cgroup = v1 < v2 ? v1 : v2;
    return cgroup < machine ? cgroup : machine;
}
