#include "compute/mirror.h"

lks_status lks__mirror_open(lks__device *device, size_t bytes, lks__mirror *m)
{
    void *host;
    LKS__TRY(device->ops->alloc_staging(device, bytes, &host));
    lks_status st = lks__mirror_wrap(device, host, bytes, m);
    if (st != LKS_OK) {
        device->ops->release_staging(device, host, bytes);
        return st;
    }
    m->own_host = true;
    return LKS_OK;
}

lks_status lks__mirror_wrap(lks__device *device, void *host, size_t bytes, lks__mirror *m)
{
    void *dev = host;
    if (!device->ops->host_memory)
        LKS__TRY(device->ops->alloc(device, bytes, &dev));
    *m = (lks__mirror){.device = device, .host = host, .dev = dev, .bytes = bytes};
    return LKS_OK;
}

void lks__mirror_close(lks__mirror *m)
{
    if (m->dev != m->host) {
        lks__device_drain(m->device);
        m->device->ops->release(m->device, m->dev, m->bytes);
    }
    if (m->own_host)
        m->device->ops->release_staging(m->device, m->host, m->bytes);
    *m = (lks__mirror){0};
}

void lks__mirror_to_device(const lks__mirror *m, lks__queue queue, size_t from, size_t n)
{
    if (m->dev != m->host)
        m->device->ops->copy(m->device, queue, (char *)m->dev + from, (char *)m->host + from, n);
}

void lks__mirror_to_host(const lks__mirror *m, lks__queue queue, size_t from, size_t n)
{
    if (m->dev != m->host)
        m->device->ops->copy(m->device, queue, (char *)m->host + from, (char *)m->dev + from, n);
}
