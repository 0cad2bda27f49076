/* base/number/cpu.h - the instructions of this machine, the level of kernels to use, and the
 * floating-point mode. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* A build has the levels of its architecture, in this order; each contains the ones before it. In
 * float32 all have the same bits. */
typedef enum lks__cpu_level {
    LKS__CPU_PLAIN = 0,       /* C, for any processor */
    LKS__CPU_NEON = 1,        /* ARM64 */
    LKS__CPU_AVX2 = 2,        /* x86-64: AVX2 + FMA */
    LKS__CPU_AVX512 = 3,      /* AVX-512 F, BW, DQ, VL */
    LKS__CPU_AVX512_BF16 = 4, /* plus its bfloat16 products; float32 as with AVX512 */
    LKS__CPU_AMX = 5,         /* plus bfloat16 products by tiles; the rest as with AVX512_BF16 */
} lks__cpu_level;

/* The level to use: the processor's best, or the one in LOCKSTEP_CPU. ERR_CONFIG for an unknown
 * name, ERR_SUPPORT for a level that the processor lacks. This call asks Linux for AMX, and the AMX
 * level is available only if Linux agrees; a signal's frame can then need some 12 KB. */
lks_status lks__cpu_level_get(lks__cpu_level *level_p);
/* The level in a program that isn't ours: at most AVX512_BF16, so that its signals' frames don't
 * change. */
lks_status lks__cpu_level_guest(lks__cpu_level *level_p);

const char *lks__cpu_level_name(lks__cpu_level level);

/* The processor's name, for logs; "unknown" if the system doesn't tell it. */
const char *lks__cpu_model(void);
enum { LKS__CPU_MODEL = 128 };
/* The same from a file in the form of /proc/cpuinfo. */
void lks__cpu_read_model(const char *path, char model[LKS__CPU_MODEL]);

/* Processors that this process may run on (its affinity mask). */
int lks__cpu_count(void);

/* Wait a few cycles in a loop that polls memory, so that the core's other thread can run. */
static inline void lks__cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::
                         : "memory"); /* as long as a pause on x86; `yield` does nothing on most */
#endif
}

/* --- floating-point mode -----------------------------------------------------------------------
 *
 * All arithmetic of the library runs in one mode: round to nearest, no traps, subnormals are kept.
 * Flushing them to zero isn't portable: x86 decides after rounding, ARM before. Part of the
 * numerics: docs/reference/numerics.md. */

/* A thread's mode and its exception flags. */
typedef struct lks__float_mode {
    uint64_t control, flags;
} lks__float_mode;

/* Set the library's mode in this thread, which must be one of ours. */
void lks__float_mode_set(void);

/* Set the library's mode temporarily in a caller's thread, then restore the caller's mode and
 * flags. Takes a few nanoseconds, or 20 if the caller's mode differs. */
lks__float_mode lks__float_mode_enter(void);
void lks__float_mode_leave(const lks__float_mode *callers);

/* Use it as the first line of a public function that computes, directly or in a function that it
 * calls: the rest of the function runs in the library's mode. Compilers may move arithmetic on
 * local variables across this line, but not arithmetic on memory. */
#define LKS__FLOAT_MODE()                                                                          \
    __attribute__((unused, cleanup(lks__float_mode_leave))) lks__float_mode callers_mode_ =        \
        lks__float_mode_enter()
