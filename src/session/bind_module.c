/* session/bind_module.c - the module lockstep_hwloc.so; see bind_module.h. */
#include "session/bind_module.h"

#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* The topology of the processors that this process may use; NULL if it can't be read. */
static hwloc_topology_t usable(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return NULL;
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    int err = mine == NULL || hwloc_topology_load(topology) != 0;
    /* Not for a simulated machine (HWLOC_SYNTHETIC), whose processors aren't ours. */
    if (!err && hwloc_topology_is_thissystem(topology))
        err = hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_THREAD) != 0 ||
              hwloc_topology_restrict(topology, mine, 0) != 0;
    hwloc_bitmap_free(mine);
    if (!err)
        return topology;
    hwloc_topology_destroy(topology);
    return NULL;
}

static int divide(hwloc_topology_t topology, int rank, int ranks, lks__bind_share *share)
{
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    hwloc_bitmap_t *sets = calloc((size_t)ranks, sizeof *sets);
    unsigned pu;
    if (sets == NULL || hwloc_distrib(topology, &root, 1, sets, (unsigned)ranks, INT_MAX, 0) != 0) {
        free(sets);
        return -1;
    }
    CPU_ZERO(&share->set);
    hwloc_bitmap_foreach_begin(pu, sets[rank])
    {
        if (pu < CPU_SETSIZE)
            CPU_SET(pu, &share->set);
    }
    hwloc_bitmap_foreach_end();
    for (int i = 0; i < ranks; i++)
        hwloc_bitmap_free(sets[i]);
    free(sets);
    return CPU_COUNT(&share->set) > 0 ? 0 : -1;
}

static int get_share(int rank, int ranks, lks__bind_share *share, char *why, size_t why_bytes)
{
    hwloc_topology_t topology = usable();
    if (topology == NULL) {
        snprintf(why, why_bytes, "hwloc can't read this machine");
        return -1;
    }
    share->cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    share->nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    int err = divide(topology, rank, ranks, share);
    hwloc_topology_destroy(topology);
    if (err)
        snprintf(why, why_bytes, "hwloc can't divide this machine into %d shares", ranks);
    return err;
}

static const char *library(void)
{
    static char name[40];
    const unsigned v = hwloc_get_api_version();
    snprintf(name, sizeof name, "hwloc %u.%u", v >> 16 & 0xff, v >> 8 & 0xff);
    return name;
}

LKS__MODULE_EXPORT const lks__bind_module lks__module_table = {LKS__BIND_MODULE_VERSION, library,
                                                               get_share};
