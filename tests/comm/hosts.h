/* comm/hosts.h - programs as the ranks of several hosts, which this one machine plays: each host is
 * a group of processes that says so (LOCAL_WORLD_SIZE). "212" are hosts with 2, 1 and 2 ranks. */
#ifndef LKS_TESTS_COMM_HOSTS_H
#define LKS_TESTS_COMM_HOSTS_H

#include <stdbool.h>

enum { HOSTS_MAX_RANKS = 16 };

/* A test that runs programs under mpirun calls this first in main(): `--become HOSTS PROGRAM …`
 * sets the environment of the rank that mpirun made of this process, and becomes the program. */
void hosts_main(int argc, char **argv);

int hosts_world(const char *hosts); /* ranks in all */

/* Can the engine ("mpi", "mpich", "gloo") be used here? Where not, says so. */
bool hosts_can_run(const char *engine);
const char *hosts_backend(const char *engine); /* by which groups are opened */

/* Run argv (NULL-terminated) in every rank, by mpirun ("mpi", "mpich": its own) or as launchers on
 * each host would
 * ("gloo"); LOCKSTEP_MODULES is set. The exit code: 0, a failed rank's, or 128 + its signal. What
 * mpirun itself says is dropped. */
int hosts_run(const char *engine, const char *hosts, const char *const argv[]);
/* Why the last run failed, as a launcher on the first host would print it; "" if it didn't, or was
 * mpirun's, under which ranks print it themselves. */
const char *hosts_failure(void);
/* hosts_run() over Gloo where no launcher of ours is: MASTER_ADDR and MASTER_PORT, and no store. */
int hosts_run_at_master(const char *hosts, const char *const argv[]);

#endif
