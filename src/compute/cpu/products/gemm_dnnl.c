#include "compute/cpu/products/gemm_dnnl.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The part of oneDNN's C interface that is used here, the same in versions 2 and 3 (the number in
 * the file's name is that of the interface). Declared here so that building lockstep needs no
 * oneDNN. */
#define LIBRARY "oneDNN's library"

enum {
    N_MINORS = 32, /* of version 3: Debian 13's file is libdnnl.so.3.6 */
    N_NAMES = 2 + N_MINORS,
    DNNL_SUCCESS = 0,
    DNNL_OUT_OF_MEMORY = 1,
    DNNL_CPU_ISA_AVX2 = 0x7,
    DNNL_CPU_ISA_AVX512_CORE = 0x27,
    DNNL_FPMATH_STRICT = 0, /* no bfloat16 inside, even if ONEDNN_DEFAULT_FPMATH_MODE asks for it */
};

typedef struct dnnl_version_head {
    int major, minor, patch;
} dnnl_version_head;

typedef int dnnl_sgemm_fn(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                          float *c, int64_t ldc);

static struct {
    pthread_mutex_t mutex; /* guards loading; later the rest is only read */
    bool is_open;
    void *lib; /* NULL: not loaded */
    lks__cpu_level level;
    char version[32];
    dnnl_sgemm_fn *sgemm;
    void (*omp_set_num_threads)(int); /* NULL if the library was built without OpenMP */
    atomic_int failure;               /* the library's first status other than success */
} dnnl = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static lks_status missing(const char *what)
{
    return lks__fail(LKS_ERR_SUPPORT,
                     "cannot use the matrix library oneDNN: %s; install it (" LKS__ONEDNN_PACKAGES
                     "), or set LOCKSTEP_CPU=plain for lockstep's own slow kernels",
                     what);
}

/* Every part of the library that is used must be capped at `level` before its first use. */
static lks_status cap(void *lib, lks__cpu_level level)
{
    int (*set_max_cpu_isa)(int) = (int (*)(int))dlsym(lib, "dnnl_set_max_cpu_isa");
    int (*get_effective_cpu_isa)(void) = (int (*)(void))dlsym(lib, "dnnl_get_effective_cpu_isa");
    int (*set_fpmath_mode)(int) = (int (*)(int))dlsym(lib, "dnnl_set_default_fpmath_mode");
    if (set_max_cpu_isa == NULL || get_effective_cpu_isa == NULL || set_fpmath_mode == NULL)
        return missing(LIBRARY " lacks the functions that cap its instructions");

    int isa = level >= LKS__CPU_AVX512 ? DNNL_CPU_ISA_AVX512_CORE : DNNL_CPU_ISA_AVX2;
    if (set_max_cpu_isa(isa) != DNNL_SUCCESS || get_effective_cpu_isa() != isa)
        return missing(LIBRARY " cannot be capped at this kernel level's instructions");
    if (set_fpmath_mode(DNNL_FPMATH_STRICT) != DNNL_SUCCESS)
        return missing(LIBRARY " cannot be kept to float32");
    return LKS_OK;
}

/* The library's names: libdnnl.so.2, libdnnl.so.3, then libdnnl.so.3.MINOR from the newest on. */
static const char *library_name(int i, char name[32])
{
    if (i < 2)
        snprintf(name, 32, "libdnnl.so.%d", 2 + i);
    else
        snprintf(name, 32, "libdnnl.so.3.%d", N_NAMES - 1 - i);
    return name;
}

/* The reason for the first name that can't be loaded is written to `why`. */
static void *find(char why[256])
{
    char name[32];
    why[0] = '\0';
    for (int i = 0; i < N_NAMES && dnnl.lib == NULL; i++) {
        dnnl.lib = dlopen(library_name(i, name), RTLD_NOW | RTLD_LOCAL);
        if (dnnl.lib != NULL || why[0] != '\0')
            continue;
        const char *error = dlerror();
        lks__escape(why, 256, error, strlen(error));
    }
    return dnnl.lib;
}

bool lks__kernels_have_library(void)
{
    char why[256];
    pthread_mutex_lock(&dnnl.mutex);
    const bool found = find(why) != NULL;
    pthread_mutex_unlock(&dnnl.mutex);
    return found;
}

bool lks__gemm_dnnl_is_open(void)
{
    return dnnl.is_open;
}

static lks_status load(lks__cpu_level level)
{
    char first[256];
    void *lib = find(first);
    if (lib == NULL)
        return missing(first);
    const dnnl_version_head *(*version)(void) =
        (const dnnl_version_head *(*)(void))dlsym(lib, "dnnl_version");
    dnnl_sgemm_fn *sgemm = (dnnl_sgemm_fn *)dlsym(lib, "dnnl_sgemm");
    lks_status st =
        version == NULL || sgemm == NULL ? missing(LIBRARY " lacks dnnl_sgemm") : cap(lib, level);
    if (st != LKS_OK)
        return st;
    const dnnl_version_head *v = version();
    snprintf(dnnl.version, sizeof dnnl.version, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    dnnl.omp_set_num_threads = (void (*)(int))dlsym(lib, "omp_set_num_threads");
    dnnl.sgemm = sgemm;
    dnnl.level = level;
    dnnl.is_open = true;
    return LKS_OK;
}

lks_status lks__gemm_dnnl_open(lks__cpu_level level)
{
    pthread_mutex_lock(&dnnl.mutex);
    lks_status st = LKS_OK;
    if (!dnnl.is_open)
        st = load(level);
    else if (dnnl.level != level)
        st = lks__fail(LKS_ERR_ARG, "oneDNN is already capped at kernel level %s in this process",
                       lks__cpu_level_name(dnnl.level));
    pthread_mutex_unlock(&dnnl.mutex);
    if (st == LKS_OK)
        lks__kernels_thread_init();
    return st;
}

/* OpenMP keeps the number of threads separately for each of our threads, and children would inherit
 * OMP_NUM_THREADS. So every thread that calls the library sets it once. */
void lks__kernels_thread_init(void)
{
    if (dnnl.omp_set_num_threads != NULL)
        dnnl.omp_set_num_threads(1);
}

const char *lks__gemm_dnnl_version(void)
{
    return dnnl.version;
}

lks_status lks__kernels_check(void)
{
    int failure = atomic_load(&dnnl.failure);
    if (failure == DNNL_SUCCESS)
        return LKS_OK;
    if (failure == DNNL_OUT_OF_MEMORY)
        return lks__fail(LKS_ERR_NOMEM,
                         "%s ran out of memory in a matrix product; use fewer "
                         "threads or ranks, or a smaller batch",
                         dnnl.version);
    return lks__fail(
        LKS_ERR_SUPPORT,
        "%s refused a matrix product (its status %d); LOCKSTEP_CPU=plain doesn't need it",
        dnnl.version, failure);
}

void lks__gemm_dnnl(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                    const lks__real *a, size_t lda, const lks__real *b, size_t ldb, lks__real beta,
                    lks__real *c, size_t ldc)
{
    int st = dnnl.sgemm(ta, tb, (int64_t)m, (int64_t)n, (int64_t)k, alpha, a, (int64_t)lda, b,
                        (int64_t)ldb, beta, c, (int64_t)ldc);
    if (st == DNNL_SUCCESS)
        return;

    int none = DNNL_SUCCESS;
    atomic_compare_exchange_strong(&dnnl.failure, &none, st);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = NAN;
}
