/* program.c - makes the tool lockstep_deferred, in which --device=deferred exists and is what auto
 * chooses. The seed is DEFERRED_SEED + LKS_TEST_START + RANK of the environment, so that the runs
 * of a test, and the ranks of a run, have different orders. */
#include <stdlib.h>

#include "deferred.h"
#include "devices.h"
#include "layers/devices.h"

static unsigned number_of(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 10);
}

lks_status lks__device_open_deferred(const lks__exec *cpu, lks__device **device_p)
{
    unsigned seed = number_of("DEFERRED_SEED") + number_of("LKS_TEST_START") + number_of("RANK");
    return deferred_open(cpu, seed, device_p);
}
