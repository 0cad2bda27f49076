/* fibers.cc - fibers for fibers.h.
 *
 * This file is compiled without sanitizers, which must not see its switches and slots, and tells
 * them what they must know: LKS_FIBERS_ADDRESS, LKS_FIBERS_THREAD. */
#include "fibers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#define LKS_FIBERS_UCONTEXT
#include <ucontext.h>
#endif

#include <mutex>
#include <vector>

#ifdef LKS_FIBERS_ADDRESS
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef LKS_FIBERS_THREAD
#include <sanitizer/tsan_interface.h>
#endif

namespace
{

enum {
    WARP = 32,
    MAX_THREADS = 1024, /* of a block */
    MAX_SHARED = 48 << 10,
    MAX_GRID_YZ = 65535,
    MAX_COPIES = 64, /* that a thread begins before it waits */
    STACK_BYTES = 256 << 10,
    PAGE = 4096,
    LINE = 64, /* of the cache */
    NONE = MAX_THREADS,
};

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

/* --- one fiber ------------------------------------------------------------------------------- */

struct fiber {
#ifdef LKS_FIBERS_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    const void *bottom; /* of its stack */
    size_t bytes;
    void *asan, *tsan; /* what the sanitizers keep for it */
    unsigned thread;   /* the CUDA thread that it runs */
};

fiber home; /* the host's thread, while a launch runs */
fiber *self = &home;
unsigned long long n_switches;

#ifndef LKS_FIBERS_UCONTEXT
/* Keep what a call keeps, and go on with the other stack. swapcontext() makes a system call for the
 * mask of signals, which takes a hundred times as long. */
asm(R"(
    .text
    .p2align 4
    .type lks_fibers_jump, @function
lks_fibers_jump:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size lks_fibers_jump, . - lks_fibers_jump
)");
extern "C" void lks_fibers_jump(void **from, void *to);
#endif

/* The first code after a switch, in the fiber that goes on; `from` was left. */
void arrive(const fiber *from)
{
#ifdef LKS_FIBERS_ADDRESS
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(self->asan, &bottom, &bytes);
    if (from == &home) {
        home.bottom = bottom;
        home.bytes = bytes;
    }
#endif
    (void)from;
}

fiber *left; /* by the last switch */

void switch_to(fiber *to)
{
    fiber *me = self;
    n_switches++;
    left = me;
    self = to;
#ifdef LKS_FIBERS_ADDRESS
    __sanitizer_start_switch_fiber(&me->asan, to->bottom, to->bytes);
#endif
#ifdef LKS_FIBERS_THREAD
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef LKS_FIBERS_UCONTEXT
    swapcontext(&me->context, &to->context);
#else
    lks_fibers_jump(&me->stack_pointer, to->stack_pointer);
#endif
    arrive(left);
}

void worker();

fiber *fiber_new()
{
    fiber *f = new fiber();
    /* Memory that is never touched costs nothing. A page at the end catches a stack that is full.
     */
    char *p = (char *)mmap(NULL, PAGE + STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE) != 0)
        die("fibers: there is no memory for a stack");
    /* Stacks begin at different places of their pages, or all would need the same few lines of the
     * cache. */
    static unsigned n_fibers;
    f->bottom = p + PAGE;
    f->bytes = STACK_BYTES - n_fibers++ % (PAGE / LINE) * LINE * 5 % PAGE;
#ifdef LKS_FIBERS_THREAD
    f->tsan = __tsan_create_fiber(0);
#endif
#ifdef LKS_FIBERS_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = p + PAGE;
    f->context.uc_stack.ss_size = f->bytes;
    makecontext(&f->context, worker, 0);
#else
    /* lks_fibers_jump() takes six registers and worker()'s address from it; there is no caller. */
    void **top = (void **)(p + PAGE + f->bytes) - 2;
    top[1] = NULL;
    top[0] = (void *)worker;
    f->stack_pointer = top - 6;
#endif
    return f;
}

/* --- one block ------------------------------------------------------------------------------- */

/* A thread, or all of a warp or block, at a barrier. */
struct cuda_thread {
    fiber *started;    /* NULL: not yet */
    const char *waits; /* NULL: it runs, or has ended */
    uint64_t slot[2];  /* what it shows to its warp, in two shuffles in turn */
    unsigned n_shuffles;
};

unsigned seed, random_state;

const lks_fibers_launch *running;
unsigned n_threads, n_ended;
cuda_thread threads[MAX_THREADS];
lks_fibers::shown shows[2][MAX_THREADS];        /* as cuda_thread.slot */
unsigned at_block, at_warp[MAX_THREADS / WARP]; /* how many wait there */

