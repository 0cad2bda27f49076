#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "compute/cuda/plans.h"
#include "host.h"

/* --- what kernels call of the device ---------------------------------------------------------- */

cudaStream_t lks__cuda_stream(const lks__exec *ex)
{
    return NULL;
}

static bool halves, together;

bool lks__cuda_halves(const lks__exec *ex)
{
    return halves;
}

bool lks__cuda_together(const lks__exec *ex)
{
    return together;
}

void host_together(bool on)
{
    together = on;
}

bool host_halves(bool on)
{
    const bool were = halves;
    halves = on;
    return were;
}

int host_begin_floats(void **state)
{
    host_halves(false);
    return 0;
}

int host_begin_halves(void **state)
{
    host_halves(true);
    return 0;
}

double host_tolerance(void)
{
    return halves ? 1.0 / 256.0 : 1e-5;
}

void lks__cuda_written(const lks__exec *ex, const void *p, size_t bytes)
{
}

/* Anew for each operation, of exactly that size, and full of NaNs. */
void *lks__cuda_work(const lks__exec *ex, size_t bytes)
{
    static void *work;
    free(work);
    work = NULL;
    assert_int_equal(posix_memalign(&work, 256, bytes), 0);
    memset(work, 0xff, bytes);
    return work;
}

static lks__device_counts counted;

void lks__cuda_count(const lks__exec *ex, double bytes, double flops)
{
    counted.bytes += bytes;
    counted.flops += flops;
}

lks__device_counts host_counts(void)
{
    const lks__device_counts all = counted;
    counted = (lks__device_counts){0};
    return all;
}

bool lks__cuda_launches(void)
{
    return true;
}

const uint16_t *lks__cuda_rounded(const lks__exec *ex, const float *p)
{
    return NULL;
}

void *lks__cuda_operand(const lks__exec *ex, int operand, size_t bytes)
{
    static void *operands[2];
    free(operands[operand]);
    operands[operand] = NULL;
    assert_int_equal(posix_memalign(&operands[operand], 256, bytes), 0);
    return operands[operand];
}

static double element(const void *x, bool half, size_t i)
{
    return half ? (double)lks__bf16_to_float(((const uint16_t *)x)[i])
                : (double)((const float *)x)[i];
}

/* A factor of a product in double: `rows` times k numbers. */
static double *numbers_of(const void *x, size_t ld, bool half, bool transposed, size_t rows,
                          size_t k)
{
    double *y = lks_test_malloc(rows * k * sizeof *y + 1);
    for (size_t i = 0; i < rows; i++)
        for (size_t p = 0; p < k; p++)
            y[i * k + p] = element(x, half, transposed ? p * ld + i : i * ld + p);
    return y;
}

static void multiply_one(const lks__cuda_key *s, const lks__cuda_factors *of)
{
    double *a = numbers_of(of->a, s->lda, s->bf16, s->ta == 'T', s->m, s->k);
    double *b = numbers_of(of->b, s->ldb, s->bf16, s->tb != 'T', s->n, s->k);
    for (size_t i = 0; i < s->m; i++)
        for (size_t j = 0; j < s->n; j++) {
            const size_t at = i * s->ldc + j;
            double sum = 0.0;
            for (size_t k = 0; k < s->k; k++)
                sum += a[i * s->k + k] * b[j * s->k + k];
            float c = of->alpha * (float)sum;
            if (of->beta != 0.0f)
                c += of->beta * (float)element(of->add, s->half, at);
            if (s->bias)
                c += lks__bf16_to_float(of->bias[j]);
            if (s->half)
                ((uint16_t *)of->out)[at] = lks__bf16_from_float(c);
            else
                ((float *)of->out)[at] = c;
        }
    lks_test_free(a, b);
}

/* The plain product. */
void lks__cuda_multiply(const lks__exec *ex, lks__cuda_key *key, const lks__cuda_factors *of)
{
    const size_t n = key->count == 0 ? 1 : key->count, operand = key->bf16 ? 2 : 4,
                 result = key->half ? 2 : 4;
    for (size_t i = 0; i < n; i++) {
        lks__cuda_factors one = *of;
        one.a = (const char *)of->a + i * key->stride_a * operand;
        one.b = (const char *)of->b + i * key->stride_b * operand;
        one.add = (const char *)of->add + i * key->stride_c * result;
        one.out = (char *)of->out + i * key->stride_c * result;
        multiply_one(key, &one);
    }
}

