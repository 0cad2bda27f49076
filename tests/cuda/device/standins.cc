/* standins.cc - stands in for the CUDA runtime and cuBLASLt. What is put on a stream runs later, in
 * an order that the seed chooses; only the order within a stream, and events, are kept. The host
 * can't touch the device's memory. See standins.h for what the environment sets, and for what ends
 * the process. */
#include "standins.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/number/bf16.h"
#include "harness.h"

extern "C" void lks__cuda_launched(const char *kernel); /* src/compute/cuda/cuda.h */

/* An entry of a stream. */
struct entry {
    const char *what;
    std::function<void()> run;
    std::function<bool()> attempt; /* in place of `run`: false, it must be tried again */
    CUevent_st *after; /* begins when this event has been reached `turn` times; NULL: at any time */
    CUevent_st *reaches;
    uint64_t turn;
    bool on_host;     /* runs as the host does: without the device's memory */
    const char *host; /* memory of the host that it needs */
    size_t bytes;
};

struct CUstream_st {
    std::deque<entry> entries;
    unsigned number;
};

struct CUevent_st {
    uint64_t recorded, reached;
};

namespace
{

enum order { LATE, EVEN_FIRST, ODD_FIRST, RANDOM, ORDERS };
enum { PAGE = 4096, MOST_REFUSED = 5, LEAST_ALIGNMENT = 256, MOST_FILLED = 8 << 20 };

struct block {
    char *map, *data;
    size_t map_bytes, bytes;
    bool device, released;
    bool open; /* without protection_key() */
};

/* They outlive destructors: the list of calls is written at the very end. */
std::vector<block> &blocks = *new std::vector<block>();
std::vector<CUstream_st *> &streams = *new std::vector<CUstream_st *>();
unsigned n_streams;  /* ever made */
const char *running; /* what runs now; NULL: the host */
struct sigaction before;
uint32_t random_state;
order how;
int refused; /* consecutive queries that were answered "not yet" */
cudaError_t last_error;
bool is_allowed;       /* without protection_key(): what runs may touch the device's memory */
int own_unit;          /* of the GPU that is set */
unsigned long n_turns; /* calls of the program */
std::recursive_mutex &mutex = *new std::recursive_mutex();
size_t held, peak; /* bytes of device memory */
std::map<std::string, int> &calls = *new std::map<std::string, int>();
std::map<std::string, int> &signatures = *new std::map<std::string, int>();

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *fmt, ...)
{
    const char *rank = getenv("RANK");
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "CUDA stand-in%s%s: ", rank == NULL ? "" : ", rank ", rank == NULL ? "" : rank);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

unsigned number_of(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : (unsigned)strtoul(text, NULL, 10);
}

/* Do settings of one rank apply to this one? */
bool is_chosen()
{
    const char *only = getenv("CUDA_STANDIN_ONLY_RANK"), *rank = getenv("RANK");
    return only == NULL || (rank != NULL && strcmp(only, rank) == 0);
}

unsigned number_here(const char *name, unsigned otherwise)
{
    return is_chosen() ? number_of(name, otherwise) : otherwise;
}

uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % below;
}

/* Nobody else is in a call. */
struct turn {
    std::lock_guard<std::recursive_mutex> guard;
    turn() : guard(mutex)
    {
        n_turns++;
    }
};

/* --- memory ---------------------------------------------------------------------------------- */

block *block_at(const void *p)
{
    for (block &b : blocks)
        if ((const char *)p >= b.map && (const char *)p < b.map + b.map_bytes)
            return &b;
    return NULL;
}

void protect(block *b, int protection)
{
    mprotect(b->map, b->map_bytes - PAGE, protection);
    b->open = protection != PROT_NONE;
}

/* Open a block that is touched by who may. Otherwise the fault happens again after this, and ends
 * the process. */
void on_fault(int, siginfo_t *info, void *)
{
    char text[300];
    block *b = block_at(info->si_addr);
    if (b != NULL && b->device && !b->released && is_allowed && !b->open &&
        (char *)info->si_addr < b->map + b->map_bytes - PAGE) {
        protect(b, PROT_READ | PROT_WRITE);
        return;
    }
    sigaction(SIGSEGV, &before, NULL);
    if (b == NULL)
        return;
    const int n = snprintf(
        text, sizeof text, "CUDA stand-in: %s touched %p: byte %td of %zu bytes of %s memory%s\n",
        running == NULL ? "the host" : running, info->si_addr, (char *)info->si_addr - b->data,
        b->bytes, b->device ? "device" : "pinned", b->released ? ", which was freed" : "");
    (void)!write(2, text, (size_t)n);
}

