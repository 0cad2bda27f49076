/* base/number/rng.h - the two random number generators.
 *
 * lks__mt: PyTorch's CPU generator (MT19937), for initial weights and for nanoGPT's sampler, so
 * that a run can be compared with the PyTorch script of the same seed. It matches torch.Generator
 * on the CPU (ATen CPUGeneratorImpl, DistributionTemplates).
 *
 * lks__philox: Philox4x32-10 (Salmon et al., SC 2011), a pure function of key and counter, for
 * everything that is keyed by (seed, step, virtual rank, micro-step). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lks__mt {
    uint32_t state[624];
    uint32_t pos;    /* next word to return; 624: refill first */
    bool has_normal; /* normal_ of fewer than 16 elements keeps its second value here */
    double normal;
} lks__mt;

void lks__mt_seed(lks__mt *g, uint64_t seed); /* uses the low 32 bits, as torch.manual_seed */
uint32_t lks__mt_u32(lks__mt *g);
void lks__mt_skip(lks__mt *g, uint64_t n_u32);

/* tensor.uniform_(lo, hi) and torch.rand (0, 1), float32. */
void lks__mt_uniform(lks__mt *g, float *out, size_t n, float lo, float hi);
/* tensor.normal_(mean, std), float32: both paths (n >= 16, n < 16). */
void lks__mt_normal(lks__mt *g, float *out, size_t n, float mean, float std);
/* Number of 32-bit outputs that normal_ on n elements consumes, for n >= 16. Below 16 it depends on
 * the kept value, so call lks__mt_normal instead. */
uint64_t lks__mt_normal_draws(size_t n);
uint64_t lks__mt_randint(lks__mt *g, uint64_t range); /* one element of torch.randint(range, …) */
void lks__mt_randperm(lks__mt *g, uint32_t *out, size_t n);

typedef struct lks__philox_key {
    uint32_t k[2];
} lks__philox_key;

static inline lks__philox_key lks__philox_key_of(uint64_t seed)
{
    lks__philox_key key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    return key;
}

void lks__philox4x32(lks__philox_key key, const uint32_t counter[4], uint32_t out[4]);

/* The four words of the counter: step; v << 16 | micro-step; site; element / 4. Sites 0..8L+7 are
 * dropout sites (layer * 8 + place); all others are listed here. */
enum {
    LKS__SITE_DATA_TRAIN = 0x40000000, /* offsets of a training micro-batch */
    LKS__SITE_DATA_EVAL = 0x40000001,  /* + split: offsets of an evaluation batch (word 1: batch) */
    LKS__SITE_ROWS = 0x40000008,    /* rows added to a table of weights: words 0 and 3 element / 4,
                                       word 1 the tensor's number */
    LKS__SITE_SAMPLE = 0x40000010,  /* text generation: word 0 token, word 1 sample number */
    LKS__SITE_RECHECK = 0x40000018, /* --recheck: word 0 iteration */
};
