#include "compute/cpu/device.h"

#include <string.h>
#include <sys/mman.h>

#include "base/system/sys.h"

static lks_status alloc(lks__device *device, size_t bytes, void **p)
{
    *p = lks__sys_mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LKS__MEMORY(*p, "for %.1f MB", (double)bytes / 1e6);
    return LKS_OK;
}

static void release(lks__device *device, void *p, size_t bytes)
{
    lks__sys_munmap(p, bytes);
}

static void copy(lks__device *device, lks__queue queue, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

static lks__mark mark(lks__device *device, lks__queue queue)
{
    return (lks__mark){.queue = queue};
}

static void follow(lks__device *device, lks__queue queue, lks__mark mark)
{
}

static lks_status passed(lks__device *device, lks__mark mark, bool *passed_p)
{
    *passed_p = true;
    return LKS_OK;
}

static void nothing(lks__device *device)
{
}

static const struct lks__device_ops ops = {
    .name = "cpu",
    .host_memory = true,
    .alloc = alloc,
    .release = release,
    .alloc_staging = alloc,
    .release_staging = release,
    .copy = copy,
    .mark = mark,
    .follow = follow,
    .passed = passed,
    .close = nothing,
};

lks__device lks__device_cpu(const lks__exec *ex)
{
    return (lks__device){.ops = &ops, .layers = &lks__layers_cpu, .ex = ex};
}
