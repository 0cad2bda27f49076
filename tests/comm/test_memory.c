/* How much memory a process may use, from made-up trees of /proc and of control groups. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/cgroup.h"
#include "base/system/memory.h"
#include "base/system/sys.h"

#define MB     UINT64_C(1000000)
#define NOBODY UINT64_MAX

/* Write ROOT/PATH with `text`. */
static void put(const char *root, const char *path, const char *text)
{
    const char *whole = lks_test_text("%s/%s", root, path);
    char *slash = strrchr(whole, '/');
    assert_ok(lks__sys_make_dirs(lks_test_text("%.*s", (int)(slash - whole), whole)));
    lks_test_write(whole, text, strlen(text));
}

/* A made-up machine: paths and contents of files, NULL at the end. */
struct machine {
    const char *name;
    uint64_t room;
    const char *files[24];
};

#define V2 "30 20 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1                                                                                         \
    "31 20 0:1 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"                                             \
    "32 31 0:2 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"          \
    "33 31 0:3 / /sys/fs/cgroup/memory rw shared:10 master:1 - cgroup cgroup rw,memory\n"          \
    "34 31 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
#define GROUP  "proc/self/cgroup"
#define MOUNTS "proc/self/mountinfo"
#define G2     "sys/fs/cgroup/"
#define G1     "sys/fs/cgroup/memory/"
#define OF_V1  "5:cpuset:/other\n4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/\n"

