/* host.h - what kernel tests need in place of a GPU, and what they share. Device memory is the
 * host's; launches run at once (fibers.h). Include it after support.h. */
#pragma once

#include "compute/cpu/exec.h"
#include "compute/cuda/cuda.h"
#include "compute/device.h"
#include "harness.h"

/* The CPU's exec, on one thread, to compare with lks__layers_cpu. The CUDA operations ignore it. */
const lks__exec *host_exec(void);

/* Are activations stored in bfloat16, and operands of products rounded to it? Not at first. Returns
 * what was before. */
bool host_halves(bool on);
/* Do warps multiply together (cuda.h)? Not at first. */
void host_together(bool on);

/* A test that runs twice: with activations in float32, and in bfloat16. */
#define HOST_TEST(name)                                                                            \
    static void name(void **state);                                                                \
    TEST_AS(name, , host_begin_floats, NULL)                                                       \
    TEST_AS(name, _bf16, host_begin_halves, NULL)                                                  \
    static void name(void **state)
int host_begin_floats(void **state);
int host_begin_halves(void **state);

/* Of an activation that is stored once: a number that is rounded to bfloat16 differs by up to a
 * 512th. */
double host_tolerance(void);

/* What operations have counted since the last call (cuda.h). */
lks__device_counts host_counts(void);

/* Exactly n elements, so that AddressSanitizer finds what lies beyond. They live until the program
 * ends. */
float *host_floats(size_t n);                 /* all NaN */
double *host_doubles(size_t n);               /* all 0 */
float *host_randoms(size_t n, unsigned seed); /* uniform in [-1, 1) */
float *host_copy(const float *x, size_t n);
double *host_wide(const float *x, size_t n);
void *host_work(size_t bytes); /* aligned as work space is, full of NaNs */
int32_t *host_tokens(size_t n, int32_t limit, unsigned seed);
lks__dropout host_dropout(double p);

/* Activations as the device stores them (host_halves), with exactly n elements. */
lks__act *host_acts(const float *x, size_t n); /* rounded, if they are bfloat16 */
lks__act *host_empty_acts(size_t n);           /* all NaN */
lks__act *host_act_at(lks__act *x, size_t i);  /* from element i on */
float *host_act_floats(const lks__act *x, size_t n);
float *host_as_stored(const float *x, size_t n); /* the floats of host_acts(x, n) */

/* Every |got[i] - want[i]| <= tolerance * (the largest |want|, or 1 if that is less). */
#define assert_close(got, want, n, tolerance)                                                      \
    host_close(got, want, n, tolerance, #got, __FILE__, __LINE__)
void host_close(const float *got, const double *want, size_t n, double tolerance, const char *what,
                const char *file, int line);
/* The same, with floats to compare with. */
#define assert_close_floats(got, want, n, tolerance)                                               \
    host_close_floats(got, want, n, tolerance, #got, __FILE__, __LINE__)
void host_close_floats(const float *got, const float *want, size_t n, double tolerance,
                       const char *what, const char *file, int line);
/* Equal bits. */
#define assert_bits(got, want, n) host_bits(got, want, n, #got, __FILE__, __LINE__)
void host_bits(const float *got, const float *want, size_t n, const char *what, const char *file,
               int line);

/* Run the block that follows for several orders of blocks and threads; `seed` names the order. In
 * each, results must have equal bits: keep those of seed 0 and compare. Sanitizers see in one order
 * that an address is wrong, or that threads have no order; ThreadSanitizer makes everything fifty
 * times slower. */
#if defined(LKS_TEST_THREAD) || defined(LKS_TEST_ADDRESS)
enum { HOST_ORDERS = 1 };
#else
enum { HOST_ORDERS = 5 };
#endif
#define EACH_ORDER(seed)                                                                           \
    for (unsigned seed = 0; seed < HOST_ORDERS && (lks_fibers_order(seed), true); seed++)
