#include "marked.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *marked_variable(void)
{
    static int n;
    return lks_test_text("LOCKSTEP_TEST_MARK=%d-%d", (int)getpid(), ++n);
}

bool marked_has(pid_t pid, const char *variable)
{
    const char *entry = lks_test_proc("/proc/%d/environ", (int)pid);
    while (*entry != '\0' && strcmp(entry, variable) != 0)
        entry += strlen(entry) + 1;
    return *entry != '\0';
}

bool marked_has_signal(pid_t pid, const char *mask, int sig)
{
    const char *at = strstr(lks_test_proc("/proc/%d/status", (int)pid), mask);
    return at != NULL && strtoull(at + strlen(mask) + 1, NULL, 16) >> (sig - 1) & 1;
}

int marked_processes(const char *variable, pid_t *pids, int max)
{
    int n = 0;
    DIR *dir = opendir("/proc");
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        pid_t pid = (pid_t)atoi(e->d_name); /* 0: not a process */
        if (pid == 0 || !marked_has(pid, variable))
            continue;
        if (n < max)
            pids[n] = pid;
        n++;
    }
    closedir(dir);
    return n;
}

pid_t marked_child_of(pid_t pid)
{
    if (!lks_test_exists("/proc/thread-self/children"))
        lks_test_lacks("children", "the kernel doesn't list them in /proc");
    const char *children = lks_test_proc("/proc/%d/task/%d/children", (int)pid, (int)pid);
    return *children != '\0' ? atoi(children) : -1;
}

pid_t marked_rank(const char *variable, int rank)
{
    pid_t pids[64];
    char want[32];
    snprintf(want, sizeof want, "RANK=%d", rank);
    int n = marked_processes(variable, pids, 64);
    for (int i = 0; i < n && i < 64; i++)
        if (marked_has(pids[i], want))
            return pids[i];
    return -1;
}

void marked_assert_gone(const char *variable, double seconds)
{
    pid_t pids[64];
    int n = 0;
    for (double waited = 0.0; waited <= seconds * lks_test_patience(); waited += 0.01) {
        n = marked_processes(variable, pids, 64);
        if (n == 0)
            return;
        usleep(10000);
    }
    for (int i = 0; i < n && i < 64; i++)
        kill(pids[i], SIGKILL);
    fail_msg("%d processes are still there after %.1f s", n, seconds);
}