/* A test's program may have put another handler in its place. */
void listen()
{
    struct sigaction action = {}, now;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &now);
    if (now.sa_sigaction != on_fault)
        before = now;
}

/* A key of the processor's, with which a thread opens all blocks at once; -1: there is none. */
int protection_key()
{
    static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key;
}

/* Only as long as something runs that may use it. Without a key, a block is opened when it is first
 * touched: to open and close all for each entry takes most of the time of a run. */
void open_memory(bool open)
{
    if (protection_key() >= 0)
        pkey_set(protection_key(), open ? 0 : PKEY_DISABLE_ACCESS);
    else if (open && !is_allowed)
        listen();
    for (block &b : blocks)
        if (!open && b.open)
            protect(&b, PROT_NONE);
    is_allowed = open;
}

/* NaNs that end before an unreadable page, at a multiple of 256 bytes as CUDA's. */
void *take(size_t bytes, bool device)
{
    const size_t used = (bytes + LEAST_ALIGNMENT - 1) / LEAST_ALIGNMENT * LEAST_ALIGNMENT;
    const size_t pages = (used + PAGE - 1) / PAGE * PAGE;
    block b = {};
    b.map_bytes = pages + PAGE;
    b.bytes = bytes;
    b.device = device;
    b.map = (char *)mmap(NULL, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED || mprotect(b.map, pages, PROT_READ | PROT_WRITE) != 0)
        die("no memory for %zu bytes", bytes);
    b.data = b.map + pages - used;
    if (used <= MOST_FILLED) /* more would take longer than it helps */
        memset(b.data, 0xff, used);
    if (device && protection_key() >= 0)
        pkey_mprotect(b.map, pages, PROT_READ | PROT_WRITE, protection_key());
    else if (device)
        protect(&b, PROT_NONE);
    blocks.push_back(b);
    return b.data;
}

/* The block that has [p, p + bytes); NULL: memory that CUDA knows nothing of. */
const block *memory_of(const char *what, const void *p, size_t bytes)
{
    const block *b = block_at(p);
    if (b == NULL)
        return NULL;
    if (b->released)
        die("%s names memory that was freed", what);
    if ((const char *)p < b->data || (const char *)p + bytes > b->data + b->bytes)
        die("%s: %zu bytes from byte %td of a block of %zu", what, bytes, (const char *)p - b->data,
            b->bytes);
    return b;
}

/* Does an entry need this memory of the host? A call of the host may need any. */
const char *needed(const void *p, size_t bytes)
{
    for (const CUstream_st *s : streams)
        for (const entry &e : s->entries)
            if ((e.on_host && e.reaches == NULL) ||
                (e.host != NULL && e.host < (const char *)p + bytes &&
                 (const char *)p < e.host + e.bytes))
                return e.what;
    return NULL;
}

/* --- streams --------------------------------------------------------------------------------- */

bool is_due(const entry &e)
{
    return e.after == NULL || e.after->reached >= e.turn;
}

bool step(CUstream_st *s)
{
    if (s->entries.empty() || !is_due(s->entries.front()))
        return false;
    if (s->entries.front().attempt) {
        open_memory(true);
        running = s->entries.front().what;
        const bool done = s->entries.front().attempt();
        running = NULL;
        if (done)
            s->entries.pop_front();
        return done;
    }
    const entry e = s->entries.front();
    if (e.run) {
        open_memory(!e.on_host);
        running = e.what;
        e.run();
        running = NULL;
    }
    s->entries.pop_front();
    return true;
}

/* What the order lets run without a request. */
void run_some()
{
    if (running != NULL)
        die("a CUDA call by %s", running);
    if (how == EVEN_FIRST || how == ODD_FIRST) {
        for (CUstream_st *s : streams)
            while (s->number % 2 == (how == ODD_FIRST) && step(s))
                ;
    } else if (how == RANDOM && !streams.empty()) {
        for (unsigned i = draw(4); i > 0; i--)
            step(streams[draw((uint32_t)streams.size())]);
    }
    open_memory(false);
}

bool reach(const CUevent_st *event, uint64_t turn);

/* Run the first entry, and before that all that it waits for. False: not now, because another rank
 * has to do something first. */
bool run_one(CUstream_st *s)
{
    const entry &e = s->entries.front();
    return (is_due(e) || reach(e.after, e.turn)) && step(s);
}

bool reach(const CUevent_st *event, uint64_t turn)
{
    while (event->reached < turn) {
        CUstream_st *at = NULL;
        for (CUstream_st *s : streams)
            for (const entry &e : s->entries)
                at = e.reaches == event ? s : at;
        if (at == NULL)
            die("somebody waits for an event that nobody reaches");
        if (!run_one(at))
            return false;
    }
    return true;
}

