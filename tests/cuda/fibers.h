/* fibers.h - what launch.h includes for a host compiler: each CUDA thread is a fiber.
 *
 * A fiber runs until it waits at a barrier or a shuffle; which one runs next depends on the seed
 * (harness.h). Each block's shared memory is allocated anew and full of NaNs, so that
 * AddressSanitizer knows its bounds. To ThreadSanitizer each fiber is a thread, and only barriers
 * order two of one block: a shuffle doesn't, as on the GPU. A program ends with a message if
 *
 *   - some threads of a block, or lanes of a warp, don't reach a barrier or shuffle that others
 * wait at, or reach another one;
 *   - a thread ends with copies to shared memory that it hasn't waited for;
 *   - a launch is one that CUDA refuses: an empty grid, a block of more than 1,024 threads, more
 * than 48 KiB of shared memory, more than 4 KiB of arguments. A block of which the last warp isn't
 *     full is refused, too.
 *
 * What it doesn't show: blocks of one launch never run at the same time, lanes of a warp don't run
 * in step, and math functions are the host's. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>

#include "base/number/bf16.h"
#include "harness.h"

/* --- CUDA's words ---------------------------------------------------------------------------- */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz)
    {
    }
};

#define LKS_FIBERS_VECTORS(T, name)                                                                \
    struct alignas(2 * sizeof(T)) name##2                                                          \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    struct alignas(16) name##4                                                                     \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name##2 make_##name##2(T x, T y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                       \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
LKS_FIBERS_VECTORS(float, float)
LKS_FIBERS_VECTORS(int, int)
LKS_FIBERS_VECTORS(unsigned, uint)

#define __global__ __attribute__((unused))
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (lks_fibers::at.thread)
#define blockIdx  (lks_fibers::at.block)
#define blockDim  (lks_fibers::at.block_dim)
#define gridDim   (lks_fibers::at.grid_dim)

#define LKS_FIBERS_TEXT_OF(x) #x
#define LKS_FIBERS_TEXT(x)    LKS_FIBERS_TEXT_OF(x)
#define LKS_FIBERS_HERE       __FILE__ ":" LKS_FIBERS_TEXT(__LINE__)

#define __syncthreads()                lks_fibers::block_barrier(LKS_FIBERS_HERE)
#define __syncwarp()                   lks_fibers::warp_barrier(LKS_FIBERS_HERE)
#define __shfl_xor_sync(mask, v, lane) lks_fibers::shuffle_xor(mask, v, lane, LKS_FIBERS_HERE)

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