/* Who can go on. */
unsigned ready[MAX_THREADS], ready_first, n_ready;
bool last_first; /* who came last goes on first: so a warp runs far ahead of the others */

struct shared_array {
    const void *site;
    void *memory;
    size_t bytes;
};
std::vector<shared_array> arrays;
/* Copies that a thread has begun. To allocate them would order threads. */
struct begun {
    lks_fibers::copy at[MAX_COPIES];
    unsigned n, taken;
};
begun copies[MAX_THREADS];

#ifdef LKS_FIBERS_THREAD
/* To the sanitizer a CUDA thread is a fiber of its own. Blocks use the sets in turn, for two blocks
 * that used the same would seem to be ordered. Barriers have two places each for the sanitizer, or
 * who is late at one would seem to come after what others did on their way to the next. */
enum { SETS = 2 };
fiber *fibers_of[SETS][MAX_THREADS];
unsigned set;
char launch_begins, launch_ends, shared_begins[SETS];
char block_place[SETS][2], warp_place[SETS][MAX_THREADS / WARP][2];
unsigned block_turn[MAX_THREADS], warp_turn[MAX_THREADS];
std::vector<void *> unfreed;
#else
fiber *idle[MAX_THREADS];
unsigned n_idle;
#endif

unsigned draw()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* Threads [first, first + n) can go on, in an order by the seed. */
void make_ready(unsigned first, unsigned n)
{
    unsigned from = 0, step = 1;
    if (seed != 0) {
        from = draw() % n;
        step = draw() % 2 != 0 ? 1 : n - 1;
    }
    for (unsigned i = 0; i < n; i++) {
        const unsigned k = ready_first + n_ready++;
        ready[k % MAX_THREADS] = first + from;
        from += step;
        from -= from >= n ? n : 0;
    }
}

unsigned next_ready()
{
    if (n_ready == 0)
        return NONE;
    n_ready--;
    if (last_first)
        return ready[(ready_first + n_ready) % MAX_THREADS];
    const unsigned t = ready[ready_first];
    ready_first = (ready_first + 1) % MAX_THREADS;
    return t;
}

[[noreturn]] void stuck()
{
    unsigned t = 0;
    while (threads[t].waits == NULL) /* somebody does, or there would be somebody to run */
        t++;
    die("%s: block %u,%u,%u: thread %u waits at %s, which not all others reach", running->name,
        lks_fibers::at.block.x, lks_fibers::at.block.y, lks_fibers::at.block.z, t,
        threads[t].waits);
}

void be(unsigned t)
{
    const dim3 n = running->block;
    lks_fibers::at.thread =
        n.y * n.z == 1 ? dim3(t, 0, 0) : dim3(t % n.x, t / n.x % n.y, t / n.x / n.y);
}

fiber *fiber_for(unsigned t)
{
#ifdef LKS_FIBERS_THREAD
    fiber **place = &fibers_of[set][t];
    if (*place == NULL)
        *place = fiber_new();
    return *place;
#else
    (void)t;
    return n_idle == 0 ? fiber_new() : idle[--n_idle];
#endif
}

void go_on_with(unsigned t)
{
    be(t);
    if (threads[t].started == NULL) {
        threads[t].started = fiber_for(t);
        threads[t].started->thread = t;
    }
    switch_to(threads[t].started);
}

/* A CUDA thread has ended. On return, self->thread is another one, which begins. */
void next_thread()
{
    n_ended++;
    const unsigned t = next_ready();
    if (t == NONE && n_ended < n_threads)
        stuck();
#ifndef LKS_FIBERS_THREAD
    if (t != NONE && threads[t].started == NULL) { /* without a switch */
        be(t);
        threads[t].started = self;
        self->thread = t;
        return;
    }
    idle[n_idle++] = self;
#endif
    if (t == NONE)
        switch_to(&home);
    else
        go_on_with(t);
}

void worker()
{
    arrive(left);
    for (;;) {
#ifdef LKS_FIBERS_THREAD
        __tsan_acquire(&launch_begins);
#endif
        running->run_thread();
#ifdef LKS_FIBERS_THREAD
        __tsan_release(&launch_ends);
#endif
        next_thread();
    }
}

/* Threads [first, first + n) all wait: at the same place? */
void release(unsigned first, unsigned n)
{
    for (unsigned t = first; t < first + n; t++)
        if (threads[t].waits != threads[first].waits &&
            strcmp(threads[t].waits, threads[first].waits) != 0)
            die("%s: thread %u waits at %s, but thread %u at %s", running->name, first,
                threads[first].waits, t, threads[t].waits);
    for (unsigned t = first; t < first + n; t++)
        threads[t].waits = NULL;
    make_ready(first, n);
}

