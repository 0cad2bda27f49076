#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "host.h"

/* --- what kernels call of the device ---------------------------------------------------------- */

cudaStream_t lks__cuda_stream(const lks__exec *ex)
{
    return NULL;
}

static bool halves;

bool lks__cuda_halves(const lks__exec *ex)
{
    return halves;
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

static float element(const struct lks__cuda_factor *x, size_t i)
{
    if (x->kind == LKS__CUDA_ACTS && halves)
        return lks__bf16_to_float(((const uint16_t *)x->at)[i]);
    const float v = ((const float *)x->at)[i];
    return halves ? lks__bf16_to_float(lks__bf16_from_float(v)) : v;
}

/* All that a product reads of a factor, in double: `rows` times k numbers. */
static double *numbers_of(const struct lks__cuda_factor *x, bool transposed, size_t rows, size_t k)
{
    double *y = malloc(rows * k * sizeof *y + 1);
    assert_non_null(y);
    for (size_t i = 0; i < rows; i++)
        for (size_t p = 0; p < k; p++)
            y[i * k + p] = (double)element(x, transposed ? p * x->ld + i : i * x->ld + p);
    return y;
}

/* The plain product. */
void lks__cuda_gemm(const lks__exec *ex, const lks__cuda_product *s)
{
    const bool in_halves = s->c.kind == LKS__CUDA_ACTS && halves;
    double *a = numbers_of(&s->a, s->ta == 'T', s->m, s->k);
    double *b = numbers_of(&s->b, s->tb != 'T', s->n, s->k);
    for (size_t i = 0; i < s->m; i++)
        for (size_t j = 0; j < s->n; j++) {
            const size_t at = i * s->c.ld + j;
            float c = 0.0f;
            double sum = 0.0;
            for (size_t k = 0; k < s->k; k++)
                sum += a[i * s->k + k] * b[j * s->k + k];
            if (s->beta != 0.0f)
                c = s->beta * (in_halves ? lks__bf16_to_float(((const uint16_t *)s->c.at)[at])
                                         : ((const float *)s->c.at)[at]);
            c += (float)sum;
            if (in_halves)
                ((uint16_t *)s->c.at)[at] = lks__bf16_from_float(c);
            else
                ((float *)s->c.at)[at] = c;
        }
    free(a);
    free(b);
}

void lks__cuda_gemm_batch(const lks__exec *ex, const lks__cuda_batch *s)
{
    const size_t lda = s->ta == 'T' ? s->m : s->k, ldb = s->tb == 'T' ? s->k : s->n;
    for (size_t i = 0; i < s->count; i++) {
        float *d = s->d + i * s->stride_d;
        const float *c = s->c + i * s->stride_d;
        float *product = malloc(s->m * s->n * sizeof *product);
        assert_non_null(product);
        lks__cuda_gemm(ex,
                       &(lks__cuda_product){.ta = s->ta,
                                            .tb = s->tb,
                                            .m = s->m,
                                            .n = s->n,
                                            .k = s->k,
                                            .a = {s->a + i * s->stride_a, lda, LKS__CUDA_FLOATS},
                                            .b = {s->b + i * s->stride_b, ldb, LKS__CUDA_FLOATS},
                                            .c = {product, s->n, LKS__CUDA_FLOATS}});
        for (size_t e = 0; e < s->m * s->n; e++)
            d[e] = s->alpha * product[e] + (s->beta == 0.0f ? 0.0f : s->beta * c[e]);
        free(product);
    }
}

/* --- what tests share --------------------------------------------------------------------------
 */

const lks__exec *host_exec(void)
{
    static lks__exec ex;
    static lks__kernels kernels;
    if (ex.k == NULL) {
        assert_ok(lks__kernels_open_own(LKS__CPU_PLAIN, &kernels));
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
