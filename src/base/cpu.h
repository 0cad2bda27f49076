/* base/cpu.h - which instructions this machine has, and which level of kernels to use. */
#ifndef LKS_BASE_CPU_H
#define LKS_BASE_CPU_H

#include "base/status.h"

/* Levels are ordered: ranks on mixed machines agree on the lowest. */
typedef enum lks__cpu_level {
    LKS__CPU_REF = 0,         /* plain C, our own plain GEMM */
    LKS__CPU_AVX2 = 1,        /* AVX2 + FMA */
    LKS__CPU_AVX512 = 2,      /* AVX-512 F, BW, DQ, VL */
    LKS__CPU_AVX512_BF16 = 3, /* and its bfloat16 products; float32 as at AVX512 */
    LKS__CPU_AMX = 4,         /* and bfloat16 products by tiles; the rest as at AVX512_BF16 */
} lks__cpu_level;

/* The level to use: the best that the processor has, or the one that LOCKSTEP_CPU names. ERR_CONFIG
 * for an unknown name, ERR_SUPPORT for a level that the processor lacks. This call asks Linux for
 * AMX, and the AMX level exists only if Linux agrees; a signal's frame can then take some 12 KB. */
lks_status lks__cpu_level_get(lks__cpu_level *level_p);

const char *lks__cpu_level_name(lks__cpu_level level);
const char *lks__cpu_model(void); /* the processor's own name, for logs */

/* Processors that this process may run on (its affinity mask). */
int lks__cpu_count(void);

/* Subnormal floats cost hundreds of cycles and don't help training: every thread that computes
 * flushes them to zero. Part of the numerics: docs/numerics.md. */
void lks__cpu_flush_denormals(void);

#endif
