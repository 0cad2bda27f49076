#include "strike.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "laws/marked.h"
#include "struck.h"

const strike_fault strike_faults[] = {
    {"SIGKILL", STRIKE_SIGNAL, SIGKILL, 128 + SIGKILL},
    {"SIGSEGV", STRIKE_SIGNAL, SIGSEGV, 128 + SIGSEGV},
    {"SIGSTOP", STRIKE_SIGNAL, SIGSTOP, -1},
    {"exit(7)", STRIKE_EXIT, 0, 7},
    {"out of memory", STRIKE_MEMORY, 0, 128 + SIGKILL},
    {"disk full", STRIKE_DISK, 0, 1},
    {"clock jumps a day", STRIKE_CLOCK, 0, 0},
    {"launcher SIGKILL", STRIKE_LAUNCHER, 0, -1},
    {"port taken", STRIKE_PORT, 0, 1},
    {"first node killed", STRIKE_NODE, 0, 1},
    {"other node killed", STRIKE_NODE, 1, 1},
    {"cable cut, 1 s", STRIKE_CABLE, 1, 0},
    {"cable cut, for good", STRIKE_CABLE, 0, 1},
};
const int strike_n_faults = sizeof strike_faults / sizeof strike_faults[0];

static char net[16], group[96];
static const char *no_mount, *no_hosts, *no_group;

/* --- what this machine can do ---------------------------------------------------------------- */

static bool hosts(const char *words)
{
    return system(lks_test_text("%s/tests/launch/hosts.sh %s >/dev/null 2>&1", LKS_TEST_SOURCE_DIR,
                                words)) == 0;
}

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Make a control group for memory, version 1 or 2; `group` "" if that's impossible. */
static void make_group(void)
{
    static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    for (int i = 0; i < 2; i++) {
        snprintf(group, sizeof group, "%s/lockstep-faults-%d", roots[i], (int)getpid());
        if (mkdir(group, 0700) != 0)
            continue;
        if (lks_test_exists(lks_test_text("%s/memory.limit_in_bytes", group)) ||
            lks_test_exists(lks_test_text("%s/memory.max", group)))
            return;
        rmdir(group);
    }
    group[0] = '\0';
    no_group = "no control group for memory can be made here";
}

void strike_open(void)
{
    /* Mounts and hostnames belong to this process and end with it. */
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        no_mount = "nothing can be mounted here";
    snprintf(net, sizeof net, "lf%d", (int)getpid());
    if (!lks_test_exists(lks_test_text("%.*s/lockstep_gloo.so",
                                       (int)(strrchr(LKS_TEST_TOOL, '/') - LKS_TEST_TOOL),
                                       LKS_TEST_TOOL)))
        no_hosts = "there is no engine between hosts";
    else if (!hosts(lks_test_text("make %s a b", net)))
        no_hosts = "no network namespaces can be made here";
    make_group();
}

void strike_close(void)
{
    hosts(lks_test_text("remove %s a b", net));
    if (group[0] != '\0')
        rmdir(group);
}

const char *strike_missing(const strike_fault *f)
{
    if (f->kind == STRIKE_NODE || f->kind == STRIKE_CABLE)
        return no_hosts;
    return f->kind == STRIKE_DISK ? no_mount : f->kind == STRIKE_MEMORY ? no_group : NULL;
}

const char *const *strike_host(int node)
{
    static const char *words[] = {"ip", "netns", "exec", NULL, NULL};
    words[3] = lks_test_text("%s-%c", net, 'a' + node);
    return words;
}

/* --- around a run ----------------------------------------------------------------------------- */

void strike_before(const strike_run *r)
{
    if (r->fault->kind == STRIKE_DISK)
        assert_int_equal(mount("none", r->out, "tmpfs", 0, "size=16m"), 0);
}

void strike_heal(const strike_run *r)
{
    if (r->fault->kind == STRIKE_CABLE)
        assert_true(hosts(lks_test_text("cable %s b up", net)));
    if (r->fault->kind == STRIKE_DISK)
        unlink(lks_test_text("%s/filler", r->out));
}

void strike_after(const strike_run *r)
{
    if (r->fault->kind == STRIKE_DISK)
        umount2(r->out, MNT_DETACH);
}

/* --- the strike ------------------------------------------------------------------------------- */

