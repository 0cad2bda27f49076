/* The engines that exist as modules, each as a backend. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/module.h"
#include "comm/hier/hier.h"

/* A module is loaded when it is first asked for; probes come from one thread. */
static bool load(const char *file, const char *package, const lks__engine **engine_p, char *why,
                 size_t why_bytes)
{
    char cause[400], shown[400];
    if (*engine_p != NULL)
        return true;
    lks__engine_fn *entry =
        (lks__engine_fn *)lks__module_entry(file, LKS__ENGINE_ENTRY, cause, sizeof cause);
    if (entry == NULL) {
        snprintf(why, why_bytes,
                 "%s; install the Debian package %s, then configure and build lockstep again",
                 lks__escape(shown, sizeof shown, cause, strlen(cause)), package);
        return false;
    }
    if (entry()->version != LKS__ENGINE_VERSION) {
        snprintf(why, why_bytes, "%s belongs to another version of lockstep", file);
        return false;
    }
    *engine_p = entry();
    return true;
}

/* --- mpi ---------------------------------------------------------------------------------- */

/* One source, compiled against the MPI that CMake finds, and against MPICH if that is another one:
 * a process can only join through the MPI whose launcher has started it. */
static const lks__engine *mpi, *mpich;

static bool by_mpich(void)
{
    return getenv("PMI_RANK") != NULL && getenv("OMPI_COMM_WORLD_RANK") == NULL;
}

static bool mpi_probe(const lks_world *world, char *why, size_t why_bytes)
{
    return (by_mpich() && load("lockstep_mpich.so", "libmpich-dev", &mpich, why, why_bytes)) ||
           (load("lockstep_mpi.so", "libopenmpi-dev", &mpi, why, why_bytes) &&
            mpi->probe(why, why_bytes) != 0);
}

static lks_status mpi_open(lks_comm *comm)
{
    return lks__hier_open(comm, mpich != NULL ? mpich : mpi, NULL);
}

const struct lks_comm_ops lks__comm_mpi = {
    .name = "mpi", .probe = mpi_probe, .open = mpi_open, LKS__HIER_OPS};

/* --- gloo --------------------------------------------------------------------------------- */

static const lks__engine *gloo;

static bool gloo_probe(const lks_world *world, char *why, size_t why_bytes)
{
    if (!load("lockstep_gloo.so", "libgloo-dev", &gloo, why, why_bytes))
        return false;
    if (!lks__hier_can_meet()) {
        snprintf(why, why_bytes,
                 "it is built in, but no address for connecting the hosts is set: start the ranks "
                 "with `lockstep run` or torchrun, or set MASTER_ADDR and MASTER_PORT");
        return false;
    }
    return gloo->probe(why, why_bytes) != 0;
}

static lks_status gloo_open(lks_comm *comm)
{
    return lks__hier_open(comm, gloo, NULL);
}

const struct lks_comm_ops lks__comm_gloo = {
    .name = "gloo", .probe = gloo_probe, .open = gloo_open, LKS__HIER_OPS};