/* --- what tests share --------------------------------------------------------------------------
 */

const lks__exec *host_exec(void)
{
    static lks__exec ex;
    static lks__kernels kernels;
    if (ex.k == NULL) {
        lks__kernels_open_own(LKS__CPU_PLAIN, &kernels);
        assert_ok(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
        ex.k = &kernels;
    }
    return &ex;
}

/* Remember p, so that it doesn't count as lost. */
static void *kept(void *p)
{
    static void **all;
    static size_t n_all;
    all = realloc(all, (n_all + 1) * sizeof *all);
    assert_true(p != NULL && all != NULL);
    all[n_all++] = p;
    return p;
}

static void *elements(size_t n, size_t size)
{
    return kept(malloc(n * size + (n == 0)));
}

void *host_work(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 256, bytes), 0);
    memset(p, 0xff, bytes);
    return kept(p);
}

float *host_floats(size_t n)
{
    float *x = elements(n, sizeof *x);
    memset(x, 0xff, n * sizeof *x);
    return x;
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

float *host_randoms(size_t n, unsigned seed)
{
    float *x = elements(n, sizeof *x);
    uint32_t state = seed;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)draw(&state) / 8388608.0f - 1.0f;
    return x;
}

float *host_copy(const float *x, size_t n)
{
    return memcpy(elements(n, sizeof *x), x, n * sizeof *x);
}

static size_t act_bytes(void)
{
    return halves ? sizeof(uint16_t) : sizeof(float);
}

lks__act *host_acts(const float *x, size_t n)
{
    if (!halves)
        return (void *)host_copy(x, n);
    uint16_t *y = elements(n, sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = lks__bf16_from_float(x[i]);
    return (void *)y;
}

lks__act *host_empty_acts(size_t n)
{
    void *x = elements(n, act_bytes());
    memset(x, 0xff, n * act_bytes());
    return x;
}

lks__act *host_act_at(lks__act *x, size_t i)
{
    return (void *)((char *)x + i * act_bytes());
}

float *host_act_floats(const lks__act *x, size_t n)
{
    const void *from = x;
    if (!halves)
        return host_copy(from, n);
    float *y = elements(n, sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = lks__bf16_to_float(((const uint16_t *)from)[i]);
    return y;
}

float *host_as_stored(const float *x, size_t n)
{
    return host_act_floats(host_acts(x, n), n);
}

double *host_doubles(size_t n)
{
    double *x = elements(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = 0.0;
    return x;
}

double *host_wide(const float *x, size_t n)
{
    double *y = elements(n, sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

int32_t *host_tokens(size_t n, int32_t limit, unsigned seed)
{
    int32_t *x = elements(n, sizeof *x);
    uint32_t state = seed;
    for (size_t i = 0; i < n; i++)
        x[i] = (int32_t)(draw(&state) % (uint32_t)limit);
    return x;
}

lks__dropout host_dropout(double p)
{
    return (lks__dropout){.key = lks__philox_key_of(UINT64_C(0x123456789abcdef)),
                          .step = 11,
                          .vm = 3 << 16 | 2,
                          .site = 25,
                          .threshold = (uint32_t)(p * 4294967296.0),
                          .scale = (float)(1 / (1 - p))};
}

void host_close(const float *got, const double *want, size_t n, double tolerance, const char *what,
                const char *file, int line)
{
    double largest = 1.0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * largest)) {
            print_error("%s: element %zu of %zu: %.9g, not %.9g\n", what, i, n, (double)got[i],
                        want[i]);
            _fail(file, line);
        }
}

void host_close_floats(const float *got, const float *want, size_t n, double tolerance,
                       const char *what, const char *file, int line)
{
    double *wide = elements(n, sizeof *wide);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)want[i];
    host_close(got, wide, n, tolerance, what, file, line);
}

void host_bits(const float *got, const float *want, size_t n, const char *what, const char *file,
               int line)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            print_error("%s: element %zu of %zu: %.9g, not the bits of %.9g\n", what, i, n,
                        (double)got[i], (double)want[i]);
            _fail(file, line);
        }
}
