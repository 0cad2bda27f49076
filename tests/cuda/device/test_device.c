/* The device for NVIDIA's GPUs over stand-ins for its libraries: memory, copies, marks, products,
 * and each call failing once. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "compute/cpu/layers.h"
#include "compute/cuda/device.h"
#include "runs.h"

enum { GPU = 3, SEEDS = 5 };

static lks__device *device; /* open in each test */

/* The table's operations that this program has. */
static const lks__layers layers = {.clear = lks__cuda_clear, .accumulate = lks__cuda_accumulate};

static int open_one(void **state)
{
    assert_ok(lks__cuda_open(GPU, &layers, lks__fail, lks__device_wait, NULL, &device));
    return 0;
}

static int close_one(void **state)
{
    lks__device_close(device);
    device = NULL;
    return 0;
}

static float *on_device(size_t floats)
{
    void *p;
    assert_ok(device->ops->alloc(device, floats * sizeof(float), &p));
    return p;
}

static void give(float *p, size_t floats)
{
    device->ops->release(device, p, floats * sizeof(float));
}

static float *pinned(size_t floats)
{
    void *p;
    assert_ok(device->ops->alloc_staging(device, floats * sizeof(float), &p));
    return p;
}

static void send(lks__queue queue, void *dst, const void *src, size_t floats)
{
    device->ops->copy(device, queue, dst, src, floats * sizeof(float));
}

static float value(size_t i)
{
    return (float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f;
}

static float *values(size_t n)
{
    float *x = lks_test_malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = value(i);
    return x;
}

/* --- memory and copies ----------------------------------------------------------------------- */

TEST_WITH(test_new_memory_is_zeros, open_one, close_one)
{
    float *dev = on_device(1000), *host = pinned(1000);
    for (int i = 0; i < 1000; i++) {
        assert_true(host[i] == 0.0f);
        host[i] = 7;
    }
    send(LKS__QUEUE_COPY, host, dev, 1000);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COPY));
    for (int i = 0; i < 1000; i++)
        assert_true(host[i] == 0.0f);
    device->ops->release_staging(device, host, 1000 * sizeof(float));
    give(dev, 1000);
}

/* From memory of either kind and back, in pieces or at once. */
TEST_WITH(test_copies, open_one, close_one)
{
    enum { PIECE = LKS__CUDA_PIECE / sizeof(float) };
    static const size_t sizes[] = {1, 7, PIECE, 2 * PIECE + 5};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int is_pinned = 0; is_pinned < 2; is_pinned++) {
            const size_t n = sizes[k];
            float *dev = on_device(n), *x = values(n), *back = malloc(n * sizeof *back);
            float *pin = pinned(n);
            memcpy(pin, x, n * sizeof *x);
            send(LKS__QUEUE_COPY, dev, is_pinned ? pin : x, n);
            assert_ok(lks__device_finish(device, LKS__QUEUE_COPY));
            memset(pin, 0, n * sizeof *pin);
            send(LKS__QUEUE_COPY, is_pinned ? pin : back, dev, n);
            assert_ok(lks__device_finish(device, LKS__QUEUE_COPY));
            assert_memory_equal(is_pinned ? pin : back, x, n * sizeof *x);
            device->ops->release_staging(device, pin, n * sizeof *pin);
            give(dev, n);
            lks_test_free(x, back);
        }
}

/* The host's memory is read when the copy's turn comes, however many were queued before. */
TEST_WITH(test_many_copies, open_one, close_one)
{
    enum { N = 3 * LKS__CUDA_CALLS };
    float *dev = on_device(N), *x = values(N), back[N];
    for (size_t i = 0; i < N; i++)
        send(LKS__QUEUE_COPY, dev + i, x + i, 1);
    for (size_t i = 0; i < N; i++)
        send(LKS__QUEUE_COPY, back + i, dev + i, 1);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COPY));
    assert_memory_equal(back, x, sizeof back);
    give(dev, N);
    free(x);
}

/* --- queues ---------------------------------------------------------------------------------- */

