/* The engines of comm/engines.h as backends. A module is loaded on first use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/module.h"
#include "comm/engines.h"
#include "comm/hier/hier.h"

/* A process can only join through the MPI whose launcher has started it. So one source is compiled
 * against the MPI that CMake finds, and against MPICH if that is a different MPI. */
static bool by_mpich(void)
{
    return getenv("PMI_RANK") != NULL && getenv("OMPI_COMM_WORLD_RANK") == NULL;
}

enum {
#define NUMBER(name, ...) ENGINE_##name,
    LKS__ENGINES(NUMBER)
#undef NUMBER
        N_ENGINES
};

static const struct lks__engine_module modules[] = {
#define ROW(name, ...) [ENGINE_##name] = {__VA_ARGS__},
    LKS__ENGINES(ROW)
#undef ROW
};

/* [0] `file`, [1] `other.file`; NULL: not loaded yet. Only one thread calls probes. */
static const lks__engine *loaded[N_ENGINES][2];

static bool load(const char *file, const char *package, const lks__engine **engine_p, char *why,
                 size_t why_bytes)
{
    char cause[400], advice[LKS__MODULE_ADVICE];
    if (*engine_p != NULL)
        return true;
    *engine_p = lks__module_load(file, LKS__ENGINE_VERSION, cause, sizeof cause);
    if (*engine_p == NULL) {
        snprintf(why, why_bytes, "%s; %s", lks__shown(cause, 400),
                 lks__module_advice(file, package, advice));
        return false;
    }
    return true;
}

/* NULL, with the reason in `why`, if no module serves this process. */
static const lks__engine *find(const struct lks__engine_module *m, char *why, size_t why_bytes)
{
    const lks__engine **engines = loaded[m - modules];
    if (m->other.fits != NULL && m->other.fits() &&
        load(m->other.file, m->other.package, &engines[1], why, why_bytes))
        return engines[1];
    return load(m->file, m->package, &engines[0], why, why_bytes) ? engines[0] : NULL;
}

static bool probe(const struct lks_comm_ops *ops, const lks_world *world, char *why,
                  size_t why_bytes)
{
    const lks__engine *engine = find(ops->engine, why, why_bytes);
    if (engine == NULL)
        return false;
    if (engine->needs_store && !lks__hier_can_meet()) {
        snprintf(why, why_bytes,
                 "it is built in, but no address for connecting the hosts is set: start the ranks "
                 "with `lockstep run` or torchrun, or set MASTER_ADDR and MASTER_PORT");
        return false;
    }
    return engine->probe(why, why_bytes) != 0;
}

static bool loads(const struct lks_comm_ops *ops, char *why, size_t why_bytes)
{
    return find(ops->engine, why, why_bytes) != NULL;
}

static lks_status open_engine(lks_comm *comm)
{
    char why[512];
    const lks__engine *engine = find(comm->ops->engine, why, sizeof why);
    if (engine == NULL)
        return lks__fail(LKS_ERR_SUPPORT, "%s: %s", comm->ops->name, why);
    return lks__hier_open(comm, engine, NULL, NULL);
}

static const struct lks_comm_ops backends[] = {
#define BACKEND(text, ...)                                                                         \
    {.name = #text,                                                                                \
     .engine = &modules[ENGINE_##text],                                                            \
     .loads = loads,                                                                               \
     .probe = probe,                                                                               \
     .open = open_engine,                                                                          \
     LKS__HIER_OPS},
    LKS__ENGINES(BACKEND)
#undef BACKEND
};

const struct lks_comm_ops *lks__hier_backend(int index)
{
    return index >= 0 && index < N_ENGINES ? &backends[index] : NULL;
}
