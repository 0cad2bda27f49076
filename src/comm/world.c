/* The rank and world that a launcher has assigned to this process: torchrun, lockstep, Open MPI's
 * mpirun, MPICH's, srun. */
#include "comm/world.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The variables of each launcher, in the order in which they are tried. */
struct launcher {
    const char *rank, *world_size, *local_rank;
    const char *local_world_size; /* NULL: srun has a list for all nodes instead */
};

static const struct launcher torchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
static const struct launcher others[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, /* of MPICH and Intel MPI */
    /* SLURM_NTASKS is also set in a batch script, which is not a rank; SLURM_STEP_NUM_TASKS only in
     * a step. */
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};

bool lks__env_set(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0';
}

bool lks__env_int(const char *name, int most, int *value_p)
{
    char *end;
    if (!lks__env_set(name))
        return false;
    errno = 0;
    const char *text = getenv(name);
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text || value < 0 || value > most)
        return false;
    *value_p = (int)value;
    return true;
}

void lks__env_put(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static lks_status not_a_number(const char *name)
{
    const char *text = getenv(name);
    return lks__fail(LKS_ERR_CONFIG,
                     "the environment has %s=%s: a whole number is expected, as a launcher "
                     "sets it",
                     name, lks__shown(text, 64));
}

static lks_status read_int(const char *name, int fallback, int *value_p)
{
    *value_p = fallback;
    if (!lks__env_set(name) || lks__env_int(name, INT_MAX, value_p))
        return LKS_OK;
    return not_a_number(name);
}

/* "2(x3),1" in SLURM_STEP_TASKS_PER_NODE: two tasks on each of three nodes, one on the fourth. */
static lks_status read_slurm_tasks(int *tasks_p)
{
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    int node;
    LKS__TRY(read_int("SLURM_NODEID", 0, &node));
    const char *at = lks__env_set(name) ? getenv(name) : "";
    for (long first = 0; *at != '\0';) {
        char *end;
        long tasks = strtol(at, &end, 10), nodes = 1;
        bool ok = end != at && tasks >= 0 && tasks <= INT_MAX;
        if (ok && end[0] == '(' && end[1] == 'x') {
            at = end + 2;
            nodes = strtol(at, &end, 10);
            ok = end != at && *end == ')' && nodes > 0 && nodes <= INT_MAX;
            end += ok;
        }
        if (!ok || (*end != '\0' && *end != ','))
            break;
        if (node < first + nodes) {
            *tasks_p = (int)tasks;
            return LKS_OK;
        }
        first += nodes;
        at = end + (*end == ',');
    }
    return lks__fail(LKS_ERR_CONFIG,
                     "SLURM_STEP_TASKS_PER_NODE has no number of tasks for node %d: it is set "
                     "by srun, as in 2(x3),1",
                     node);
}

/* The first of the launcher's variables that isn't set, else NULL. */
static const char *find_missing(const struct launcher *l)
{
    const char *const names[] = {l->rank, l->world_size, l->local_rank, l->local_world_size};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && names[i] != NULL; i++)
        if (!lks__env_set(names[i]))
            return names[i];
    return NULL;
}

/* The first launcher whose variables are all set, else the first that tells of several ranks or
 * lacks a rank or a size, else NULL. `srun --mpi=pmi2` sets SLURM's variables and some of MPICH's.
 * A batch script of SLURM has a rank without a size, and is a single process. */
static const struct launcher *find_launcher(void)
{
    const struct launcher *partial = NULL;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const struct launcher *l = &others[i];
        int size = 0;
        if (find_missing(l) == NULL)
            return l;
        const bool several = lks__env_int(l->world_size, INT_MAX, &size) && size > 1;
        const bool alone = lks__env_set(l->rank) != lks__env_set(l->world_size);
        if (partial == NULL && (several || (alone && l->local_world_size != NULL)))
            partial = l;
    }
    return partial;
}

bool lks__world_foreign(void)
{
    return find_launcher() != NULL ||
           (lks__env_set(torchrun.rank) && !lks__env_set("LOCKSTEP_JOB"));
}