/* Results go from queue to queue, far more often than there are events. */
TEST_WITH(test_queues_follow, open_one, close_one)
{
    enum { N = 100, ROUNDS = 3 * LKS__CUDA_EVENTS };
    float *sum = on_device(N), *add = on_device(N), *host = pinned(N), *results = pinned(ROUNDS);
    for (int i = 0; i < N; i++)
        host[i] = 1;
    send(LKS__QUEUE_COPY, add, host, N);
    for (int i = 0; i < ROUNDS; i++) {
        lks__device_order(device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
        device->layers->accumulate(device->ex, sum, add, N);
        lks__device_order(device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
        send(LKS__QUEUE_COPY, results + i, sum + i % N, 1);
    }
    const lks__mark last = device->ops->mark(device, LKS__QUEUE_COPY);
    assert_ok(lks__device_wait(device, last));
    assert_ok(lks__device_wait(device, (lks__mark){LKS__QUEUE_COPY, 1}));
    for (int i = 0; i < ROUNDS; i++)
        assert_true(results[i] == (float)(i + 1));
    device->ops->release_staging(device, host, N * sizeof *host);
    device->ops->release_staging(device, results, ROUNDS * sizeof *results);
    give(sum, N);
    give(add, N);
}

/* A mark is passed when the work before it is done, and not before. */
TEST_WITH(test_marks, open_one, close_one)
{
    float *dev = on_device(8), *host = pinned(8);
    bool passed = false;
    for (int round = 1; round <= 200; round++) {
        host[0] = (float)round;
        send(LKS__QUEUE_COMPUTE, dev, host, 8);
        lks__mark sent = device->ops->mark(device, LKS__QUEUE_COMPUTE);
        assert_int_equal(sent.queue, LKS__QUEUE_COMPUTE);
        assert_int_equal(sent.number, round * 2 - 1);
        assert_ok(lks__device_wait(device, sent));
        assert_ok(device->ops->passed(device, sent, &passed));
        assert_true(passed);
        host[0] = 0;
        send(LKS__QUEUE_COMPUTE, host, dev, 8);
        assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
        assert_true(host[0] == (float)round);
    }
    device->ops->release_staging(device, host, 8 * sizeof *host);
    give(dev, 8);
}

/* A mark that is passed says nothing of a later one. */
TEST_WITH(test_later_mark, open_one, close_one)
{
    float *dev = on_device(8), *first = pinned(8), *second = pinned(8);
    send(LKS__QUEUE_COPY, first, dev, 8);
    const lks__mark early = device->ops->mark(device, LKS__QUEUE_COPY);
    send(LKS__QUEUE_COPY, second, dev, 8);
    const lks__mark late = device->ops->mark(device, LKS__QUEUE_COPY);
    assert_ok(lks__device_wait(device, early));
    assert_true(first[7] == 0.0f);
    assert_ok(lks__device_wait(device, late));
    assert_true(second[7] == 0.0f);
    device->ops->release_staging(device, first, 8 * sizeof *first);
    device->ops->release_staging(device, second, 8 * sizeof *second);
    give(dev, 8);
}

/* Work space grows; what was queued before has its old one until it is done. */
TEST_WITH(test_work_grows, open_one, close_one)
{
    float back[4], *dev = on_device(4), *x = values(4);
    float *small = lks__cuda_work(device->ex, 1024);
    assert_int_equal((uintptr_t)small % 256, 0);
    device->layers->clear(device->ex, small, 4);
    send(LKS__QUEUE_COMPUTE, small, x, 4);
    device->layers->accumulate(device->ex, dev, small, 4);
    assert_ptr_equal(lks__cuda_work(device->ex, 512), small);
    float *large = lks__cuda_work(device->ex, 1 << 20);
    device->layers->clear(device->ex, large, 1 << 18);
    send(LKS__QUEUE_COMPUTE, back, dev, 4);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    assert_memory_equal(back, x, sizeof back);
    give(dev, 4);
    free(x);
}

TEST_WITH(test_too_little_memory, open_one, close_one)
{
    void *p;
    setenv("CUDA_STANDIN_MB", "64", 1);
    assert_fails(LKS_ERR_NOMEM, device->ops->alloc(device, 100 << 20, &p),
                 "no GPU memory for 104.9 MB: GPU 3 (Stand-in) has", "MB left",
                 "--recompute=block");
    unsetenv("CUDA_STANDIN_MB");
    float *dev = on_device(5); /* the device goes on */
    device->layers->clear(device->ex, dev, 5);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    give(dev, 5);
}

/* --- products -------------------------------------------------------------------------------- */

static bool bf16;

static void use_bf16(bool on)
{
    bf16 = on;
    assert_ok(device->ops->products(device, on));
}

static double rounded(float x)
{
    return (double)lks__bf16_to_float(lks__bf16_from_float(x));
}

/* What a product takes for x. */
static double operand(float x)
{
    return bf16 ? rounded(x) : (double)x;
}

/* n elements of that kind, which become x[n]. They are in use until the device has finished. */
static void *to_device(lks__cuda_kind kind, const float *x, size_t n)
{
    float *to = on_device(n);
    uint16_t *half = lks_test_malloc(n * sizeof *half);
    for (size_t i = 0; i < n; i++)
        half[i] = lks__bf16_from_float(x[i]);
    if (kind == LKS__CUDA_ACTS && bf16)
        device->ops->copy(device, LKS__QUEUE_COMPUTE, to, half, n * sizeof *half);
    else
        send(LKS__QUEUE_COMPUTE, to, x, n);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    free(half);
    return to;
}

static void from_device(lks__cuda_kind kind, float *x, const void *from, size_t n)
{
    const bool in_halves = kind == LKS__CUDA_ACTS && bf16;
    uint16_t *half = lks_test_malloc(n * sizeof *half);
    device->ops->copy(device, LKS__QUEUE_COMPUTE, in_halves ? (void *)half : x, from,
                      n * (in_halves ? sizeof *half : sizeof *x));
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    for (size_t i = 0; i < n && in_halves; i++)
        x[i] = lks__bf16_to_float(half[i]);
    free(half);
}

static void *element_of(lks__cuda_kind kind, void *x, size_t i)
{
    return (char *)x + i * (kind == LKS__CUDA_ACTS && bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* A sum in float32 of numbers up to 1; a matrix of that kind keeps it, rounded once. */
static bool is_kept(lks__cuda_kind kind, float got, double want)
{
    const double of_sum = 1e-5 * (1 + fabs(want));
    const double half_step = want == 0 ? 0 : ldexp(1, ilogb(want) - 8);
    return fabs((double)got - want) <= of_sum + (kind == LKS__CUDA_ACTS && bf16 ? half_step : 0.0);
}

struct shape {
    char ta, tb;
    size_t m, n, k, ldc, skip; /* elements before each matrix */
    float beta;
    lks__cuda_kind a, b, c;
};

static void product_is_right(const struct shape *s)
{
    const size_t lda = s->ta == 'T' ? s->m : s->k, ldb = s->tb == 'T' ? s->k : s->n;
    const size_t na = s->m * s->k + s->skip, nb = s->k * s->n + s->skip;
    const size_t nc = s->m * s->ldc + s->skip;
    float *a = values(na), *b = values(nb), *c = values(nc), *was = values(nc);
    if (s->beta == 0.0f) /* it isn't read */
        for (size_t i = 0; i < nc; i++)
            c[i] = NAN;
    float *da = to_device(s->a, a, na), *db = to_device(s->b, b, nb);
    for (int again = 0; again < 2; again++) {
        float *dc = to_device(s->c, c, nc), *got = values(nc);
        const lks__cuda_product p = {.ta = s->ta,
                                     .tb = s->tb,
                                     .m = s->m,
                                     .n = s->n,
                                     .k = s->k,
                                     .a = {element_of(s->a, da, s->skip), lda, s->a},
                                     .b = {element_of(s->b, db, s->skip), ldb, s->b},
                                     .beta = s->beta,
                                     .c = {element_of(s->c, dc, s->skip), s->ldc, s->c}};
        lks__cuda_gemm(device->ex, &p);
        from_device(s->c, got, dc, nc);
        for (size_t i = 0; i < s->m; i++)
            for (size_t j = 0; j < s->n; j++) {
                double sum = 0;
                for (size_t x = 0; x < s->k; x++)
                    sum += operand(a[s->skip + (s->ta == 'T' ? x * lda + i : i * lda + x)]) *
                           operand(b[s->skip + (s->tb == 'T' ? j * ldb + x : x * ldb + j)]);
                const size_t at = s->skip + i * s->ldc + j;
                if (s->beta != 0.0f)
                    sum += (double)s->beta *
                           (s->c == LKS__CUDA_ACTS && bf16 ? rounded(was[at]) : (double)was[at]);
                if (!is_kept(s->c, got[at], sum))
                    fail_msg("%c%c %zu %zu %zu: [%zu, %zu] is %g, not %g", s->ta, s->tb, s->m, s->n,
                             s->k, i, j, (double)got[at], sum);
            }
        give(dc, nc);
        free(got);
    }
    give(da, na);
    give(db, nb);
    lks_test_free(a, b, c, was);
}

/* Of floats; and as layers have them: activations by parameters, and by activations. */
TEST_WITH(test_products, open_one, close_one)
{
    static const lks__cuda_kind kinds[][3] = {
        {LKS__CUDA_FLOATS, LKS__CUDA_FLOATS, LKS__CUDA_FLOATS},
        {LKS__CUDA_ACTS, LKS__CUDA_PARAMS, LKS__CUDA_ACTS},
        {LKS__CUDA_ACTS, LKS__CUDA_ACTS, LKS__CUDA_FLOATS}};
    for (int t = 0; t < 24; t++)
        for (int k = 0; k < 6; k++) {
            const lks__cuda_kind *kind = kinds[t / 8];
            struct shape s = {.ta = t & 1 ? 'T' : 'N', .tb = t & 2 ? 'T' : 'N'};
            use_bf16(t % 8 >= 4);
            s.m = (size_t[]){1, 5, 16, 33, 8, 12}[k];
            s.n = (size_t[]){1, 3, 32, 17, 64, 20}[k];
            s.k = (size_t[]){1, 9, 64, 21, 4, 16}[k];
            s.ldc = s.n + (k == 3 ? 7 : k == 4 ? 8 : 0);
            s.skip = k == 5 ? 1 : 0; /* on no multiple of 16 bytes */
            s.beta = k % 2 != 0 ? 1 : 0;
            s.a = kind[0];
            s.b = kind[1];
            s.c = kind[2];
            product_is_right(&s);
        }
}

/* Products at once: d = alpha op(a) op(b) + beta c, and one has the same bits among any number. */
TEST_WITH(test_batches, open_one, close_one)
{
    enum { MOST = 5, M = 6, K = 8, N = 12, A = M * K + 4, C = M * N + 4 };
    for (int t = 0; t < 8; t++) {
        use_bf16(t >= 4);
        const size_t B = K * N + (t == 2); /* not on multiples of 16 bytes, but its rows are */
        float *a = values(MOST * A), *b = values(MOST * B), *c = values(MOST * C);
        float first[C], got[MOST * C];
        float *da = on_device(MOST * A), *db = on_device(MOST * B), *dc = on_device(MOST * C);
        float *dd = on_device(MOST * C);
        lks__cuda_batch s = {
            .ta = t & 1 ? 'T' : 'N', .tb = t & 2 ? 'T' : 'N', .m = M, .n = N, .k = K};
        s.alpha = 0.5f;
        s.beta = 2.0f;
        s.stride_a = A;
        s.stride_b = B;
        s.stride_d = C;
        send(LKS__QUEUE_COMPUTE, da, a, MOST * A);
        send(LKS__QUEUE_COMPUTE, db, b, MOST * B);
        send(LKS__QUEUE_COMPUTE, dc, c, MOST * C);
        for (size_t last = 0; last < MOST; last++)
            for (s.count = 1; s.count <= last + 1; s.count++) { /* product `last` in each place */
                const size_t from = last + 1 - s.count;
                s.a = da + from * A;
                s.b = db + from * B;
                s.c = dc + from * C;
                s.d = dd + from * C;
                lks__cuda_gemm_batch(device->ex, &s);
                send(LKS__QUEUE_COMPUTE, got, dd, MOST * C);
                assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
                if (s.count == 1)
                    memcpy(first, got + last * C, M * N * sizeof *got);
                assert_memory_equal(got + last * C, first, M * N * sizeof *got);
                for (size_t i = 0; i < M * N; i++) {
                    double sum = 0;
                    for (size_t k = 0; k < K; k++)
                        sum += operand(a[last * A + (t & 1 ? k * M + i / N : i / N * K + k)]) *
                               operand(b[last * B + (t & 2 ? i % N * K + k : k * N + i % N)]);
                    assert_true(fabs(0.5 * sum + 2 * (double)c[last * C + i] -
                                     (double)got[last * C + i]) < 1e-5);
                }
            }
        give(da, MOST * A);
        give(db, MOST * B);
        give(dc, MOST * C);
        give(dd, MOST * C);
        lks_test_free(a, b, c);
    }
}

/* The table's products are those of layers.h: forward, and both of backward. */
static void check_layers(void)
{
    enum { ROWS = 6, OUT = 5, IN = 4, LD = 7 };
    const lks__cuda_kind acts = LKS__CUDA_ACTS;
    float *x = values(ROWS * IN), *w = values(OUT * IN), *dy = values(ROWS * LD);
    float *zeros = calloc(ROWS * LD, sizeof *zeros);
    float y[ROWS * LD], dx[ROWS * IN], dw[OUT * IN], db[OUT];
    lks__act *gx = to_device(acts, x, ROWS * IN), *gdy = to_device(acts, dy, ROWS * LD);
    lks__act *gy = to_device(acts, zeros, ROWS * LD), *gdx = to_device(acts, zeros, ROWS * IN);
    float *gw = to_device(LKS__CUDA_PARAMS, w, OUT * IN);
    float *gdw = on_device(OUT * IN), *gdb = on_device(OUT);
    lks__cuda_linear_fwd(device->ex, gy, LD, gx, gw, ROWS, OUT, IN, NULL);
    lks__cuda_linear_bwd_x(device->ex, gdx, gdy, LD, gw, ROWS, OUT, IN, NULL);
    from_device(acts, dx, gdx, ROWS * IN);
    float first[ROWS * IN];
    memcpy(first, dx, sizeof first);
    lks__cuda_linear_bwd_x_add(device->ex, gdx, gdy, LD, gw, ROWS, OUT, IN);
    for (int i = 0; i < 3; i++)
        lks__cuda_linear_bwd_w(device->ex, gdw, gdb, gdy, LD, gx, ROWS, OUT, IN, false);
    from_device(acts, y, gy, ROWS * LD);
    from_device(acts, dx, gdx, ROWS * IN);
    from_device(LKS__CUDA_FLOATS, dw, gdw, OUT * IN);
    from_device(LKS__CUDA_FLOATS, db, gdb, OUT);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double sum = 0;
            for (int i = 0; i < IN; i++)
                sum += operand(x[r * IN + i]) * operand(w[o * IN + i]);
            assert_true(is_kept(acts, y[r * LD + o], sum));
        }
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < IN; i++) {
            double sum = 0;
            for (int o = 0; o < OUT; o++)
                sum += operand(dy[r * LD + o]) * operand(w[o * IN + i]);
            assert_true(is_kept(acts, first[r * IN + i], sum));
            assert_true(is_kept(acts, dx[r * IN + i], (double)first[r * IN + i] + sum));
        }
    for (int o = 0; o < OUT; o++) {
        double of_column = 0;
        for (int r = 0; r < ROWS; r++)
            of_column += bf16 ? rounded(dy[r * LD + o]) : (double)dy[r * LD + o];
        assert_true(fabs(3 * of_column - (double)db[o]) < 1e-5);
        for (int i = 0; i < IN; i++) {
            double sum = 0;
            for (int r = 0; r < ROWS; r++)
                sum += operand(dy[r * LD + o]) * operand(x[r * IN + i]);
            assert_true(fabs(3 * sum - (double)dw[o * IN + i]) < 1e-5);
        }
    }
    void *const all[] = {gx, gdy, gy, gdx, gw, gdw, gdb};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        give(all[i], 1);
    lks_test_free(x, w, dy, zeros);
}

TEST_WITH(test_layers, open_one, close_one)
{
    use_bf16(false);
    check_layers();
    use_bf16(true);
    check_layers();
}

/* x w^T is that of the weights `value` on the device. */
static void weights_count_as(float *gy, const float *gx, const float *gw, float value)
{
    enum { N = 8 };
    float y[N * N];
    lks__cuda_linear_fwd(device->ex, lks__acts(gy), N, lks__acts(gx), gw, N, N, N, NULL);
    from_device(LKS__CUDA_ACTS, y, gy, N * N);
    for (int i = 0; i < N * N; i++)
        assert_true(y[i] == (float)N * value);
}

/* Parameters are rounded once, and again when anything that may write them has been queued. */
TEST_WITH(test_rounded_parameters, open_one, close_one)
{
    enum { N = 8, AT = 32, ALL = AT + N * N };
    float ones[ALL];
    float *params = on_device(ALL), *gy = on_device(N * N);
    float *gw = params + AT, *add = on_device(N * N);
    for (int i = 0; i < ALL; i++)
        ones[i] = 1;
    use_bf16(true);
    float *gx = to_device(LKS__CUDA_ACTS, ones, N * N);
    send(LKS__QUEUE_COMPUTE, add, ones, N * N);
    weights_count_as(gy, gx, gw, 0);
    send(LKS__QUEUE_COPY, params, ones, ALL);
    lks__device_order(device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    weights_count_as(gy, gx, gw, 1);
    lks__cuda_accumulate(device->ex, gw, add, N * N);
    weights_count_as(gy, gx, gw, 2);
    lks__cuda_copy(device->ex, gw, add, N * N);
    weights_count_as(gy, gx, gw, 1);
    lks__blend blend = {.a = 2, .b = 1, .n_pieces = 1, .piece = {{gw, add, N * N}}};
    lks__cuda_update_blend(device->ex, &blend);
    weights_count_as(gy, gx, gw, 3);

    float *first = on_device(N * N), *second = on_device(N * N);
    lks__adamw_list adamw = {.lr = 1, .beta1 = 0.5, .beta2 = 0.5, .t = 1, .clip = 1, .n_pieces = 1};
    adamw.piece[0].params = gw;
    adamw.piece[0].exp_avg = first;
    adamw.piece[0].exp_avg_sq = second;
    adamw.piece[0].grads = add;
    adamw.piece[0].n = N * N;
    lks__cuda_update_adamw(device->ex, &adamw);
    weights_count_as(gy, gx, gw, 2);

    const size_t bytes = lks__cuda_update_muon_bytes(device->ex, N, N);
    void *work = on_device(bytes / sizeof(float));
    lks__muon_list muon = {
        .lr = 0.125, .clip = 1, .work = work, .work_bytes = bytes, .n_pieces = 1};
    muon.piece[0].rows = muon.piece[0].cols = N;
    muon.piece[0].params = gw;
    muon.piece[0].momentum = second;
    muon.piece[0].grads = add; /* whose norm is N */
    lks__cuda_update_muon(device->ex, &muon);
    weights_count_as(gy, gx, gw, 2 - 0.125f / N);

    /* Behind the device's back: what is kept stays. */
    lks__cuda *c = (lks__cuda *)device;
    assert_int_equal(
        cudaMemsetAsync(gw, 0, N * N * sizeof *gw, c->queues[LKS__QUEUE_COMPUTE].stream),
        cudaSuccess);
    weights_count_as(gy, gx, gw, 2 - 0.125f / N);
    lks__cuda_clear(device->ex, params, 1);
    weights_count_as(gy, gx, gw, 0);
    give(params, ALL);
    give(gx, N * N);
    give(gy, N * N);
    give(add, N * N);
    give(first, N * N);
    give(second, N * N);
    give(work, bytes / sizeof(float));
}

/* Each product counts its matrices, one that is added to twice, and a multiplication and an
 * addition for each of its terms. */
TEST_WITH(test_counts, open_one, close_one)
{
    float *x = on_device(200);
    const lks__device_counts first = device->ops->counts(device);
    const lks__cuda_product p = {.ta = 'N',
                                 .tb = 'T',
                                 .m = 2,
                                 .n = 3,
                                 .k = 5,
                                 .a = {x, 5, LKS__CUDA_FLOATS},
                                 .b = {x + 32, 5, LKS__CUDA_FLOATS},
                                 .c = {x + 64, 3, LKS__CUDA_FLOATS}};
    lks__cuda_gemm(device->ex, &p);
    lks__device_counts now = device->ops->counts(device);
    assert_true(now.bytes - first.bytes == 4 * (2 * 5 + 3 * 5 + 2 * 3));
    assert_true(now.flops - first.flops == 2 * 2 * 3 * 5);
    lks__cuda_gemm_batch(device->ex, &(lks__cuda_batch){'N', 'T', 2, 2, 3, 5, 1, 1, x, x + 32,
                                                        x + 64, x + 96, 10, 15, 6});
    const lks__device_counts after = device->ops->counts(device);
    assert_true(after.bytes - now.bytes == 2 * 4 * (2 * 5 + 3 * 5 + 2 * 2 * 3));
    assert_true(after.flops - now.flops == 2 * 2 * 2 * 3 * 5);

    /* Activations in bfloat16 are taken and stored as they are, whatever their rows begin at, and
     * parameters' rounded copy stays. */
    use_bf16(true);
    lks__cuda_linear_fwd(device->ex, lks__acts(x + 64), 3, lks__acts(x), x + 32, 2, 3, 5, NULL);
    now = device->ops->counts(device);
    lks__cuda_linear_fwd(device->ex, lks__acts(x + 64), 3, lks__acts(x), x + 32, 2, 3, 5, NULL);
    lks__device_counts last = device->ops->counts(device);
    assert_true(last.bytes - now.bytes == 2 * (2 * 5 + 3 * 5 + 2 * 3));
    lks__cuda_linear_bwd_x_add(device->ex, lks__acts(x + 64), lks__acts(x), 3, x + 32, 2, 3, 5);
    now = device->ops->counts(device);
    assert_true(now.bytes - last.bytes == 2 * (2 * 3 + 3 * 5 + 2 * 2 * 5));
    for (int fresh = 0; fresh < 2; fresh++) {
        now = device->ops->counts(device);
        lks__cuda_linear_bwd_w(device->ex, x + 128, NULL, lks__acts(x), 3, lks__acts(x + 64), 2, 3,
                               5, fresh);
        last = device->ops->counts(device);
        assert_true(last.bytes - now.bytes == 2 * (2 * 3 + 2 * 5) + (2 - fresh) * 4 * 3 * 5);
    }
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    give(x, 200);
}

/* --- rehearsals ------------------------------------------------------------------------------ */

enum { SIDE = 24, SQUARE = SIDE * SIDE };

/* The products of a small run, forward and backward. */
static void step_of(float *x, float *y, float *dw)
{
    lks__cuda_linear_fwd(device->ex, lks__acts(y), SIDE, lks__acts(x), x, SIDE, SIDE, SIDE, NULL);
    lks__cuda_linear_bwd_w(device->ex, dw, NULL, lks__acts(y), SIDE, lks__acts(x), SIDE, SIDE, SIDE,
                           false);
    for (size_t count = 1; count <= 2; count++)
        lks__cuda_gemm_batch(
            device->ex, &(lks__cuda_batch){'N', 'N', count, 8, 8, 8, 1, 0, x, x, y, y, 64, 64, 64});
}

static lks_status rehearse(float *x, float *y, const char *table, bool complete)
{
    device->ops->rehearse(device, table, complete);
    step_of(x, y, y);
    return device->ops->perform(device);
}

/* The bits of such a step. */
static void results_of(float *x, float *y, float *dw, float got[SQUARE])
{
    float *some = values(SQUARE);
    send(LKS__QUEUE_COMPUTE, x, some, SQUARE);
    lks__cuda_clear(device->ex, dw, SQUARE);
    step_of(x, y, dw);
    send(LKS__QUEUE_COMPUTE, got, dw, SQUARE);
    assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    free(some);
}

/* A device whose heuristic chooses by that number takes another one's table, with the same bits and
 * fingerprint. A rehearsal itself queues nothing and takes no memory. */
TEST(test_rehearsals)
{
    static const char *const choices[] = {"0", "5", "5"};
    float got[3][SQUARE];
    uint64_t print[3];
    char *table = NULL;
    for (int i = 0; i < 3; i++) {
        setenv("CUDA_STANDIN_ALGORITHMS", choices[i], 1);
        open_one(NULL);
        float *x = on_device(SQUARE), *y = on_device(SQUARE), *dw = on_device(SQUARE);
        size_t left[2], all;
        const uint64_t before = device->fingerprint;
        const lks__device_counts counts = device->ops->counts(device);
        assert_null(device->ops->algorithms(device));
        assert_ok(device->ops->memory(device, &left[0], &all));
        assert_ok(rehearse(x, y, i == 2 ? table : NULL, i == 2));
        assert_ok(device->ops->memory(device, &left[1], &all));
        assert_int_equal(left[0], left[1]);
        assert_true(device->ops->counts(device).flops == counts.flops);
        print[i] = device->fingerprint;
        assert_true(print[i] != before);
        results_of(x, y, dw, got[i]);
        if (i == 0)
            table = strdup(device->ops->algorithms(device));
        else
            assert_int_equal(strcmp(device->ops->algorithms(device), table) == 0, i == 2);
        give(x, SQUARE);
        give(y, SQUARE);
        give(dw, SQUARE);
        close_one(NULL);
    }
    unsetenv("CUDA_STANDIN_ALGORITHMS");
    assert_contains(table, "Stand-in capability=9.0 multiprocessors=132 cublaslt=130100\n"
                           "NT m=24 n=24 k=24 ld=24,24,24 float32 aligned=16: id=");
    assert_true(memcmp(got[0], got[1], sizeof *got) != 0);
    assert_memory_equal(got[0], got[2], sizeof *got);
    assert_true(print[0] != print[1] && print[0] == print[2]);
    free(table);
}

/* A table that can't be used is refused with the reason, and leaves the device as it was. */
TEST_WITH(test_tables, open_one, close_one)
{
    float *x = on_device(SQUARE), *y = on_device(SQUARE);
    assert_ok(rehearse(x, y, NULL, false));
    char *table = strdup(device->ops->algorithms(device)), *other = malloc(strlen(table) + 1);
    char *line = strchr(table, '\n') + 1;
    assert_ok(rehearse(x, y, table, true));
    assert_string_equal(device->ops->algorithms(device), table);

    assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, "", true), "it is of , and GPU 3 is Stand-in");
    assert_null(device->ops->algorithms(device));
    sprintf(other, "A%s", table + 1);
    assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, other, false), "it is of Atand-in capability=9.0");
    for (size_t n = strlen(table) - 2; n > (size_t)(line - table); n -= n % 23 + 1) {
        sprintf(other, "%.*s", (int)n, table);
        assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, other, true),
                     "GPU 3 (Stand-in) can't use its algorithm for the matrix product ", "table");
    }
    sprintf(other, "%.*s", (int)(line - table), table);
    assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, other, true), "the table has no line for it");
    assert_ok(rehearse(x, y, other, false)); /* what it lacks is chosen */
    assert_string_equal(device->ops->algorithms(device), table);

    strcpy(other, table);
    strstr(other, "custom=0")[7] = '1'; /* another algorithm */
    assert_ok(rehearse(x, y, other, false));
    assert_string_equal(device->ops->algorithms(device), other);
    strstr(other, "custom=1")[3] = 'x';
    assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, other, false), "its line in the table is damaged");
    strcpy(other, table);
    strchr(other, '\n')[strcspn(line, "\n")] = 'x'; /* its last digit */
    assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, other, false), "its line in the table is damaged");
    setenv("CUDA_STANDIN_REFUSED", "0", 1);
    assert_fails(LKS_ERR_SUPPORT, rehearse(x, y, table, true),
                 "the matrix product NT m=24 n=24 k=24", "the functionality is not supported");
    unsetenv("CUDA_STANDIN_REFUSED");
    assert_ok(rehearse(x, y, table, true));

    for (int freely = 1; freely >= 0; freely--) {
        device->ops->choose_freely(device, freely == 1);
        if (freely == 0)
            assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
        lks__cuda_linear_fwd(device->ex, lks__acts(y), SIDE, lks__acts(x), x, 3, SIDE, SIDE, NULL);
    }
    assert_fails(LKS_ERR_DEVICE, lks__device_finish(device, LKS__QUEUE_COMPUTE),
                 "matrix product NT m=3 n=24 k=24", "the table has no line for it");
    give(x, SQUARE);
    give(y, SQUARE);
    lks_test_free(table, other);
}

