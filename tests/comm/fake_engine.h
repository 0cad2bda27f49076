/* comm/fake_engine.h - an engine between "hosts" that are threads of one process, so that the layer
 * above engines can be tested, also under sanitizers, without MPI or Gloo. */
#pragma once

#include "comm/hier/link/engine.h"
#include "comm/shm/segment/status.h"

enum { FAKE_MAX_HOSTS = 8, FAKE_MAX_RANKS = 8 };

/* A rank that has not opened its group yet. */
struct fake_rank {
    lks_world world;
    lks__segment *segment;
};

/* "212": the ranks of hosts with 2, 1 and 2 ranks. Returns their number. */
int fake_ranks(const char *hosts, struct fake_rank ranks[FAKE_MAX_RANKS]);
/* Open a rank's group. Each rank needs a thread of its own, because the call waits for all. */
lks_status fake_open(const struct fake_rank *rank, double timeout_s, lks_comm **comm_p);

/* The hosts of the next group: host h has local[h] ranks, in rank order. */
void fake_engine_hosts(int n_hosts, const int *local);

/* From now on host h's engine neither sends nor receives, as if its machine were cut off. */
void fake_engine_cut(int host);
/* … or its connection is known to be closed. */
void fake_engine_break(int host);
/* Host h's operations fail at once, but its notes, and the news of their end, arrive `late_s`
 * later. */
void fake_engine_break_late(int host, double late_s);

/* Operations end on host h no earlier than `late_s` from now, also if they have on other hosts. */
void fake_engine_slow(int host, double late_s);

/* The next n notes of host h find no room at first, as if the one before were still being sent. */
void fake_engine_refuse(int host, int n);
/* A note that host h hasn't sent, with other bytes, arrives at the others. */
void fake_engine_forge(int host, const void *note);
/* From now on nobody can join: the call doesn't return. */
void fake_engine_hang(void);

/* What host h has done. */
struct fake_deeds {
    unsigned told; /* notes */
    double gap_s;  /* shortest time between two of them, since the last question */
    size_t got;    /* bytes from other hosts in operations, other than descriptors, since the last
                    * question */
    size_t most;   /* bytes of its largest exchange between all hosts, since the last question */
    int left;      /* 1: in order, 0: otherwise, -1: not yet */
    unsigned char note[LKS__ENGINE_MESSAGE]; /* the last one */
};
void fake_engine_deeds(int host, struct fake_deeds *deeds);

extern const lks__engine fake_engine;
