#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const char *const level_names[] = {
    [LKS__CPU_REF] = "ref",
    [LKS__CPU_AVX2] = "avx2",
    [LKS__CPU_AVX512] = "avx512",
    [LKS__CPU_AVX512_BF16] = "avx512_bf16",
};

/* gcc's check is also whether the system saves the wide registers (XGETBV). */
static lks__cpu_level best_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return LKS__CPU_REF;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return LKS__CPU_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? LKS__CPU_AVX512_BF16 : LKS__CPU_AVX512;
#else
    return LKS__CPU_REF;
#endif
}

const char *lks__cpu_level_name(lks__cpu_level level)
{
    return level_names[level];
}

lks_status lks__cpu_level_get(lks__cpu_level *level_p)
{
    const char *want = getenv("LOCKSTEP_CPU");
    lks__cpu_level best = best_level();
    if (want == NULL || want[0] == '\0') {
        *level_p = best;
        return LKS_OK;
    }
    for (int i = 0; i < (int)(sizeof level_names / sizeof level_names[0]); i++) {
        if (strcmp(want, level_names[i]) != 0)
            continue;
        if (i > (int)best)
            return lks__fail(LKS_ERR_SUPPORT, "LOCKSTEP_CPU=%s: this processor only has level %s",
                             want, level_names[best]);
        *level_p = (lks__cpu_level)i;
        return LKS_OK;
    }
    char shown[64];
    return lks__fail(LKS_ERR_CONFIG,
                     "LOCKSTEP_CPU=%s: the levels are ref, avx2, avx512 and avx512_bf16",
                     lks__escape(shown, sizeof shown, want, strlen(want)));
}

const char *lks__cpu_model(void)
{
    static char model[128];
    if (model[0] != '\0')
        return model;
    snprintf(model, sizeof model, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (f == NULL)
        return model;
    char line[256];
    while (fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            colon += strspn(colon, ": \t");
            lks__escape(model, sizeof model, colon, strcspn(colon, "\n"));
            break;
        }
    }
    fclose(f);
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

void lks__cpu_flush_denormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* FTZ and DAZ */
#endif
}
