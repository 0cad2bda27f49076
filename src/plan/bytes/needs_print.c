#include <stdio.h>

#include "base/number/units.h"
#include "plan/bytes/process.h"

static void print_device(const lks__device_needs *d)
{
    const struct {
        const char *name;
        double bytes;
    } parts[] = {{"parameters", d->params},
                 {"moments", d->moments},
                 {"gradients", d->gradients},
                 {"activations", d->activations},
                 {"work space and buffers", d->work + d->buffers + d->exchange + d->samples},
                 {"about", d->opened}};
    printf("a rank's GPU:      %s:", lks__units_memory(d->total));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        printf("%s %s %s", i > 0 ? "," : "", parts[i].name, lks__units_memory(parts[i].bytes));
    printf(" for CUDA itself\n");
}

void lks__needs_print(const lks__needs *n)
{
    const int W = lks__place_world(&n->place);
    const lks__device_needs *d = &n->device;
    printf("parameters:        %s, and %s of moments; %s\n", lks__units_memory(n->params),
           lks__units_memory(n->moments),
           n->replicas == 1 ? "once for all ranks of a host" : "for each rank");
    if (n->gradients > 0.0)
        printf("gradients:         %s in %d arena%s, for each rank\n",
               lks__units_memory(n->gradients), n->n_arenas, n->n_arenas == 1 ? "" : "s");
    if (n->staging > 0.0)
        printf("staging buffer:    %s, for %s\n", lks__units_memory(n->staging),
               n->stagers == n->place.local ? "each rank" : "ranks that need one");
    if (d->total <= 0.0)
        printf("activations:       %s, for each rank\n", lks__units_memory(n->activations));
    printf("process:           %s, for each rank; %s of libraries and %s of shared "
           "buffers, once for all ranks of a host\n",
           lks__units_memory(n->process), lks__units_memory(n->libraries),
           lks__units_memory(n->control));
    if (n->inter_host > 0.0)
        printf("other hosts:       %s for gradients that arrive, for the first rank of a host\n",
               lks__units_memory(n->inter_host));
    if (n->samples > 0.0)
        printf("samples:           %s, for the first rank%s\n", lks__units_memory(n->samples),
               d->total > 0.0 ? "'s GPU" : "");
    if (n->checkpoint > 0.0)
        printf("checkpoint:        %s more on the first host while it is written\n",
               lks__units_memory(n->checkpoint));
    if (d->total > 0.0)
        print_device(d);
    printf("bytes/parameter:   %.1f on a host (usual count: 16, with one arena of gradients)\n",
           lks__needs_per_parameter(n));
    if (n->place.n_hosts > 1)
        printf("each of %d hosts:   %s\n", n->place.n_hosts, lks__units_memory(n->host_bytes));
    printf("total on %d rank%s: %s\n", W, W == 1 ? "" : "s",
           lks__units_memory(n->host_bytes * n->place.n_hosts));
}
