#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "launch/process.h"

static const struct lks__rank_process *rank_of(const struct lks__launch *l, pid_t pid)
{
    for (int r = 0; r < l->n_started; r++)
        if (l->ranks[r].pid == pid)
            return &l->ranks[r];
    return NULL;
}

/* Signal the processes that ended ranks have left: our children except ranks and the guard. If such
 * a child is in a rank's group, signal the group, which also contains its own children. */
static int signal_orphans(const struct lks__launch *l, int sig)
{
    char path[64];
    int n = 0, pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)gettid());
    FILE *f = fopen(path, "re");
    if (f == NULL) { /* a kernel without that file: signal at least the groups */
        for (int r = 0; r < l->n_started; r++)
            if (!l->ranks[r].running && kill(-l->ranks[r].pid, sig) == 0)
                n++;
        return n;
    }
    while (fscanf(f, "%d", &pid) == 1) {
        const struct lks__rank_process *rank = rank_of(l, pid);
        if (pid <= 1 || pid == l->guard || (rank != NULL && rank->running))
            continue;
        pid_t group = getpgid(pid);
        if (group > 1 && rank_of(l, group) != NULL)
            kill(-group, sig);
        else
            kill(pid, sig);
        n++;
    }
    fclose(f);
    return n;
}

int lks__signal_all(const struct lks__launch *l, int sig, int spared)
{
    int n = 0;
    for (int r = 0; r < l->n_started; r++)
        if (l->ranks[r].running && r != spared && kill(-l->ranks[r].pid, sig) == 0)
            n++;
    return n + signal_orphans(l, sig);
}