static const struct machine machines[] = {
    {"nothing", NOBODY, {NULL}},
    {"the machine alone",
     3 * 1024 * 1024,
     {"proc/meminfo",
      "MemTotal:  9 kB\nMemAvailable:    2048 kB\nSwapTotal: 8 kB\nSwapFree:   1024 kB\n"}},
    {"a group outside a namespace: its limit less what it holds, and cache is not held",
     70 * MB,
     {GROUP, "0::/user.slice/run.scope\n", MOUNTS, V2, G2 "user.slice/run.scope/memory.max",
      "100000000\n", G2 "user.slice/run.scope/memory.current", "50000000\n",
      G2 "user.slice/run.scope/memory.stat", "anon 5\ninactive_file 20000000\nfile 7\n",
      G2 "user.slice/memory.max", "max\n"}},
    {"the group above is the narrower one",
     30 * MB,
     {GROUP, "0::/a/b/c\n", MOUNTS, V2, G2 "a/b/c/memory.max", "100000000\n",
      G2 "a/b/c/memory.current", "1000000\n", G2 "a/memory.max", "50000000\n",
      G2 "a/memory.current", "20000000\n", G2 "a/b/memory.max", "max\n"}},
    {"the mount's own folder counts, as in a container",
     40 * MB,
     {GROUP, "0::/\n", MOUNTS, V2, G2 "memory.max", "60000000\n", G2 "memory.current",
      "20000000\n"}},
    {"memory.high stops a run as well",
     25 * MB,
     {GROUP, "0::/a\n", MOUNTS, V2, G2 "a/memory.max", "90000000\n", G2 "a/memory.high",
      "25000000\n", G2 "a/memory.current", "0\n"}},
    {"version 1, the group above",
     40 * MB,
     {GROUP, OF_V1, MOUNTS, V1, G1 "a/b/memory.limit_in_bytes", "9223372036854771712\n",
      G1 "a/b/memory.usage_in_bytes", "5\n", G1 "a/memory.limit_in_bytes", "90000000\n",
      G1 "a/memory.usage_in_bytes", "80000000\n", G1 "a/memory.stat",
      "inactive_file 1\ntotal_inactive_file 30000000\n", G1 "a/memory.use_hierarchy", "1\n"}},
    {"version 1, a group above that doesn't count those below",
     80 * MB,
     {GROUP, OF_V1, MOUNTS, V1, G1 "a/b/memory.limit_in_bytes", "80000000\n",
      G1 "a/memory.limit_in_bytes", "7\n", G1 "a/memory.use_hierarchy", "0\n"}},
    {"version 1, one controller's path is not another's",
     NOBODY,
     {GROUP, OF_V1, MOUNTS, V1, G1 "c/memory.limit_in_bytes", "1\n",
      G1 "other/memory.limit_in_bytes", "1\n"}},
    {"a container without a namespace of control groups: its group is what is mounted",
     20 * MB,
     {GROUP, "3:memory:/docker/x1/inner\n", MOUNTS,
      "9 1 0:3 /docker/x1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
      G1 "inner/memory.limit_in_bytes", "20000000\n", G1 "docker/x1/memory.limit_in_bytes", "1\n",
      G1 "memory.limit_in_bytes", "50000000\n"}},
    {"a name that only begins alike is not below; the mounted folder counts",
     50 * MB,
     {GROUP, "3:memory:/docker/x12\n", MOUNTS,
      "9 1 0:3 /docker/x1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
      G1 "2/memory.limit_in_bytes", "1\n", G1 "memory.limit_in_bytes", "50000000\n"}},
    {"version 1, controllers whose names begin alike",
     18 * MB,
     {GROUP, "7:memory2:/b\n6:x,memory3,y:/c\n4:cpu,memory:/a\n", MOUNTS,
      "8 1 0:3 / /mnt rw - cgroup cgroup rw,memory2\n"
      "9 1 0:3 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
      "mnt/a/memory.limit_in_bytes", "1\n", G1 "a/memory.limit_in_bytes", "18000000\n",
      G1 "b/memory.limit_in_bytes", "2\n", G1 "c/memory.limit_in_bytes", "3\n"}},
    {"the mount was made outside our namespace",
     11 * MB,
     {GROUP, "0::/../b/c\n", MOUNTS, "9 1 0:3 /.. /sys/fs/cgroup ro - cgroup2 none rw\n",
      G2 "b/c/memory.max", "11000000\n", G2 "memory.max", "12000000\n"}},
    {"our group lies outside our namespace: nothing outside the mount is read",
     13 * MB,
     {GROUP, "0::/../../proc\n", MOUNTS, V2, G2 "memory.max", "13000000\n",
      "sys/fs/proc/memory.max", "1\n", "sys/proc/memory.max", "1\n", "proc/memory.max", "1\n"}},
    {"our group is the one above our namespace: neither is that folder read",
     17 * MB,
     {GROUP, "0::/..\n", MOUNTS, V2, G2 "memory.max", "17000000\n", "sys/fs/memory.max", "1\n"}},
    {"spaces in names, and mounts elsewhere",
     14 * MB,
     {GROUP, "0::/my group\n", MOUNTS, "9 1 0:3 / /mnt/con\\040trol\\134x rw - cgroup2 none rw\n",
      "mnt/con trol\\x/my group/memory.max", "14000000\n"}},
    {"a group that was deleted still has those above it",
     15 * MB,
     {GROUP, "0::/a/b (deleted)\n", MOUNTS, V2, G2 "a/memory.max", "15000000"}},
    {"more is held than may be",
     0,
     {GROUP, "0::/a\n", MOUNTS, V2, G2 "a/memory.max", "15", G2 "a/memory.current", "16"}},
    {"no limits: words, signs, fractions, overflow, nothing",
     16 * MB,
     {GROUP, "0::/1/2/3/4/5/6\n", MOUNTS, V2, G2 "1/memory.max", "16000000\n", G2 "1/2/memory.max",
      "-1\n", G2 "1/2/3/memory.max", "1.5\n", G2 "1/2/3/4/memory.max", "99999999999999999999999\n",
      G2 "1/2/3/4/5/memory.max", "", G2 "1/2/3/4/5/6/memory.max", " 7"}},
    {"damaged tables",
     NOBODY,
     {GROUP, "\n:\n0\n0:\n0::\n0::relative\n::::\n", MOUNTS,
      "\n - \n1 2 3 4 - cgroup2\n1 2 3 / /sys/fs/cgroup\n - cgroup2 a b", G2 "memory.max", "1"}},
    {"no mounts", NOBODY, {GROUP, "0::/a\n", G2 "a/memory.max", "1"}},
    {"no groups", NOBODY, {MOUNTS, V2, G2 "memory.max", "1"}},
};

