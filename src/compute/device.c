#include "compute/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "compute/exchange.h"

/* The group's failure; OK if it has none. After a failure, data from other ranks won't arrive. */
static lks_status group_failure(lks__device *device, bool others)
{
    lks_status st = LKS_OK;
    if (device->waiter.failure != NULL)
        st = device->waiter.failure(device->waiter.ctx, others);
    if (st != LKS_OK && device->joined > 1)
        device->ops->exchange->cut(device);
    return st;
}

static lks_status give_up(lks__device *device, double seconds, bool others)
{
    device->hung = true;
    if (others)
        return lks__fail(LKS_ERR_TIMEOUT,
                         "%s has waited for other ranks' GPUs for %.0f s (--timeout and a little): "
                         "one of them or their connection hangs; NCCL_DEBUG=INFO shows more",
                         device->which, seconds);
    return lks__fail(LKS_ERR_TIMEOUT,
                     "%s has finished nothing for %.0f s (--timeout): its kernels hang, or a step "
                     "takes longer than that; look at nvidia-smi and dmesg, or give a longer "
                     "--timeout",
                     device->which, seconds);
}

static lks_status wait_for(lks__device *device, lks__mark mark, bool until_failure)
{
    /* Most waits are short: poll often at first, then leave the core to other threads. */
    enum { SPINS = 200 };
    /* A rank whose own work is stuck reports that itself, and the ranks that wait for it name it if
     * it can't: both happen first. So does the launcher's report if all ranks wait. */
    const double margin = 5;
    double start = 0;
    bool others = false;
    for (int i = 0;; i++) {
        bool passed;
        if (device->hung)
            return lks__fail(LKS_ERR_TIMEOUT,
                             "%s hangs: look at nvidia-smi and dmesg, or give a longer --timeout",
                             device->which);
        LKS__TRY(device->ops->passed(device, mark, &passed));
        if (passed) {
            if (device->waiter.progress != NULL)
                device->waiter.progress(device->waiter.ctx);
            return LKS_OK;
        }
        const bool waited = others;
        if (i >= SPINS && device->joined > 1)
            others = device->ops->exchange->waits(device);
        const lks_status st = group_failure(device, others);
        if (st != LKS_OK && until_failure)
            return st;
        if (i < SPINS)
            continue;
        if (i == SPINS || others != waited) /* then a move has begun or ended */
            start = lks__sys_now();
        const double limit = device->waiter.timeout_s + (others ? margin : 0);
        if (device->waiter.timeout_s > 0 && lks__sys_now() - start > limit)
            return give_up(device, limit, others);
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

void lks__device_choose_freely(lks__device *device, bool on)
{
    if (device->ops->choose_freely != NULL)
        device->ops->choose_freely(device, on);
}

void lks__device_close(lks__device *device)
{
    if (device != NULL)
        device->ops->close(device);
}

void lks__device_discard(lks__device *device, void *p, size_t bytes)
{
    const size_t page = lks__sys_page_bytes();
    if (p != NULL && lks__device_in_call(device))
        madvise(p, bytes / page * page, MADV_DONTNEED);
}