bool finish(CUstream_st *s)
{
    bool goes_on = true;
    while (!s->entries.empty() && goes_on)
        goes_on = run_one(s);
    open_memory(false);
    return goes_on;
}

void put(CUstream_st *s, entry e)
{
    bool known = false;
    for (const CUstream_st *other : streams)
        known = known || other == s;
    if (!known)
        die("%s is put on no stream", e.what);
    s->entries.push_back(std::move(e));
    run_some();
}

/* --- calls ----------------------------------------------------------------------------------- */

/* Is the variable NAME:N of this call? */
bool is_named(const char *variable, const char *name, int n)
{
    const char *text = getenv(variable), *colon = text == NULL ? NULL : strchr(text, ':');
    return colon != NULL && is_chosen() && std::string(text, colon) == name && n == atoi(colon + 1);
}

bool is_chosen_time(const char *name)
{
    const int n = ++calls[name];
    if (is_named("CUDA_STANDIN_KILL", name, n))
        raise(SIGKILL);
    if (is_named("CUDA_STANDIN_STOP", name, n))
        raise(SIGSTOP);
    while (is_named("CUDA_STANDIN_HANG", name, n) && strcmp(name, "kernel") != 0)
        pause();
    return is_named("CUDA_STANDIN_FAIL", name, n);
}

bool fails(const char *name, const char *signature)
{
    signatures[signature[0] == '\0' ? std::string(name) : std::string(name) + " " + signature]++;
    return is_chosen_time(name);
}

cudaError_t error_of(cudaError_t error)
{
    last_error = error;
    return error;
}

#define CUDA_CALL(signature)                                                                       \
    const turn own_turn;                                                                           \
    if (fails(__func__, signature))                                                                \
    return error_of(cudaErrorLaunchFailure)
#define PRODUCT_CALL(signature)                                                                    \
    const turn own_turn;                                                                           \
    if (fails(__func__, signature))                                                                \
    return CUBLAS_STATUS_EXECUTION_FAILED

size_t memory_of_gpu()
{
    const char *text = getenv("CUDA_STANDIN_MB");
    return (size_t)((text == NULL ? 4096.0 : strtod(text, NULL)) * 1048576.0);
}

int n_gpus()
{
    const char *text = getenv("CUDA_STANDIN_GPUS");
    return text == NULL ? 8 : strcmp(text, "none") == 0 ? -1 : atoi(text);
}

/* Kernels come here from fibers.h. */
void queue_kernel(const void *stream, lks_fibers_launch *launch)
{
    const turn own_turn;
    const char *name = lks_fibers_name(launch);
    if (fails("kernel", name)) {
        lks_fibers_drop(launch);
        last_error = cudaErrorLaunchFailure;
    } else {
        entry e = {};
        e.what = name;
        e.run = [launch] {
            lks_fibers_order(how == RANDOM ? draw(1000) : 0);
            lks_fibers_run(launch);
        };
        if (is_named("CUDA_STANDIN_HANG", "kernel", calls["kernel"]))
            e.attempt = [] { return false; };
        put((CUstream_st *)(uintptr_t)stream, std::move(e));
    }
    lks__cuda_launched(name);
}

__attribute__((constructor)) void begin()
{
    const unsigned seed =
        number_of("CUDA_STANDIN_SEED", number_of("LKS_TEST_START", 0)) + number_of("RANK", 0);
    listen();
    prctl(PR_SET_TIMERSLACK,
          1000000); /* naps of microseconds, with more ranks than cores, cost most */
    how = (order)(seed % ORDERS);
    random_state = (seed + 1) * 2654435761u | 1;
    lks_fibers_queue(queue_kernel);
}

/* Add a line to the file CUDA_STANDIN_PEAK, and one for each kind of call to CUDA_STANDIN_CALLS and
 * CUDA_STANDIN_COUNTS. */
__attribute__((destructor)) void end()
{
    const char *path = getenv("CUDA_STANDIN_PEAK");
    FILE *f = path == NULL || peak == 0 ? NULL : fopen(path, "a");
    if (f != NULL) {
        fprintf(f, "%zu\n", peak);
        fclose(f);
    }
    for (const char *name : {"CUDA_STANDIN_CALLS", "CUDA_STANDIN_COUNTS"}) {
        path = getenv(name);
        f = path == NULL ? NULL : fopen(path, "a");
        for (const auto &s : signatures)
            if (f != NULL && strcmp(name, "CUDA_STANDIN_CALLS") == 0)
                fprintf(f, "%s\n", s.first.c_str());
            else if (f != NULL)
                fprintf(f, "%s: %d\n", s.first.c_str(), s.second);
        if (f != NULL)
            fclose(f);
    }
}