lks_status lks__world_check(lks_status st, const lks_world *w)
{
    if (w->world_size < 1 || w->rank < 0 || w->rank >= w->world_size)
        return lks__fail(st, "RANK is %d and WORLD_SIZE %d: ranks count from 0 to WORLD_SIZE - 1",
                         w->rank, w->world_size);
    if (w->local_world_size < 1 || w->local_world_size > w->world_size || w->local_rank < 0 ||
        w->local_rank >= w->local_world_size)
        return lks__fail(st,
                         "LOCAL_RANK is %d and LOCAL_WORLD_SIZE %d in a world of %d: local ranks "
                         "count from 0 to LOCAL_WORLD_SIZE - 1, and no host has more ranks than "
                         "the world",
                         w->local_rank, w->local_world_size, w->world_size);
    if (w->rank < w->local_rank ||
        (w->local_world_size == w->world_size && w->local_rank != w->rank))
        return lks__fail(st,
                         "RANK is %d of %d and LOCAL_RANK %d of %d: local ranks count the ranks of "
                         "a host in their order",
                         w->rank, w->world_size, w->local_rank, w->local_world_size);
    return LKS_OK;
}

static lks_status read_world(const struct launcher *l, lks_world *w)
{
    const char *missing = find_missing(l);
    const char *set = missing == l->rank ? l->world_size : l->rank;
    LKS__TRY(read_int(l->rank, 0, &w->rank));
    if (missing != NULL && (l != &torchrun || missing == l->world_size))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is set, but %s is not: a launcher sets both; without one, unset %s",
                         set, missing, set);
    LKS__TRY(read_int(l->world_size, 1, &w->world_size));
    LKS__TRY(read_int(l->local_rank, w->rank, &w->local_rank));
    if (l->local_world_size != NULL)
        LKS__TRY(read_int(l->local_world_size, w->world_size, &w->local_world_size));
    else
        LKS__TRY(read_slurm_tasks(&w->local_world_size));
    return lks__world_check(LKS_ERR_CONFIG, w);
}

/* Without a rank, the other variables of torchrun may only tell of a single process. */
static lks_status check_single(void)
{
    const struct {
        const char *name;
        int single;
    } rows[] = {{torchrun.world_size, 1}, {torchrun.local_rank, 0}, {torchrun.local_world_size, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int value;
        LKS__TRY(read_int(rows[i].name, rows[i].single, &value));
        if (value != rows[i].single)
            return lks__fail(LKS_ERR_CONFIG,
                             "%s is %d, but RANK is not set: a launcher sets both, and a single "
                             "process needs neither",
                             rows[i].name, value);
    }
    return LKS_OK;
}

lks_status lks_world_from_env(lks_world *world)
{
    int port;
    LKS__NEED("lks_world_from_env", world);
    LKS__TRY(read_int("MASTER_PORT", 0, &port));
    const struct launcher *l = lks__env_set(torchrun.rank) ? &torchrun : find_launcher();
    lks_world w = {0, 1, 0, 1};
    if (l != NULL)
        LKS__TRY(read_world(l, &w));
    else
        LKS__TRY(check_single());
    *world = w;
    return LKS_OK;
}

static pid_t adopted_from; /* lks__world_launcher() */

pid_t lks__world_launcher(void)
{
    /* If RANK was set by hand, the shell may end before its ranks; torchrun doesn't. */
    const bool by_torchrun = lks__env_set("TORCHELASTIC_USE_AGENT_STORE");
    const bool leaves = lks__env_set(torchrun.rank) ? by_torchrun : find_launcher() != NULL;
    return leaves && adopted_from == 0 && !lks__env_set("LOCKSTEP_JOB") ? getppid() : 0;
}

lks_status lks__world_adopt(void)
{
    const struct launcher *l = find_launcher();
    lks_world w;
    adopted_from = lks__world_launcher();
    if (lks__env_set(torchrun.rank) || l == NULL)
        return LKS_OK;
    LKS__TRY(read_world(l, &w));
    if (w.world_size == 1) /* a single process may start its own ranks */
        return LKS_OK;
    lks__env_put(torchrun.rank, w.rank);
    lks__env_put(torchrun.world_size, w.world_size);
    lks__env_put(torchrun.local_rank, w.local_rank);
    lks__env_put(torchrun.local_world_size, w.local_world_size);
    return LKS_OK;
}

bool lks__world_orphaned(void)
{
    return adopted_from != 0 && getppid() != adopted_from;
}
