/* program.c - what makes the tool lockstep_deferred: --device=deferred, and auto takes it. The
 * environment's DEFERRED_SEED, a number, and the rank choose the order. */
#include <stdlib.h>

#include "deferred.h"
#include "devices.h"
#include "layers/devices.h"

static unsigned number_of(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 10);
}

/* Neighbours have different orders. */
lks_status lks__device_open_deferred(const lks__exec *cpu, lks__device **device_p)
{
    return deferred_open(cpu, number_of("DEFERRED_SEED") + number_of("RANK"), device_p);
}
