/* data/read/epoch.c - implements lockstep/sampler.h. */
#include <stdlib.h>

#include "base/number/rng.h"
#include "base/status.h"
#include "lockstep/sampler.h"

struct lks_sampler {
    lks_sampler_options o;
    uint64_t count;        /* samples per replica */
    uint32_t *permutation; /* [dataset_size]; NULL: in order */
};

static void shuffle(lks_sampler *s, uint64_t epoch)
{
    lks__mt g;
    lks__mt_seed(&g, s->o.seed + epoch);
    lks__mt_randperm(&g, s->permutation, (size_t)s->o.dataset_size);
}

lks_status lks_sampler_open(const lks_sampler_options *options, lks_sampler **sampler_p)
{
    LKS__NEED("lks_sampler_open", sampler_p);
    *sampler_p = NULL;
    LKS__NEED("lks_sampler_open", options);
    uint64_t n = options->dataset_size, R = (uint64_t)options->replicas;
    if (n < 1 || n > UINT32_MAX || options->replicas < 1)
        return lks__fail(LKS_ERR_ARG,
                         "lks_sampler_open: %llu samples for %d replicas: there must be 1 to "
                         "4294967295 samples, and a replica",
                         (unsigned long long)n, options->replicas);
    if (options->drop_last && n < R)
        return lks__fail(LKS_ERR_ARG,
                         "lks_sampler_open: drop_last leaves nothing of %llu samples for %llu "
                         "replicas",
                         (unsigned long long)n, (unsigned long long)R);
    lks_sampler *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "for a sampler");
    s->o = *options;
    s->count = options->drop_last ? n / R : (n + R - 1) / R;
    if (!options->in_order) {
        s->permutation = malloc((size_t)n * sizeof *s->permutation);
        if (s->permutation == NULL) {
            lks_sampler_close(s);
            return lks__no_memory("for a permutation of %llu samples", (unsigned long long)n);
        }
        shuffle(s, 0);
    }
    *sampler_p = s;
    return LKS_OK;
}

void lks_sampler_close(lks_sampler *s)
{
    if (s == NULL)
        return;
    free(s->permutation);
    free(s);
}

void lks_sampler_set_epoch(lks_sampler *s, uint64_t epoch)
{
    if (s != NULL && s->permutation != NULL)
        shuffle(s, epoch);
}

uint64_t lks_sampler_count(const lks_sampler *s)
{
    return s != NULL ? s->count : 0;
}

uint64_t lks_sampler_index(const lks_sampler *s, int replica, uint64_t i)
{
    if (s == NULL || replica < 0 || replica >= s->o.replicas || i >= s->count) {
        lks__fail(LKS_ERR_ARG,
                  "lks_sampler_index: sample %llu of replica %d: there are %llu samples for each "
                  "of %d replicas",
                  (unsigned long long)i, replica, (unsigned long long)lks_sampler_count(s),
                  s != NULL ? s->o.replicas : 0);
        return UINT64_MAX;
    }
    /* Padding continues at the front, as often as needed. */
    uint64_t at = ((uint64_t)replica + i * (uint64_t)s->o.replicas) % s->o.dataset_size;
    return s->permutation == NULL ? at : s->permutation[at];
}