/* Wait until all `n` threads from `first` on wait, of which *here do so already. */
void wait(unsigned first, unsigned n, unsigned *here, const char *where)
{
    const unsigned t = self->thread;
    threads[t].waits = where;
    if (++*here == n) {
        *here = 0;
        release(first, n);
    }
    const unsigned next = next_ready();
    if (next == NONE)
        stuck();
    if (next != t)
        go_on_with(next);
}

void wait_for_warp(const char *where)
{
    const unsigned warp = self->thread / WARP;
    wait(warp * WARP, WARP, &at_warp[warp], where);
}

void run_block(unsigned long long number)
{
    const dim3 g = running->grid;
    lks_fibers::at.block = dim3((unsigned)(number % g.x), (unsigned)(number / g.x % g.y),
                                (unsigned)(number / g.x / g.y));
    for (unsigned t = 0; t < n_threads; t++) {
        threads[t].started = NULL;
        threads[t].n_shuffles = 0;
#ifdef LKS_FIBERS_THREAD
        block_turn[t] = warp_turn[t] = 0; /* as threads may have been in blocks of other sizes */
#endif
    }
    n_ended = 0;
    last_first = seed != 0 && draw() % 2 != 0;
    make_ready(0, n_threads);
    go_on_with(next_ready());

    for (unsigned t = 0; t < n_threads; t++)
        if (copies[t].n != 0)
            die("%s: thread %u hasn't waited for its copies", running->name, t);
    for (const shared_array &a : arrays) {
#ifdef LKS_FIBERS_THREAD
        unfreed.push_back(a.memory); /* to free it now would order this block and the next */
#else
        free(a.memory);
#endif
    }
    arrays.clear();
#ifdef LKS_FIBERS_THREAD
    set = (set + 1) % SETS;
#endif
}

void check(const lks_fibers_launch *l)
{
    const unsigned long long n = (unsigned long long)l->block.x * l->block.y * l->block.z;
    if (l->grid.x == 0 || l->grid.y == 0 || l->grid.z == 0 || l->grid.x > 0x7fffffff ||
        l->grid.y > MAX_GRID_YZ || l->grid.z > MAX_GRID_YZ)
        die("%s: CUDA refuses a grid of %u,%u,%u blocks", l->name, l->grid.x, l->grid.y, l->grid.z);
    if (n == 0 || n > MAX_THREADS || l->block.z > 64)
        die("%s: CUDA refuses a block of %u,%u,%u threads", l->name, l->block.x, l->block.y,
            l->block.z);
    if (n % WARP != 0)
        die("%s: a block of %llu threads, whose last warp isn't full", l->name, n);
}

void run(const lks_fibers_launch *l)
{
    running = l;
    n_threads = l->block.x * l->block.y * l->block.z;
    lks_fibers::at.block_dim = l->block;
    lks_fibers::at.grid_dim = l->grid;
    random_state = seed * 2654435761u | 1;
#ifdef LKS_FIBERS_THREAD
    home.tsan = __tsan_get_current_fiber();
    __tsan_release(&launch_begins);
#endif
    const unsigned long long blocks = (unsigned long long)l->grid.x * l->grid.y * l->grid.z;
    std::vector<unsigned long long> order(blocks);
    for (unsigned long long i = 0; i < blocks; i++) {
        const unsigned long long j = seed == 0 ? i : draw() % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (unsigned long long block : order)
        run_block(block);
#ifdef LKS_FIBERS_THREAD
    __tsan_acquire(&launch_ends);
    for (void *memory : unfreed)
        free(memory);
    unfreed.clear();
#endif
}

lks_fibers_queue_fn *queue;
std::mutex one_at_a_time;

} // namespace

/* --- for kernels ----------------------------------------------------------------------------- */

lks_fibers::position lks_fibers::at;

void lks_fibers::block_barrier(const char *where)
{
#ifdef LKS_FIBERS_THREAD
    char *place = &block_place[set][block_turn[self->thread]++ % 2];
    __tsan_release(place);
#endif
    wait(0, n_threads, &at_block, where);
#ifdef LKS_FIBERS_THREAD
    __tsan_acquire(place);
#endif
}

void lks_fibers::warp_barrier(const char *where)
{
#ifdef LKS_FIBERS_THREAD
    const unsigned t = self->thread;
    char *place = &warp_place[set][t / WARP][warp_turn[t]++ % 2];
    __tsan_release(place);
#endif
    wait_for_warp(where);
#ifdef LKS_FIBERS_THREAD
    __tsan_acquire(place);
#endif
}