/* A query: of all that is on the stream, or of the event. */
bool is_ready(CUstream_st *s, const CUevent_st *event)
{
    run_some();
    const bool done = s != NULL ? s->entries.empty() : event->reached >= event->recorded;
    if (!done && refused < MOST_REFUSED && draw(2) == 0) {
        refused++;
        return false;
    }
    refused = 0;
    const bool reached = s != NULL ? finish(s) : reach(event, event->recorded);
    open_memory(false);
    return reached;
}

void be_device_memory(const char *what, const void *p, size_t bytes)
{
    const block *b = memory_of(what, p, bytes);
    if (b == NULL || !b->device)
        die("%s is no device memory", what);
}

void go_on()
{
    for (CUstream_st *s : streams)
        finish(s);
}

/* A GPU works on while its program waits for something else, and other ranks may need that. */
[[noreturn]] void watch_idle_program()
{
    for (unsigned long seen = 0;; usleep(5000)) {
        const std::lock_guard<std::recursive_mutex> guard(mutex);
        if (n_turns == seen)
            go_on();
        seen = n_turns;
    }
}

void put_attempt(cudaStream_t stream, const char *what, std::function<bool()> attempt)
{
    static bool watches;
    entry e = {};
    e.what = what;
    e.attempt = std::move(attempt);
    put(stream, std::move(e));
    if (!watches)
        std::thread(watch_idle_program).detach();
    watches = true;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const lks_standins lks_standins_table = {
    fails, is_chosen_time, die, draw, be_device_memory, put_attempt, go_on, &own_unit, &mutex};

/* --- the CUDA runtime ------------------------------------------------------------------------ */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    fails(__func__, "");
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    fails(__func__, "");
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    default:
        return "unspecified launch failure";
    }
}

cudaError_t cudaGetDeviceCount(int *n)
{
    CUDA_CALL("");
    *n = n_gpus();
    return *n < 0    ? error_of(cudaErrorInsufficientDriver)
           : *n == 0 ? error_of(cudaErrorNoDevice)
                     : cudaSuccess;
}

