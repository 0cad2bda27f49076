/* comm/fake_engine.h - an engine between "hosts" that are threads of one process: what the layer
 * above engines does can be tested, and seen by sanitizers, without MPI or Gloo. */
#ifndef LKS_TESTS_COMM_FAKE_ENGINE_H
#define LKS_TESTS_COMM_FAKE_ENGINE_H

#include "comm/hier/engine.h"
#include "comm/shm/segment.h"

enum { FAKE_MAX_HOSTS = 8, FAKE_MAX_RANKS = 8 };

/* A rank, before it has opened its group. */
struct fake_rank {
    lks_world world;
    lks__segment *segment;
};

/* "212": the ranks of hosts with 2, 1 and 2 ranks. Returns how many there are. */
int fake_ranks(const char *hosts, struct fake_rank ranks[FAKE_MAX_RANKS]);
/* Open rank's group; each in a thread of its own, for all have to come. */
lks_status fake_open(const struct fake_rank *rank, double timeout_s, lks_comm **comm_p);

/* How the next group is divided: host h has local[h] ranks, in the order of ranks. */
void fake_engine_hosts(int n_hosts, const int *local);

/* From now on host h's engine neither sends nor receives: its machine is cut off. */
void fake_engine_cut(int host);
/* … or the connection is known to be closed. */
void fake_engine_break(int host);
/* Host h's operations fail at once, but its notes, and the end of them, come `late_s` later. */
void fake_engine_break_late(int host, double late_s);

extern const lks__engine fake_engine;

#endif
