/* program.c - makes the tool lockstep_deferred, in which --device=deferred exists and is what auto
 * chooses. The seed is DEFERRED_SEED + LKS_TEST_START + RANK of the environment, so that the runs
 * of a test, and the ranks of a run, have different orders. */
#include <stdio.h>
#include <stdlib.h>

#include "compute/devices.h"
#include "deferred.h"
#include "devices.h"

static unsigned number_of(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : (unsigned)strtoul(text, NULL, 10);
}

lks_status lks__device_open_deferred(const lks__device_place *place, lks__device **device_p)
{
    if (place->number > 0)
        return lks__fail(LKS_ERR_CONFIG, "--device=deferred:%d: there is one, number 0",
                         place->number);
    unsigned seed = number_of("DEFERRED_SEED") + number_of("LKS_TEST_START") + number_of("RANK");
    return deferred_open(place->cpu, seed, device_p);
}

bool lks__device_look_deferred(char text[LKS__DEVICE_LOOK])
{
    if (text != NULL)
        snprintf(text, LKS__DEVICE_LOOK, "ready");
    return true;
}