/* With CUDA_STANDIN_OWN each rank sees others. */
static int unit_of(int gpu)
{
    return 16 + gpu + (int)number_of("CUDA_STANDIN_OWN", 0) * (int)number_of("RANK", 0);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int gpu)
{
    CUDA_CALL("");
    if (gpu < 0 || gpu >= n_gpus())
        return error_of(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Stand-in");
    p->totalGlobalMem = memory_of_gpu();
    p->major = (int)number_of("CUDA_STANDIN_MAJOR", 9);
    p->pciBusID = unit_of(gpu);
    p->uuid.bytes[15] = (char)p->pciBusID;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int)
{
    CUDA_CALL("cudaDevAttrMultiProcessorCount");
    if (which != cudaDevAttrMultiProcessorCount)
        return error_of(cudaErrorInvalidValue);
    *value = (int)number_here("CUDA_STANDIN_PROCESSORS", 132);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    CUDA_CALL("");
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    CUDA_CALL("");
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu)
{
    CUDA_CALL("");
    own_unit = unit_of(gpu);
    return gpu >= 0 && gpu < n_gpus() ? cudaSuccess : error_of(cudaErrorInvalidDevice);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    CUDA_CALL("");
    if (held + bytes > memory_of_gpu())
        return error_of(cudaErrorMemoryAllocation);
    held += bytes;
    peak = held > peak ? held : peak;
    run_some();
    *p = take(bytes, true);
    return cudaSuccess;
}

static void give(const char *what, void *p, bool device)
{
    for (block &b : blocks)
        if (b.data == p && b.device == device && !b.released) {
            mprotect(b.map, b.map_bytes, PROT_NONE);
            madvise(b.map, b.map_bytes, MADV_DONTNEED);
            b.released = true;
            held -= device ? b.bytes : 0;
            return;
        }
    die("%s of memory that was not allocated so", what);
}

cudaError_t cudaFree(void *p)
{
    CUDA_CALL("");
    /* CUDA may wait for what is queued. Here that finds the memory gone. */
    give("cudaFree", p, true);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    CUDA_CALL("cudaHostAllocDefault");
    if (flags != cudaHostAllocDefault)
        return error_of(cudaErrorInvalidValue);
    *p = take(bytes, false);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    CUDA_CALL("");
    const block *b = block_at(p);
    const char *who = b == NULL ? NULL : needed(b->data, b->bytes);
    if (who != NULL)
        die("cudaFreeHost of memory that a queued %s needs", who);
    give("cudaFreeHost", p, false);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    CUDA_CALL("");
    *left = memory_of_gpu() - held;
    *all = memory_of_gpu();
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    CUDA_CALL("");
    const block *b = memory_of(__func__, p, 0);
    memset(a, 0, sizeof *a);
    a->type = b == NULL   ? cudaMemoryTypeUnregistered
              : b->device ? cudaMemoryTypeDevice
                          : cudaMemoryTypeHost;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    CUDA_CALL("");
    if (memory_of(__func__, p, bytes) == NULL)
        die("cudaMemsetAsync of memory that CUDA knows nothing of");
    entry e = {};
    e.what = "cudaMemsetAsync";
    e.run = [=] { memset(p, value, bytes); };
    put(stream, std::move(e));
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const block *to = memory_of(__func__, dst, bytes), *from = memory_of(__func__, src, bytes);
    CUDA_CALL(kind == cudaMemcpyDefault        ? "cudaMemcpyDefault"
              : kind == cudaMemcpyHostToDevice ? "cudaMemcpyHostToDevice"
                                               : "cudaMemcpyDeviceToHost");
    if (to == NULL || from == NULL)
        die("cudaMemcpyAsync with pageable memory, for which CUDA may stop the host");
    if ((kind == cudaMemcpyHostToDevice && (!to->device || from->device)) ||
        (kind == cudaMemcpyDeviceToHost && (to->device || !from->device)))
        die("cudaMemcpyAsync in another direction than its kind");
    entry e = {};
    e.what = "cudaMemcpyAsync";
    e.host = !to->device ? (const char *)dst : !from->device ? (const char *)src : NULL;
    e.bytes = bytes;
    e.run = [=] { memmove(dst, src, bytes); };
    if (!to->device && needed(dst, bytes) == NULL)
        memset(dst, 0xff, bytes); /* whoever reads it too early finds NaNs */
    put(stream, std::move(e));
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    CUDA_CALL("");
    entry e = {};
    e.what = "cudaLaunchHostFunc";
    e.on_host = true;
    e.run = [=] { fn(arg); };
    put(stream, std::move(e));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CUDA_CALL("cudaStreamNonBlocking");
    if (flags != cudaStreamNonBlocking)
        return error_of(cudaErrorInvalidValue);
    *stream = new CUstream_st();
    (*stream)->number = n_streams++;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUDA_CALL("");
    if (!stream->entries.empty())
        die("cudaStreamDestroy while %zu entries are queued", stream->entries.size());
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream) {
            streams.erase(streams.begin() + (std::ptrdiff_t)i);
            delete stream;
            return cudaSuccess;
        }
    die("cudaStreamDestroy of no stream");
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CUDA_CALL("");
    run_some();
    while (!finish(stream))
        usleep(100);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CUDA_CALL("");
    return is_ready(stream, NULL) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    CUDA_CALL("");
    entry e = {};
    e.what = "cudaStreamWaitEvent";
    e.after = event;
    e.turn = event->recorded;
    put(stream, std::move(e));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CUDA_CALL("cudaEventDisableTiming");
    if (flags != cudaEventDisableTiming)
        return error_of(cudaErrorInvalidValue);
    *event = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    CUDA_CALL("");
    for (const CUstream_st *s : streams)
        for (const entry &e : s->entries)
            if (e.after == event || e.reaches == event)
                die("cudaEventDestroy of an event that is queued");
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUDA_CALL("");
    const uint64_t turn = ++event->recorded;
    entry e = {};
    e.what = "cudaEventRecord";
    e.reaches = event;
    e.run = [=] { event->reached = turn; };
    e.on_host = true;
    put(stream, std::move(e));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CUDA_CALL("");
    return is_ready(NULL, event) ? cudaSuccess : cudaErrorNotReady;
}

/* --- cuBLASLt: stored by columns ---------------------------------------------------------------
 */

struct cublasLtContext {
    int open;
};

namespace
{

struct description {
    bool ta, tb;
    bool has_bias;
    const uint16_t *bias; /* a number for each row of the result */
};
struct layout {
    uint64_t rows, cols, ld;
    uint64_t count, stride; /* of a batch */
    bool bf16;              /* else float32 */
};
struct preference {
    size_t work;
    uint32_t alignments[4];
    uint32_t reductions;
};
/* An algorithm is its attributes: the id is that of the shape it was made for; the tile has the
 * four matrices' alignments, the stages the pages of work space; the split is 2 if parts may be
 * added. Each choice (the custom option) begins its sums at another term. One for a batch adds from
 * the end on (swizzling) if it was made for an odd number of products; and if it may add parts,
 * some products of the batch do so, too. A product must use it for nothing else. The rest of
 * cuBLASLt's struct is unset, and differs between processes, as has been seen on an H200. */
struct algorithm {
    uint32_t is[CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID + 1];
    uint32_t unset;