static uint64_t fingerprint(const char *name, const char *text)
{
    if (name != NULL)
        setenv(name, text, 1);
    open_one(NULL);
    const uint64_t print = device->fingerprint;
    close_one(NULL);
    if (name != NULL)
        unsetenv(name);
    return print;
}

TEST(test_fingerprint)
{
    const uint64_t mine = fingerprint(NULL, NULL);
    assert_true(mine != 0);
    assert_true(fingerprint(NULL, NULL) == mine);
    assert_true(fingerprint("CUDA_STANDIN_PROCESSORS", "108") != mine);
    assert_true(fingerprint("CUDA_STANDIN_MAJOR", "8") != mine);
}

/* --- failures -------------------------------------------------------------------------------- */

/* All that a run does with the device; returns the first failure. */
static lks_status use_everything(void)
{
    enum { N = 64 };
    void *p = NULL, *q = NULL, *s = NULL;
    float pageable[N] = {1};
    LKS__TRY(lks__cuda_open(GPU, &layers, lks__fail, lks__device_wait, NULL, &device));
    lks_status st = device->ops->alloc(device, N * sizeof(float), &p);
    if (st == LKS_OK)
        st = device->ops->alloc(device, N * sizeof(float), &q);
    if (st == LKS_OK)
        st = device->ops->alloc_staging(device, N * sizeof(float), &s);
    if (st == LKS_OK) {
        send(LKS__QUEUE_COPY, p, s, N);
        send(LKS__QUEUE_COPY, p, pageable, N);
        lks__device_order(device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
        device->layers->accumulate(device->ex, q, p, N);
        lks__cuda_work(device->ex, 256);
        lks__cuda_work(device->ex, 512);
        lks__cuda_linear_fwd(device->ex, q, 8, p, p, 8, 8, 8, NULL);
        lks__cuda_gemm_batch(
            device->ex, &(lks__cuda_batch){'N', 'T', 2, 4, 4, 4, 1, 0, p, p, q, q, 16, 16, 16});
        st = device->ops->products(device, true);
        for (int i = 0; i < 2 && st == LKS_OK; i++) { /* its own choices, then from its table */
            char *table = i == 0 ? NULL : strdup(device->ops->algorithms(device));
            device->ops->rehearse(device, table, true);
            lks__cuda_linear_fwd(device->ex, q, 8, p, p, 4, 8, 8, NULL);
            st = device->ops->perform(device);
            free(table);
        }
        lks__cuda_linear_fwd(device->ex, q, 8, p, p, 4, 8, 8, NULL);
        send(LKS__QUEUE_COMPUTE, s, q, N);
        for (int i = 0; i < 2 * LKS__CUDA_CALLS; i++)
            send(LKS__QUEUE_COMPUTE, pageable, q, N);
        for (int i = 0; i < LKS__QUEUES && st == LKS_OK; i++)
            st = lks__device_finish(device, (lks__queue)i);
    }
    lks__device_drain(device);
    if (s != NULL)
        device->ops->release_staging(device, s, N * sizeof(float));
    if (q != NULL)
        device->ops->release(device, q, N * sizeof(float));
    if (p != NULL)
        device->ops->release(device, p, N * sizeof(float));
    if (st == LKS_OK) /* did the releases fail? */
        st = lks__device_finish(device, LKS__QUEUE_COMPUTE);
    lks__device_close(device);
    return st;
}

/* Calls that can't fail, or whose failure changes nothing: they describe, or only close. */
static bool is_harmless(const char *call)
{
    static const char *const names[] = {"cudaGetLastError",
                                        "cudaGetErrorString",
                                        "cublasLtGetVersion",
                                        "cublasLtGetStatusString",
                                        "cudaEventDestroy",
                                        "cudaStreamDestroy",
                                        "cublasLtDestroy",
                                        "cublasLtMatmulDescDestroy",
                                        "cublasLtMatrixLayoutDestroy",
                                        "cublasLtMatmulPreferenceDestroy"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(call, names[i]) == 0)
            return true;
    return false;
}

/* Each call, its first and its second time: an error that names call and GPU, and no crash. */
TEST(test_each_call_fails)
{
    char says[RUNS_SAYS], line[200], last[200] = "";
    const char *path = lks_test_text("%s/calls", lks_test_folder());
    assert_int_equal(runs_use(lks_test_text("CUDA_STANDIN_CALLS=%s", path), says), LKS_OK);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int n = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        char name[200];
        sscanf(line, "%199s", name);
        if (strcmp(name, last) == 0 || is_harmless(name))
            continue;
        strcpy(last, name);
        n++;
        for (int k = 1; k <= 2; k++) {
            const char *fails = lks_test_text("CUDA_STANDIN_FAIL=%s:%d", name, k);
            const lks_status st = runs_use(fails, says);
            if (k == 2 && st == LKS_OK) /* it is called once only, or by the close */
                continue;
            const char *named = strcmp(name, "kernel") == 0 ? "the kernel r" : name;
            /* of the table's algorithm */
            const bool refused =
                strcmp(name, "cublasLtMatmulAlgoCheck") == 0 && st == LKS_ERR_SUPPORT;
            if ((st != LKS_ERR_DEVICE && !refused) || strstr(says, named) == NULL ||
                strstr(says, "GPU 3") == NULL)
                fail_msg("%s: status %d, \"%s\"", fails, (int)st, says);
        }
    }
    fclose(f);
    assert_true(n > 20);
}

