#include "layers/device.h"

#include <unistd.h>

#include "base/sys.h"
#include "layers/exchange.h"

/* The group's failure; OK if it has none. What other ranks were to send won't come then. */
static lks_status group_failure(lks__device *device)
{
    lks_status st = LKS_OK;
    if (device->waiter.failure != NULL)
        st = device->waiter.failure(device->waiter.ctx);
    if (st != LKS_OK && device->joined > 1)
        device->ops->exchange->cut(device);
    return st;
}

/* Other ranks notice a rank that stands still and name it, but a rank alone has only itself. If
 * devices wait for each other, the launcher gives up first, and tells of all ranks. */
static lks_status give_up(lks__device *device, double seconds)
{
    device->hung = true;
    return lks__fail(
        LKS_ERR_TIMEOUT,
        "%s has finished nothing for %.0f s (--timeout)%s: its kernels hang, or a step "
        "takes longer than that; look at nvidia-smi and dmesg, or give a longer "
        "--timeout",
        device->which, seconds, device->joined > 1 ? ", or one that it waits for" : "");
}

static lks_status wait_for(lks__device *device, lks__mark mark, bool until_failure)
{
    /* Most waits are short: poll often at first, then leave the core to other threads. */
    enum { SPINS = 200 };
    const double margin = device->joined > 1 ? 5 : 0, limit = device->waiter.timeout_s + margin;
    double start = 0;
    for (int i = 0;; i++) {
        bool passed;
        if (device->hung)
            return lks__fail(LKS_ERR_TIMEOUT, "%s hangs", device->which);
        LKS__TRY(device->ops->passed(device, mark, &passed));
        if (passed) {
            if (device->waiter.progress != NULL)
                device->waiter.progress(device->waiter.ctx);
            return LKS_OK;
        }
        const lks_status st = group_failure(device);
        if (st != LKS_OK && until_failure)
            return st;
        if (i < SPINS)
            continue;
        if (i == SPINS)
            start = lks__sys_now();
        if (device->waiter.timeout_s > 0 && lks__sys_now() - start > limit)
            return give_up(device, limit);
        usleep(20);
    }
}

lks_status lks__device_wait(lks__device *device, lks__mark mark)
{
    return wait_for(device, mark, true);
}

lks_status lks__device_finish(lks__device *device, lks__queue queue)
{
    return lks__device_wait(device, device->ops->mark(device, queue));
}

void lks__device_drain(lks__device *device)
{
    if (device->ops->host_memory) /* nothing is ever queued */
        return;
    for (int q = 0; q < LKS__QUEUES; q++)
        if (wait_for(device, device->ops->mark(device, (lks__queue)q), false) != LKS_OK)
            break;
}

void lks__device_order(lks__device *device, lks__queue from, lks__queue to)
{
    device->ops->follow(device, to, device->ops->mark(device, from));
}

void lks__device_close(lks__device *device)
{
    if (device != NULL)
        device->ops->close(device);
}
