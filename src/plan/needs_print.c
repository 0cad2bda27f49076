#include <stdio.h>

#include "plan/process.h"

static double mb(double bytes)
{
    return bytes / 1e6;
}

void lks__needs_print(const lks__needs *n)
{
    const int W = lks__place_world(&n->place);
    printf("parameters:        %.1f MB, and %.1f MB of moments; %s\n", mb(n->params),
           mb(n->moments), n->replicas == 1 ? "once for all ranks of a host" : "for each rank");
    printf("gradients:         %.1f MB in %d arena%s, for each rank\n", mb(n->gradients),
           n->n_arenas, n->n_arenas == 1 ? "" : "s");
    if (n->staging > 0.0)
        printf("staging buffer:    %.1f MB, for %s\n", mb(n->staging),
               n->stagers == n->place.local ? "each rank" : "ranks that need one");
    const lks__device_needs *d = &n->device;
    printf("activations:       %.1f MB, for each rank%s\n", mb(n->activations),
           d->total > 0.0 ? "'s GPU" : "");
    printf("process:           %.1f MB, for each rank; %.1f MB of libraries and %.1f MB of shared "
           "buffers, once for all ranks of a host\n",
           mb(n->process), mb(n->libraries), mb(n->control));
    if (n->inter_host > 0.0)
        printf("other hosts:       %.1f MB for gradients that arrive, for the first rank of a "
               "host\n",
               mb(n->inter_host));
    if (n->samples > 0.0)
        printf("samples:           %.1f MB, for the first rank%s\n", mb(n->samples),
               d->total > 0.0 ? "'s GPU" : "");
    if (n->checkpoint > 0.0)
        printf("checkpoint:        %.1f MB more on the first host while it is written\n",
               mb(n->checkpoint));
    if (d->total > 0.0)
        printf("a rank's GPU:      %.1f MB: parameters %.1f, moments %.1f, gradients %.1f, "
               "activations "
               "%.1f, work space and buffers %.1f, CUDA itself some %.0f\n",
               mb(d->total), mb(d->params), mb(d->moments), mb(d->gradients), mb(d->activations),
               mb(d->work + d->buffers + d->exchange + d->samples), mb(d->opened));
    printf("bytes/parameter:   %.1f on a host (usual count: 16, with one arena of gradients)\n",
           lks__needs_per_parameter(n));
    if (n->place.n_hosts > 1)
        printf("each of %d hosts:   %.1f MB\n", n->place.n_hosts, mb(n->host_bytes));
    printf("total on %d rank%s: %.1f MB\n", W, W == 1 ? "" : "s",
           mb(n->host_bytes * n->place.n_hosts));
}