/* A failed device does nothing more, and each wait reports the first failure. */
TEST_WITH(test_first_failure_stays, open_one, close_one)
{
    bool passed;
    float *dev = on_device(4), x[4] = {1, 2, 3, 4};
    const lks__mark before = device->ops->mark(device, LKS__QUEUE_COPY);
    assert_ok(lks__device_wait(device, before));
    assert_false(lks__cuda_check((lks__cuda *)device, cudaErrorLaunchFailure, "cudaFirst"));
    assert_false(lks__cuda_check((lks__cuda *)device, cudaErrorMemoryAllocation, "cudaSecond"));
    assert_null(lks__cuda_work(device->ex, 16));
    send(LKS__QUEUE_COPY, dev, x, 4);
    lks__device_order(device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    lks__cuda_linear_fwd(device->ex, lks__acts(dev), 2, lks__acts(dev), dev, 2, 2, 2, NULL);
    assert_fails(
        LKS_ERR_DEVICE, lks__device_finish(device, LKS__QUEUE_COPY),
        "cudaFirst failed on GPU 3 (Stand-in): unspecified launch failure (CUDA error 719)");
    assert_fails(LKS_ERR_DEVICE, device->ops->passed(device, before, &passed), "cudaFirst");
    lks__device_drain(device);
    give(dev, 4);
}

/* All tests, for each order of the stand-ins. */
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "use") == 0) {
        runs_print(use_everything());
        return 0;
    }
    if (argc == 1)
        return runs_of_seeds(argv[0], SEEDS);
    return lks_test_run_all(NULL, NULL);
}