    uint32_t alignment(int i) const
    {
        return is[CUBLASLT_ALGO_CONFIG_TILE_ID] >> 8 * i & 0xff;
    }
    size_t work() const
    {
        return (size_t)is[CUBLASLT_ALGO_CONFIG_STAGES_ID] * 4096;
    }
    bool parts() const
    {
        return is[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] == 2;
    }
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has 64 bytes");

uint32_t algorithms_here()
{
    const unsigned n = number_here("CUDA_STANDIN_ALGORITHMS", 0);
    return n == ~0u ? (unsigned)getpid() : n;
}

uint32_t shape_of(const description *d, const layout *a, const layout *b, const layout *c)
{
    uint64_t h = 1469598103934665603u;
    const uint64_t parts[] = {d->ta, d->tb,   a->rows, a->cols, a->ld,   b->rows, b->cols,
                              b->ld, c->rows, c->cols, c->ld,   a->bf16, c->bf16};
    for (uint64_t part : parts)
        h = (h ^ part) * 1099511628211u;
    return (uint32_t)(h >> 32);
}

/* Element i of a float32 or a bfloat16 matrix. */
float element(const layout &l, const void *p, uint64_t i)
{
    return l.bf16 ? lks__bf16_to_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

void put_element(const layout &l, void *p, uint64_t i, float x)
{
    if (l.bf16)
        ((uint16_t *)p)[i] = lks__bf16_from_float(x);
    else
        ((float *)p)[i] = x;
}

/* out = alpha * op(a) op(b) + beta * c; each sum in the order of k from a term of the choice on, or
 * backwards, in float32. */
void multiply(description d, layout la, layout lb, layout lc, float alpha, const void *a,
              const void *b, float beta, const void *c, void *out, uint32_t choice, bool backwards)
{
    const uint64_t k = d.ta ? la.rows : la.cols, first = choice * 2654435761u % k;
    std::vector<float> column(lc.rows);
    for (uint64_t j = 0; j < lc.cols; j++) {
        for (uint64_t i = 0; i < lc.rows; i++)
            column[i] = 0.0f;
        for (uint64_t n = 0; n < k; n++) {
            const uint64_t x = (first + (backwards ? k - 1 - n : n)) % k;
            const float v = element(lb, b, d.tb ? j + lb.ld * x : x + lb.ld * j);
            const uint64_t from = d.ta ? x : la.ld * x, next = d.ta ? la.ld : 1;
            for (uint64_t i = 0; i < lc.rows; i++)
                column[i] += element(la, a, from + next * i) * v;
        }
        for (uint64_t i = 0, at = lc.ld * j; i < lc.rows; i++, at++)
            put_element(lc, out, at,
                        alpha * column[i] + (beta == 0.0f ? 0.0f : beta * element(lc, c, at)) +
                            (d.has_bias ? lks__bf16_to_float(d.bias[i]) : 0.0f));
    }
}

size_t size_of(const layout *l)
{
    return l->bf16 ? 2 : 4;
}

size_t bytes_of(const layout *l)
{
    return ((l->count - 1) * l->stride + (l->cols - 1) * l->ld + l->rows) * size_of(l);
}

/* All elements of the matrix are in one block of the device, and aligned as the algorithm needs. */
bool fits(const char *what, const void *p, const layout *l, uint32_t alignment)
{
    const block *b = memory_of(what, p, bytes_of(l));
    if (b == NULL || !b->device)
        die("cublasLtMatmul: %s is no device memory", what);
    return (uintptr_t)p % alignment == 0 &&
           (l->count == 1 || l->stride * size_of(l) % alignment == 0);
}

void apart(const char *what, const void *p, const layout *l, const void *out, const layout *d)
{
    if ((const char *)p < (const char *)out + bytes_of(d) &&
        (const char *)out < (const char *)p + bytes_of(l))
        die("cublasLtMatmul writes where %s is", what);
}

} // namespace

size_t cublasLtGetVersion(void)
{
    fails(__func__, "");
    return 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    fails(__func__, "");
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not supported"
                                                 : "the GPU program failed to execute";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    PRODUCT_CALL("");
    *handle = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    PRODUCT_CALL("");
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *what, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    PRODUCT_CALL("CUBLAS_COMPUTE_32F CUDA_R_32F");
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *what = (cublasLtMatmulDesc_t) new description();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t what)
{
    PRODUCT_CALL("");
    delete (description *)what;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t what,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    PRODUCT_CALL(which == CUBLASLT_MATMUL_DESC_TRANSA     ? "CUBLASLT_MATMUL_DESC_TRANSA"
                 : which == CUBLASLT_MATMUL_DESC_TRANSB   ? "CUBLASLT_MATMUL_DESC_TRANSB"
                 : which == CUBLASLT_MATMUL_DESC_EPILOGUE ? "CUBLASLT_MATMUL_DESC_EPILOGUE"
                                                          : "CUBLASLT_MATMUL_DESC_BIAS_POINTER");
    description *d = (description *)what;
    if (bytes != (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void *) : sizeof(int32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        d->bias = *(const uint16_t *const *)value;
    else if (which == CUBLASLT_MATMUL_DESC_EPILOGUE)
        d->has_bias = *(const cublasLtEpilogue_t *)value == CUBLASLT_EPILOGUE_BIAS;
    else
        (which == CUBLASLT_MATMUL_DESC_TRANSA ? d->ta : d->tb) =
            *(const int32_t *)value == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    PRODUCT_CALL(type == CUDA_R_16BF ? "CUDA_R_16BF" : "CUDA_R_32F");
    if ((type != CUDA_R_32F && type != CUDA_R_16BF) || rows == 0 || cols == 0 || ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *out = (cublasLtMatrixLayout_t) new layout{rows, cols, (uint64_t)ld, 1, 0, type == CUDA_R_16BF};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t out,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t bytes)
{
    const bool is_count = which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    PRODUCT_CALL(is_count ? "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT"
                          : "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET");
    layout *l = (layout *)out;
    if (is_count && bytes == sizeof(int32_t) && *(const int32_t *)value > 0)
        l->count = (uint64_t) * (const int32_t *)value;
    else if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof(int64_t))
        l->stride = (uint64_t) * (const int64_t *)value;
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    PRODUCT_CALL("");
    delete (layout *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    PRODUCT_CALL("");
    *out = (cublasLtMatmulPreference_t) new preference{0, {256, 256, 256, 256}, 0xff};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    PRODUCT_CALL("");
    delete (preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t out,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes)
{
    static const char *const names[] = {
        "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES", "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES",
        "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES", "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES"};
    preference *p = (preference *)out;
    const int i = (int)which - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    const bool is_work = which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    PRODUCT_CALL(is_work            ? "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES"
                 : i >= 0 && i <= 3 ? names[i]
                                    : "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK");
    if (is_work && bytes == sizeof(size_t))
        p->work = *(const size_t *)value;
    else if (i >= 0 && i <= 3 && bytes == sizeof(uint32_t))
        p->alignments[i] = *(const uint32_t *)value;
    else if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof(uint32_t))
        p->reductions = *(const uint32_t *)value;
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n)
{
    PRODUCT_CALL("1 result");
    const preference *pref = (const preference *)p;
    const layout *la = (const layout *)a, *lb = (const layout *)b, *lc = (const layout *)c;
    if (wanted != 1 || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    /* cuBLASLt has no product of floats that is rounded to bfloat16. */
    if (la->bf16 != lb->bf16 || (lc->bf16 && !la->bf16))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    algorithm found = {};
    found.is[CUBLASLT_ALGO_CONFIG_ID] = shape_of((const description *)what, la, lb, lc);
    for (int i = 0; i < 4; i++)
        found.is[CUBLASLT_ALGO_CONFIG_TILE_ID] |= (pref->alignments[i] & 0xff) << 8 * i;
    found.is[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] =
        1 + (pref->reductions != CUBLASLT_REDUCTION_SCHEME_NONE);
    found.is[CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING] = la->count > 1 && la->count % 2 != 0;
    found.is[CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION] = algorithms_here();
    found.is[CUBLASLT_ALGO_CONFIG_STAGES_ID] = (uint32_t)(pref->work / 4096);
    found.unset = (uint32_t)getpid();
    memcpy(&results->algo, &found, sizeof found);
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                      cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *out)
{
    PRODUCT_CALL("");
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || a != b || c != d)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm made = {};
    made.is[CUBLASLT_ALGO_CONFIG_ID] = (uint32_t)id;
    made.unset = (uint32_t)getpid();
    memcpy(out, &made, sizeof made);
    return CUBLAS_STATUS_SUCCESS;
}

/* Bytes of an attribute. */
size_t bytes_of(cublasLtMatmulAlgoConfigAttributes_t which)
{
    return which == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                   which == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID
               ? 2
               : 4;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *to,
                                                    cublasLtMatmulAlgoConfigAttributes_t which,
                                                    const void *value, size_t bytes)
{
    PRODUCT_CALL("");
    if (which == CUBLASLT_ALGO_CONFIG_ID || bytes != bytes_of(which))
        return CUBLAS_STATUS_INVALID_VALUE;
    algorithm changed;
    memcpy(&changed, to, sizeof changed);
    memcpy(&changed.is[which], value, bytes);
    memcpy(to, &changed, sizeof changed);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *given,
                                                    cublasLtMatmulAlgoConfigAttributes_t which,
                                                    void *value, size_t bytes, size_t *written)
{
    PRODUCT_CALL("");
    algorithm found;
    memcpy(&found, given, sizeof found);
    if (bytes != bytes_of(which) || written == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &found.is[which], *written = bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t what,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *given,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    PRODUCT_CALL("");
    const layout *la = (const layout *)a, *lb = (const layout *)b, *lc = (const layout *)c;
    algorithm found;
    memcpy(&found, given, sizeof found);
    if (c != d ||
        found.is[CUBLASLT_ALGO_CONFIG_ID] != shape_of((const description *)what, la, lb, lc) ||
        found.is[CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION] == number_here("CUDA_STANDIN_REFUSED", ~0u))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = found.work();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t what, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *out,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *given,
                              void *work, size_t work_bytes, cudaStream_t stream)
{
    const description d = *(const description *)what;
    const layout la = *(const layout *)a_layout, lb = *(const layout *)b_layout;
    const layout lc = *(const layout *)c_layout;
    const float x = *(const float *)alpha * (1 + 1e-6f * (float)number_here("CUDA_STANDIN_OFF", 0)),
                y = *(const float *)beta;
    const std::string name = std::string(d.ta ? "T " : "N ") + (d.tb ? "T, " : "N, ") +
                             (lc.bf16   ? "bfloat16"
                              : la.bf16 ? "bfloat16 to float32"
                                        : "float32") +
                             (lc.count > 1 ? ", batch" : "") + (d.has_bias ? ", bias" : "");
    PRODUCT_CALL(name.c_str());
    algorithm how_to;
    memcpy(&how_to, given, sizeof how_to);
    const uint64_t k = d.ta ? la.rows : la.cols;
    if (k != (d.tb ? lb.cols : lb.rows) || lc.rows != (d.ta ? la.cols : la.rows) ||
        lc.cols != (d.tb ? lb.rows : lb.cols) || la.count != lc.count || lb.count != lc.count ||
        c_layout != d_layout || la.bf16 != lb.bf16 || (lc.bf16 && !la.bf16) ||
        how_to.is[CUBLASLT_ALGO_CONFIG_ID] != shape_of(&d, &la, &lb, &lc) ||
        work_bytes < how_to.work() || memory_of("work space", work, work_bytes) == NULL ||
        !fits("a", a, &la, how_to.alignment(0)) || !fits("b", b, &lb, how_to.alignment(1)) ||
        !fits("c", c, &lc, how_to.alignment(2)) || !fits("d", out, &lc, how_to.alignment(3)))
        return CUBLAS_STATUS_INVALID_VALUE;
    const layout lbias = {lc.rows, 1, lc.rows, 1, 0, true};
    if (d.has_bias && (!lc.bf16 || lc.count > 1 || !fits("bias", d.bias, &lbias, 2)))
        return CUBLAS_STATUS_INVALID_VALUE;
    apart("a", a, &la, out, &lc);
    apart("b", b, &lb, out, &lc);
    if (c != out)
        apart("c", c, &lc, out, &lc);
    entry e = {};
    e.what = "cublasLtMatmul";
    e.run = [=] {
        memset(work, 0xff, work_bytes > 4096 ? 4096 : work_bytes); /* its own, and nobody else's */
        for (uint64_t i = 0; i < lc.count; i++) {
            const bool in_parts = how_to.parts() && lc.count > 1 && i % 2 != 0;
            multiply(d, la, lb, lc, x, (const char *)a + i * la.stride * size_of(&la),
                     (const char *)b + i * lb.stride * size_of(&lb), y,
                     (const char *)c + i * lc.stride * size_of(&lc),
                     (char *)out + i * lc.stride * size_of(&lc),
                     how_to.is[CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION],
                     (how_to.is[CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING] != 0) != in_parts);
        }
    };
    put(stream, std::move(e));
    return CUBLAS_STATUS_SUCCESS;
}