TEST(test_machines)
{
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        const struct machine *m = &machines[i];
        const char *root = lks_test_folder();
        for (int f = 0; m->files[f] != NULL; f += 2)
            put(root, m->files[f], m->files[f + 1]);
        uint64_t room = lks__memory_available_in(root);
        if (room != m->room)
            fail_msg("%s: %llu, not %llu", m->name, (unsigned long long)room,
                     (unsigned long long)m->room);
    }
}

/* The narrowest quota of the groups counts, and the lowest limit on processes. */
TEST(test_cores)
{
    const char *root = lks_test_folder();
    assert_true(isinf(lks__cgroup_cores(root)));
    put(root, GROUP, "0::/a/b\n");
    put(root, MOUNTS, V2);
    put(root, G2 "a/b/cpu.max", "max 100000\n");
    assert_true(isinf(lks__cgroup_cores(root)));
    put(root, G2 "a/cpu.max", "150000 100000\n");
    assert_true(lks__cgroup_cores(root) == 1.5);
    put(root, G2 "a/b/cpu.max", "400000 100000\n");
    assert_true(lks__cgroup_cores(root) == 1.5);
    put(root, G2 "a/b/pids.max", "max\n");
    assert_true(lks__cgroup_processes(root) == UINT64_MAX);
    put(root, G2 "a/pids.max", "50\n");
    assert_true(lks__cgroup_processes(root) == 50);
    root = lks_test_folder();
    put(root, GROUP, OF_V1);
    put(root, MOUNTS, V1);
    put(root, "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "300000\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    assert_true(lks__cgroup_cores(root) == 3.0);
}

/* Lines of any length and paths that are too long are skipped, and the others found. */
TEST(test_long_lines)
{
    const char *root = lks_test_folder();
    char *x = malloc(100000);
    memset(x, 'x', 99999);
    x[99999] = '\0';
    put(root, MOUNTS, lks_test_text("8 1 0:3 / /%s rw - cgroup2 none rw\n" V2, x));
    put(root, GROUP, lks_test_text("0::/%s\n0::/%.5000s\n0::/a\n", x, x));
    put(root, G2 "a/memory.max", "5");
    free(x);
    assert_int_equal(lks__memory_available_in(root), 5);
}

static bool own_group(void *ctx, const char *dir, int version, bool own)
{
    char *out = ctx;
    bool v1 = lks_test_exists(lks_test_text("%s/memory.limit_in_bytes", dir));
    if (v1 || lks_test_exists(lks_test_text("%s/memory.max", dir)))
        snprintf(out, 4096, "%s", dir);
    return false;
}

/* A real group inside this process's own, if one can be made: a process in it sees its limit. */
TEST(test_real_group)
{
    static char own[4096];
    lks__cgroup_walk("", "memory", own_group, own);
    const char *group = lks_test_text("%s/lockstep-test-%d", own, (int)getpid());
    if (own[0] == '\0' || mkdir(group, 0700) != 0)
        lks_test_lacks("cgroups", "none for memory can be made in this process's own");
    bool v2 = lks_test_exists(lks_test_text("%s/memory.max", group));
    const char *limit = lks_test_text("%s/%s", group, v2 ? "memory.max" : "memory.limit_in_bytes");
    const char *procs = lks_test_text("%s/cgroup.procs", group);
    pid_t pid = fork();
    if (pid == 0) {
        FILE *f = fopen(limit, "w");
        bool ok = f != NULL && fputs("268435456", f) >= 0 && fclose(f) == 0;
        f = ok ? fopen(procs, "w") : NULL;
        if (f == NULL || fprintf(f, "%d", (int)getpid()) < 0 || fclose(f) != 0)
            _exit(3);
        uint64_t room = lks__memory_available();
        _exit(room > UINT64_C(100) << 20 && room <= UINT64_C(256) << 20 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    rmdir(group);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
        lks_test_lacks("cgroups", "one can be made and not be used");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