/* The least of *p and x becomes *p; returns what *p was. */
static inline unsigned long long atomicMin(unsigned long long *p, unsigned long long x)
{
    unsigned long long was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (x < was &&
           !__atomic_compare_exchange_n(p, &was, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return was;
}

/* --- launch.h's macros ----------------------------------------------------------------------- */

#define LKS_SHARED(T, name, n)                                                                     \
    static const char name##_site = 0;                                                             \
    T *const name = (T *)lks_fibers::shared(&name##_site, sizeof(T) * (n))

#define LKS_LAUNCH(kernel, grid, block, stream, ...)                                               \
    LKS_LAUNCH_NAMED(#kernel, (kernel), grid, block, stream, __VA_ARGS__)
#define LKS_LAUNCH_NAMED(name, kernel, grid, block, stream, ...)                                   \
    (lks__cuda_launches() ? lks_fibers::launch(name, kernel, grid, block, stream, __VA_ARGS__)     \
                          : (void)0)

/* --- behind them ----------------------------------------------------------------------------- */

struct lks_fibers_launch {
    const char *name;
    dim3 grid, block;
    virtual void run_thread() const = 0; /* the kernel, in one CUDA thread */
    virtual ~lks_fibers_launch()
    {
    }
};

namespace lks_fibers
{
struct position {
    dim3 thread, block, block_dim, grid_dim;
};
extern position at; /* of the CUDA thread that runs */

void block_barrier(const char *where);
void warp_barrier(const char *where);
void *shared(const void *site, size_t bytes);
uint64_t exchange(uint64_t word, unsigned mask, int lane_mask, const char *where);

template <class T> T shuffle_xor(unsigned mask, T v, int lane_mask, const char *where)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "one or two registers");
    uint64_t word = 0;
    memcpy(&word, &v, sizeof v);
    word = exchange(word, mask, lane_mask, where);
    memcpy(&v, &word, sizeof v);
    return v;
}

/* cvt.rn.bf16x2.f32, which knows one NaN. */
static inline uint16_t bf16(float x)
{
    return x != x ? 0x7fff : lks__bf16_from_float(x);
}

static inline uint32_t bf16_pair(float low, float high)
{
    return (uint32_t)bf16(high) << 16 | bf16(low);
}

/* What a lane shows to its warp. */
struct shown {
    const uint16_t *row;    /* of ldmatrix */
    float a[4][2], b[2][2]; /* operands of mma */
};
/* All of a warp's, which stay until the second time after this. */
const shown *show(const shown &mine, const char *where);
[[noreturn]] void die_of(const char *what);

/* ldmatrix.sync.aligned.m8n8.x4.shared.b16, with .trans: reads 16-byte rows as this lane does it.
 */
static inline void load_matrices(uint32_t to[4], const void *row, bool transposed)
{
    if ((uintptr_t)row % 16 != 0)
        die_of("ldmatrix of a row that isn't aligned");
    const unsigned lane = at.thread.x % 32;
    shown mine;
    mine.row = (const uint16_t *)row;
    const shown *rows = show(mine, transposed ? "ldmatrix.trans" : "ldmatrix");
    for (unsigned m = 0; m < 4; m++) {
        uint32_t half[2];
        for (unsigned k = 0; k < 2; k++) {
            const unsigned r = transposed ? lane % 4 * 2 + k : lane / 4;
            const unsigned c = transposed ? lane / 4 : lane % 4 * 2 + k;
            half[k] = rows[m * 8 + r].row[c];
        }
        to[m] = half[1] << 16 | half[0];
    }
}

static inline void numbers_of(float to[2], uint32_t pair)
{
    to[0] = lks__bf16_to_float((uint16_t)pair);
    to[1] = lks__bf16_to_float((uint16_t)(pair >> 16));
}

/* Add this lane's part of mma's products to c. It reads what all lanes of the warp show, so no
 * sanitizer watches it: that would take long. */
void add_products(float c[4], const shown &mine);

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32. */
static inline void multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    shown mine;
    float sums[4];
    mine.row = NULL;
    for (unsigned m = 0; m < 4; m++)
        numbers_of(mine.a[m], a[m]);
    for (unsigned m = 0; m < 2; m++)
        numbers_of(mine.b[m], b[m]);
    memcpy(sums, c, sizeof sums);
    add_products(sums, mine);
    memcpy(c, sums, sizeof sums);
}

/* wgmma.mma_async.sync.aligned of one warp's 16 rows, done at once: y's rows of 64 numbers are
 * swizzled by 128 bytes. */
static inline void group_step(float c[][4], unsigned n_columns, const uint32_t a[4], const void *y,
                              unsigned step, bool rows, bool add)
{
    if ((uintptr_t)y % 1024 != 0)
        die_of("wgmma of rows that don't begin at a multiple of 1,024 bytes");
    const uint16_t *numbers = (const uint16_t *)y;
    const unsigned lane = at.thread.x % 32;
    for (unsigned n = 0; n < n_columns; n++) {
        uint16_t of[4];
        for (unsigned i = 0; i < 4; i++) { /* pairs of the instruction's b */
            const unsigned summed = step * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2;
            const unsigned column = n * 8 + lane / 4;
            const unsigned r = rows ? summed : column, k = rows ? column : summed;
            of[i] = numbers[(r * 8 + (k / 8 ^ r % 8)) * 8 + k % 8];
        }
        const uint32_t b[2] = {(uint32_t)of[1] << 16 | of[0], (uint32_t)of[3] << 16 | of[2]};
        for (unsigned i = 0; i < 4 && !add; i++)
            c[n][i] = 0.0f;
        multiply_add(c[n], a, b);
    }
}

/* cp.async of 16 bytes; from NULL: zeros. They are copied at once or, as late as may be, when this
 * thread waits for them: the seed decides. */
struct copy {
    void *to;
    const void *from;
};
bool keep_copy(const copy &c); /* for take_copy(); false: it is to be done now */
bool take_copy(copy *c);       /* the oldest of this thread's; false: there is none */

static inline void do_copy(const copy &c)
{
    if (c.from != NULL)
        memcpy(c.to, c.from, 16);
    else
        memset(c.to, 0, 16);
}

static inline void begin_copy(void *to, const void *from)
{
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        die_of("cp.async of 16 bytes that aren't aligned");
    if (!keep_copy({to, from}))
        do_copy({to, from});
}

static inline void wait_copies()
{
    for (copy c; take_copy(&c);)
        do_copy(c);
}

void put(const void *stream, lks_fibers_launch *launch);

template <class... P> struct launch_of final : lks_fibers_launch {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    template <class... A>
    explicit launch_of(void (*k)(P...), A &&...a) : kernel(k), arguments(static_cast<P>(a)...)
    {
    }
    void run_thread() const override
    {
        std::apply(kernel, arguments);
    }
};

template <class... P, class... A>
void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, const void *stream,
            A... arguments)
{
    static_assert((sizeof(P) + ... + 0) <= 4096, "a kernel's arguments have 4 KiB at most");
    auto *l = new launch_of<P...>(kernel, arguments...);
    l->name = name;
    l->grid = grid;
    l->block = block;
    put(stream, l);
}
} // namespace lks_fibers
