/* The memory of a rank's process is measured, because it depends on the libraries of this
 * machine. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "plan/bytes/process.h"
#include "session/session.h"

/* In the child: open everything that a rank opens before its model. With several hosts a rank also
 * loads the modules between hosts. */
static lks_status measure(const lks__settings *s, const lks__place *place, lks__process *process)
{
    static const char rollup[] = "/proc/self/smaps_rollup";
    const int cores = lks__cpu_count();
    const int alone = cores > place->local ? cores / place->local : 1;
    const lks_world world = {0, 1, 0, 1};
    char why[512];
    lks__session ses;
    for (int i = 0; place->n_hosts > 1 && lks__backend_at(i) != NULL; i++)
        lks__backend_at(i)->probe(lks__backend_at(i), &world, why, sizeof why);
    LKS__TRY(lks__session_open("shm", s->timeout, s->threads > 0 ? (int)s->threads : alone,
                               LKS__BIND_NONE, &ses));
    lks_status st = lks__session_products(&ses, s->dtype == LKS__dtype_bfloat16);
    process->own = (double)lks__sys_proc_bytes(rollup, "Anonymous");
    process->libraries = (double)lks__sys_proc_bytes(rollup, "Shared_Clean") +
                         (double)lks__sys_proc_bytes(rollup, "Private_Clean");
    lks__session_close(&ses);
    return st;
}

static void child(const lks__settings *s, const lks__place *place, int out)
{
    lks__process process;
    /* Those of a launcher, such as mpirun, count only without these. */
    static const char *const alone[][2] = {
        {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}};
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        setenv(alone[i][0], alone[i][1], 1);
    if (measure(s, place, &process) != LKS_OK)
        _exit(1);
    _exit(lks__sys_write_all(out, &process, sizeof process) == 0 ? 0 : 1);
}

lks_status lks__process_measure(const lks__settings *s, const lks__place *place,
                                lks__process *process)
{
    int ends[2], status = 1;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return lks__sys_fail("can't make", "a pipe");
    const pid_t pid = fork();
    if (pid == 0)
        child(s, place, ends[1]);
    lks__sys_close(ends[1]);
    const bool came = pid > 0 && lks__sys_read_some(ends[0], process, sizeof *process) ==
                                     (ssize_t)sizeof *process;
    lks__sys_close(ends[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    return came && status == 0
               ? LKS_OK
               : lks__fail(LKS_ERR_IO, "can't measure the memory of a process on this machine");
}
