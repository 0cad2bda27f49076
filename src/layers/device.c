#include "layers/device.h"

#include <unistd.h>

lks_status lks__device_wait(lks__device *device, lks__mark mark)
{
    /* Most waits are short: poll often at first, then leave the core to other threads. */
    enum { SPINS = 200 };
    for (int i = 0;; i++) {
        bool passed;
        LKS__TRY(device->ops->passed(device, mark, &passed));
        if (passed) {
            if (device->waiter.progress != NULL)
                device->waiter.progress(device->waiter.ctx);
            return LKS_OK;
        }
        if (device->waiter.failure != NULL)
            LKS__TRY(device->waiter.failure(device->waiter.ctx));
        if (i >= SPINS)
            usleep(20);
    }
}

lks_status lks__device_finish(lks__device *device, lks__queue queue)
{
    return lks__device_wait(device, device->ops->mark(device, queue));
}

void lks__device_drain(lks__device *device)
{
    if (device->ops->host_memory) /* nothing is ever queued */
        return;
    const lks__waiter waiter = device->waiter;
    device->waiter.failure = NULL;
    for (int q = 0; q < LKS__QUEUES; q++)
        if (lks__device_finish(device, (lks__queue)q) != LKS_OK)
            break;
    device->waiter = waiter;
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
