/* comm/hosts.h - run programs as the ranks of several hosts on this machine: each host is a group
 * of processes, according to LOCAL_WORLD_SIZE. "212" are hosts with 2, 1 and 2 ranks. */
#pragma once

enum { HOSTS_MAX_RANKS = 16 };

/* A test that runs programs under mpirun calls this first in main(): `--become HOSTS PROGRAM …`
 * sets the environment of the rank that mpirun has started, and executes the program. */
void hosts_main(int argc, char **argv);

int hosts_world(const char *hosts); /* total number of ranks */

/* Ends the program as skipped if the engine ("mpi", "mpich", "gloo") can't be used here. */
void hosts_need(const char *engine);
const char *hosts_backend(const char *engine); /* the backend to open groups with */

/* Run argv (NULL-terminated) in every rank, by mpirun ("mpi", "mpich": its own) or as launchers on
 * each host would (other engines); LOCKSTEP_MODULES is set. Returns 0, the exit code of a failed
 * rank, or 128 + its signal if no rank has failed by itself. mpirun's own output is dropped. */
int hosts_run(const char *engine, const char *hosts, const char *const argv[]);
/* Why the last run failed, as a launcher on the first host would print it; "" if it didn't fail, or
 * ran under mpirun, where ranks print it themselves. */
const char *hosts_failure(void);
/* hosts_run() over Gloo without lockstep's launcher: MASTER_ADDR and MASTER_PORT, and no store. */
int hosts_run_at_master(const char *hosts, const char *const argv[]);
