#include "runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

lks_status runs_use(const char *env, char says[RUNS_SAYS])
{
    lks_test_result r =
        assert_exits(0, lks_test_run((const char *const[]){"/proc/self/exe", "use", NULL},
                                     (const char *const[]){env, NULL}, 60));
    char *rest;
    const long st = strtol(r.out, &rest, 10);
    snprintf(says, RUNS_SAYS, "%s", rest);
    return (lks_status)st;
}

void runs_print(lks_status status)
{
    printf("%d %s", (int)status, status == LKS_OK ? "" : lks_last_error());
}

int runs_of_seeds(const char *program, int n_seeds)
{
    for (int seed = 0; seed < n_seeds; seed++) {
        const pid_t pid = fork();
        int status = -1;
        if (pid == 0) {
            setenv("CUDA_STANDIN_SEED", lks_test_text("%d", seed), 1);
            execl("/proc/self/exe", program, "seed", NULL);
            _exit(1);
        }
        if (waitpid(pid, &status, 0) != pid || status != 0)
            return 1;
    }
    return 0;
}
