/* comm/fake_engine.h - an engine between "hosts" that are threads of one process: what the layer
 * above engines does can be tested, and seen by sanitizers, without MPI or Gloo. */
#ifndef LKS_TESTS_COMM_FAKE_ENGINE_H
#define LKS_TESTS_COMM_FAKE_ENGINE_H

#include "comm/hier/engine.h"

enum { FAKE_MAX_HOSTS = 8 };

/* How the next group is divided: host h has local[h] ranks, in the order of ranks. */
void fake_engine_hosts(int n_hosts, const int *local);

/* From now on host h's engine neither sends nor receives: its machine is cut off. */
void fake_engine_cut(int host);
/* … or the connection is known to be closed. */
void fake_engine_break(int host);

extern const lks__engine fake_engine;

#endif