/* One barrier is enough: nobody is two shuffles ahead, and slots are used in turn. */
uint64_t lks_fibers::exchange(uint64_t word, unsigned mask, int lane_mask, const char *where)
{
    const unsigned t = self->thread, turn = threads[t].n_shuffles++ % 2;
    if (mask != 0xffffffffu || lane_mask < 0 || lane_mask >= WARP)
        die("%s: %s: a shuffle with the mask %#x and lane mask %d", running->name, where, mask,
            lane_mask);
    threads[t].slot[turn] = word;
    wait_for_warp(where);
    return threads[t ^ (unsigned)lane_mask].slot[turn];
}

const lks_fibers::shown *lks_fibers::show(const shown &mine, const char *where)
{
    const unsigned t = self->thread, turn = threads[t].n_shuffles++ % 2;
    if (n_threads != running->block.x)
        die("%s: %s: the block has more than one row of threads", running->name, where);
    shows[turn][t] = mine;
    wait_for_warp(where);
    return &shows[turn][t / WARP * WARP];
}

/* A product of two such numbers is exact. In which order the GPU adds isn't known. */
void lks_fibers::add_products(float c[4], const shown &mine)
{
    const unsigned lane = at.thread.x % WARP;
    const shown *all = show(mine, "mma");
    const shown *x = all + lane / 4 * 4, *y = all + lane % 4 * 2 * 4;
    float sums[4] = {c[0], c[1], c[2], c[3]}; /* else each addition would wait for a store */
#pragma GCC unroll 16
    for (unsigned k = 0; k < 16; k++)
        for (unsigned i = 0; i < 4; i++)
            sums[i] +=
                x[k % 8 / 2].a[i / 2 + k / 8 * 2][k % 2] * y[i % 2 * 4 + k % 8 / 2].b[k / 8][k % 2];
    memcpy(c, sums, sizeof sums);
}

void lks_fibers::die_of(const char *what)
{
    die("%s: %s", running->name, what);
}

bool lks_fibers::keep_copy(const copy &c)
{
    begun &mine = copies[self->thread];
    if (seed % 2 != 0)
        return false;
    if (mine.n == MAX_COPIES)
        die("%s: a thread begins more than %d copies", running->name, MAX_COPIES);
    mine.at[mine.n++] = c;
    return true;
}

bool lks_fibers::take_copy(copy *c)
{
    begun &mine = copies[self->thread];
    if (mine.taken == mine.n) {
        mine.taken = mine.n = 0;
        return false;
    }
    *c = mine.at[mine.taken++];
    return true;
}

void *lks_fibers::shared(const void *site, size_t bytes)
{
    size_t sum = bytes;
    for (const shared_array &a : arrays) {
        sum += a.bytes;
        if (a.site == site) {
#ifdef LKS_FIBERS_THREAD
            __tsan_acquire(&shared_begins[set]);
#endif
            return a.memory;
        }
    }
    if (sum > MAX_SHARED)
        die("%s: %zu bytes of shared memory, and a block has %d", running->name, sum, MAX_SHARED);
#ifdef LKS_FIBERS_THREAD
    /* The host's thread makes it, so that it doesn't order the first thread and the others. */
    __tsan_switch_to_fiber(home.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    void *memory = NULL;
    if (posix_memalign(&memory, 1024, bytes) != 0)
        die("%s: there is no memory for %zu bytes of shared memory", running->name, bytes);
    for (size_t i = 0; i < bytes; i++)
        ((volatile unsigned char *)memory)[i] = 0xff; /* floats: NaN */
    arrays.push_back({site, memory, bytes});
#ifdef LKS_FIBERS_THREAD
    __tsan_release(&shared_begins[set]);
    __tsan_switch_to_fiber(self->tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(&shared_begins[set]);
#endif
    return memory;
}

void lks_fibers::put(const void *stream, lks_fibers_launch *l)
{
    check(l);
    if (queue != NULL)
        queue(stream, l);
    else
        lks_fibers_run(l);
}

/* --- for tests ------------------------------------------------------------------------------- */

void lks_fibers_order(unsigned order)
{
    seed = order;
}

void lks_fibers_queue(lks_fibers_queue_fn *fn)
{
    queue = fn;
}

void lks_fibers_run(lks_fibers_launch *l)
{
    {
        std::lock_guard<std::mutex> lock(one_at_a_time);
        run(l);
    }
    delete l;
}

void lks_fibers_drop(lks_fibers_launch *l)
{
    delete l;
}

const char *lks_fibers_name(const lks_fibers_launch *l)
{
    return l->name;
}

unsigned long long lks_fibers_switches(void)
{
    return n_switches;
}
