#include "base/number/cpu.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const level_names[] = {
    [LKS__CPU_PLAIN] = "plain",   [LKS__CPU_NEON] = "neon", [LKS__CPU_AVX2] = "avx2",
    [LKS__CPU_AVX512] = "avx512", [LKS__CPU_AMX] = "amx",   [LKS__CPU_AVX512_BF16] = "avx512_bf16",
};

/* The levels of this architecture, lowest first. */
#if defined(__x86_64__)
#define LEVELS "x86-64 are plain, avx2, avx512, avx512_bf16 and amx"
static const lks__cpu_level levels[] = {LKS__CPU_PLAIN, LKS__CPU_AVX2, LKS__CPU_AVX512,
                                        LKS__CPU_AVX512_BF16, LKS__CPU_AMX};
#elif defined(__aarch64__)
#define LEVELS "ARM64 are plain and neon"
static const lks__cpu_level levels[] = {LKS__CPU_PLAIN, LKS__CPU_NEON};
#else
#define LEVELS "this architecture are plain"
static const lks__cpu_level levels[] = {LKS__CPU_PLAIN};
#endif
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

#if defined(__x86_64__)
/* Tiles are 8 KB of state per thread, so a process must ask Linux before it uses them. Linux
 * refuses if a thread's signal stack is too small for them. The permission holds for all threads
 * and for forked processes, but not after exec. */
static bool tiles_granted(void)
{
    enum { REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 }; /* asm/prctl.h defines it since Linux 5.16 */
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, TILE_DATA) == 0;
}

static bool has_tiles(void)
{
#if defined(LKS__BUILT_AMX)
    const bool built = true;
#else
    const bool built = false;
#endif
    const unsigned needed = 1u << 24 | 1u << 22; /* AMX-TILE, AMX-BF16 */
    unsigned a, b, c, d;
    return built && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed &&
           tiles_granted();
}
#endif

/* True if the processor has one of `levels`. gcc's check includes whether the system saves the wide
 * registers (XGETBV). */
static bool has(lks__cpu_level level)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (level) {
    case LKS__CPU_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case LKS__CPU_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case LKS__CPU_AVX512_BF16:
        return __builtin_cpu_supports("avx512bf16");
    case LKS__CPU_AMX:
        return has_tiles();
    default:
        break;
    }
#endif
    return true; /* C; and every ARM64 processor has NEON */
}

/* The highest level up to `most` that the processor supports, together with all lower levels. */
static lks__cpu_level best_level(lks__cpu_level most)
{
    int best = 0;
    while (best + 1 < N_LEVELS && levels[best + 1] <= most && has(levels[best + 1]))
        best++;
    return levels[best];
}

const char *lks__cpu_level_name(lks__cpu_level level)
{
    return level_names[level];
}

static lks_status get_level(lks__cpu_level most, lks__cpu_level *level_p)
{
    const char *want = getenv("LOCKSTEP_CPU");
    if (want == NULL || want[0] == '\0') {
        *level_p = best_level(most);
        return LKS_OK;
    }
    if (strcmp(want, "ref") == 0) /* the name until version 0.4 */
        want = level_names[LKS__CPU_PLAIN];
    for (int i = 0; i < N_LEVELS; i++) {
        if (strcmp(want, level_names[levels[i]]) != 0)
            continue;
        const lks__cpu_level wanted = levels[i] < most ? levels[i] : most,
                             best = best_level(wanted);
        if (best != wanted)
            return lks__fail(LKS_ERR_SUPPORT, "LOCKSTEP_CPU=%s: this processor only has level %s",
                             want, level_names[best]);
        *level_p = best;
        return LKS_OK;
    }
    return lks__fail(LKS_ERR_CONFIG, "LOCKSTEP_CPU=%s: the levels on " LEVELS,
                     lks__shown(want, 64));
}

lks_status lks__cpu_level_get(lks__cpu_level *level_p)
{
    return get_level(LKS__CPU_AMX, level_p);
}

lks_status lks__cpu_level_guest(lks__cpu_level *level_p)
{
    return get_level(LKS__CPU_AVX512_BF16, level_p);
}