static bool fill_disk(const char *folder)
{
    static const char page[4096];
    int fd = open(lks_test_text("%s/filler", folder), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, page, sizeof page) > 0)
        ;
    close(fd);
    return errno == ENOSPC;
}

/* The kernel kills it when it takes more than the group may have. */
static bool out_of_memory(pid_t pid)
{
    static const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};
    static const char *const swap[] = {"memory.swappiness", "memory.swap.max"};
    for (int i = 0; i < 2; i++) {
        write_text(lks_test_text("%s/%s", group, swap[i]), "0");
        write_text(lks_test_text("%s/%s", group, limits[i]), "8388608");
    }
    return write_text(lks_test_text("%s/cgroup.procs", group), lks_test_text("%d", (int)pid)) &&
           kill(pid, LKS_STRIKE_MEMORY) == 0;
}

static void jump(const strike_run *r)
{
    pid_t pids[64]; /* ranks and launchers */
    int n = marked_processes(r->mark, pids, 64);
    for (int i = 0; i < n && i < 64; i++)
        kill(pids[i], LKS_STRIKE_CLOCK);
}

static bool cut_cable(const strike_fault *f)
{
    bool cut = hosts(lks_test_text("cable %s b down", net));
    if (cut && f->arg > 0) {
        usleep((useconds_t)f->arg * 1000000);
        cut = hosts(lks_test_text("cable %s b up", net));
    }
    return cut;
}

bool strike(const strike_run *r, int victim)
{
    const strike_fault *f = r->fault;
    pid_t rank = r->ranks[victim].pid;
    switch (f->kind) {
    case STRIKE_SIGNAL:
        return kill(rank, f->arg) == 0;
    case STRIKE_EXIT:
        return kill(rank, LKS_STRIKE_EXIT) == 0;
    case STRIKE_MEMORY:
        return out_of_memory(rank);
    case STRIKE_DISK:
        return fill_disk(r->out);
    case STRIKE_CLOCK:
        jump(r);
        usleep(20000);
        jump(r);
        return true;
    case STRIKE_LAUNCHER:
        return kill(r->nodes[0].pid, SIGKILL) == 0;
    case STRIKE_NODE:
        return kill(r->nodes[f->arg].pid, SIGKILL) == 0;
    case STRIKE_CABLE:
        return cut_cable(f);
    default:
        return false;
    }
}

/* --- reading a run's state ------------------------------------------------------------------ */

static bool read_rank(pid_t pid, struct strike_rank *rank, int *number_p)
{
    *number_p = -1;
    *rank = (struct strike_rank){.pid = pid};
    for (const char *entry = lks_test_proc("/proc/%d/environ", (int)pid); *entry != '\0';
         entry += strlen(entry) + 1) {
        if (strncmp(entry, "RANK=", 5) == 0)
            *number_p = atoi(entry + 5);
        if (strncmp(entry, "LOCAL_RANK=", 11) == 0)
            rank->local = atoi(entry + 11);
        if (strncmp(entry, LKS__SEGMENT_ENV "=", sizeof LKS__SEGMENT_ENV) == 0)
            snprintf(rank->segment, sizeof rank->segment, "%s", entry + sizeof LKS__SEGMENT_ENV);
    }
    return *number_p >= 0 && *number_p < STRIKE_RANKS && rank->segment[0] != '\0';
}

int strike_find_ranks(strike_run *r)
{
    pid_t pids[64];
    int found = 0, n = marked_processes(r->mark, pids, 64), number;
    for (int i = 0; i < n && i < 64; i++) {
        struct strike_rank rank;
        if (!read_rank(pids[i], &rank, &number))
            continue;
        r->ranks[number] = rank;
        found++;
    }
    return found;
}

lks__segment *strike_look_inside(const struct strike_rank *rank, int n_local)
{
    lks__segment *s = NULL;
    int fd = open(lks_test_text("/proc/%d/fd/%d", (int)rank->pid, atoi(rank->segment)),
                  O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    setenv(LKS__SEGMENT_ENV, lks_test_text("%d%s", fd, strchr(rank->segment, ':')), 1);
    if (lks__segment_inherit(n_local, &s) != LKS_OK)
        close(fd);
    unsetenv(LKS__SEGMENT_ENV);
    return s;
}

bool strike_is_gone(pid_t pid)
{
    char state = lks__sys_process_state(pid);
    return state == 0 || state == 'Z' || state == 'X'; /* a zombie has no memory or files */
}
