#include <stdio.h>
#include <unistd.h>

#include "launch/attempt.h"

static const struct lks__rank_process *rank_of(const struct lks__attempt *a, pid_t pid)
{
    for (int r = 0; r < a->n_started; r++)
        if (a->ranks[r].pid == pid)
            return &a->ranks[r];
    return NULL;
}

/* Signal the processes that ended ranks have left: our children except ranks and the guard. If such
 * a child is in a rank's group, signal the group, which also contains its own children. */
static int signal_orphans(const struct lks__attempt *a, int sig)
{
    char path[64];
    int n = 0, pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)gettid());
    FILE *f = fopen(path, "re");
    if (f == NULL) { /* a kernel without that file: signal at least the groups */
        for (int r = 0; r < a->n_started; r++)
            if (!a->ranks[r].running && kill(-a->ranks[r].pid, sig) == 0)
                n++;
        return n;
    }
    while (fscanf(f, "%d", &pid) == 1) {
        const struct lks__rank_process *rank = rank_of(a, pid);
        if (pid <= 1 || pid == a->guard || (rank != NULL && rank->running))
            continue;
        pid_t group = getpgid(pid);
        if (group > 1 && rank_of(a, group) != NULL)
            kill(-group, sig);
        else
            kill(pid, sig);
        n++;
    }
    fclose(f);
    return n;
}

int lks__signal_all(const struct lks__attempt *a, int sig, int spared)
{
    int n = 0;
    for (int r = 0; r < a->n_started; r++)
        if (a->ranks[r].running && r != spared && kill(-a->ranks[r].pid, sig) == 0)
            n++;
    return n + signal_orphans(a, sig);
}