/* ARM64 processors have numbers in place of a name: a company, and its number for the part. */
static const struct arm_part {
    unsigned implementer, part;
    const char *name;
} arm_parts[] = {
    {0x41, 0xd03, "ARM Cortex-A53"},  {0x41, 0xd05, "ARM Cortex-A55"},
    {0x41, 0xd08, "ARM Cortex-A72"},  {0x41, 0xd0b, "ARM Cortex-A76"},
    {0x41, 0xd0c, "ARM Neoverse-N1"}, {0x41, 0xd40, "ARM Neoverse-V1"},
    {0x41, 0xd49, "ARM Neoverse-N2"}, {0x41, 0xd4f, "ARM Neoverse-V2"},
    {0x46, 0x001, "Fujitsu A64FX"},   {0x61, 0x022, "Apple M1 (efficiency cores)"},
    {0x61, 0x023, "Apple M1"},        {0xc0, 0xac3, "Ampere-1"},
};

static void name_arm(unsigned implementer, unsigned part, char model[LKS__CPU_MODEL])
{
    for (size_t i = 0; i < sizeof arm_parts / sizeof arm_parts[0]; i++)
        if (arm_parts[i].implementer == implementer && arm_parts[i].part == part) {
            snprintf(model, LKS__CPU_MODEL, "%s", arm_parts[i].name);
            return;
        }
    snprintf(model, LKS__CPU_MODEL, "ARM64, implementer 0x%02x, part 0x%03x", implementer, part);
}

void lks__cpu_read_model(const char *path, char model[LKS__CPU_MODEL])
{
    snprintf(model, LKS__CPU_MODEL, "unknown");
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return;
    char line[256];
    unsigned implementer = 0, part;
    while (fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            colon += strspn(colon, ": \t");
            lks__escape(model, LKS__CPU_MODEL, colon, strcspn(colon, "\n"));
            break;
        }
        (void)sscanf(line, "CPU implementer : %x", &implementer);
        if (sscanf(line, "CPU part : %x", &part) == 1) /* fast cores come last */
            name_arm(implementer, part, model);
    }
    fclose(f);
}

const char *lks__cpu_model(void)
{
    static char model[LKS__CPU_MODEL];
    if (model[0] == '\0')
        lks__cpu_read_model("/proc/cpuinfo", model);
    return model;
}

int lks__cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* --- floating-point mode -------------------------------------------------------------------- */

#if defined(__x86_64__)

/* MXCSR has control bits and flags. OUR_MODE: no traps, rounds to nearest, keeps subnormals. */
enum { FLAGS = 0x3f, OUR_MODE = 0x1f80 };

static lks__float_mode get_mode(void)
{
    const unsigned all = _mm_getcsr();
    return (lks__float_mode){.control = all & ~(unsigned)FLAGS, .flags = all & FLAGS};
}

static void put_mode(const lks__float_mode *mode)
{
    _mm_setcsr((unsigned)(mode->control | mode->flags));
}

#elif defined(__aarch64__)

/* FPCR has control bits, FPSR the flags. */
enum { OUR_MODE = 0 };

static lks__float_mode get_mode(void)
{
    lks__float_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode.control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(mode.flags));
    return mode;
}

static void put_mode(const lks__float_mode *mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode->control) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(mode->flags) : "memory");
}

#else

enum { OUR_MODE = 0 };

static lks__float_mode get_mode(void)
{
    return (lks__float_mode){0};
}

static void put_mode(const lks__float_mode *mode)
{
}

#endif

void lks__float_mode_set(void)
{
    const lks__float_mode ours = {.control = OUR_MODE};
    put_mode(&ours);
}

lks__float_mode lks__float_mode_enter(void)
{
    const lks__float_mode callers = get_mode();
    if (callers.control != OUR_MODE)
        lks__float_mode_set();
    return callers;
}

void lks__float_mode_leave(const lks__float_mode *callers)
{
    const lks__float_mode now = get_mode();
    if (now.control != callers->control || now.flags != callers->flags)
        put_mode(callers);
}
