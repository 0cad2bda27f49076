/* compute/cpu/kernels.c - which version of each kernel a level uses. */
#include "compute/cpu/kernels.h"

#include "compute/cpu/products/gemm_dnnl.h"
#if defined(__x86_64__)
#include "compute/cpu/vector/x86.h"
#endif

static const lks__kernels table_plain = {
#define X(name, type) .name = lks__##name##_plain,
    LKS__KERNEL_MAP(X)
#undef X
        .level = LKS__CPU_PLAIN,
    .gemm_tiles = &lks__gemm_tiles_plain,
    .gemm_bf16_tiles = &lks__gemm_bf16_tiles_plain,
};

lks_status lks__kernels_open_own(lks__cpu_level level, lks__kernels *k)
{
    *k = table_plain; /* always complete; a level replaces some entries */
    if (level > LKS__CPU_PLAIN) {
#if defined(__x86_64__)
        lks__kernels_x86(level, k);
#endif
        k->gemm_tiles = lks__gemm_dnnl_tiles(level);
        k->level = level;
    }
    return LKS_OK;
}

lks_status lks__kernels_open(lks__cpu_level level, lks__kernels *k)
{
    lks__kernels table;
    LKS__TRY(lks__kernels_open_own(level, &table));
    if (level > LKS__CPU_PLAIN && lks__kernels_have_library()) {
        LKS__TRY(lks__gemm_dnnl_open(level));
        table.gemm = lks__gemm_dnnl;
    }
    *k = table;
    return LKS_OK;
}

bool lks__kernels_have_library(void)
{
    return lks__gemm_dnnl_is_there();
}

const char *lks__kernels_warning(const lks__kernels *k)
{
    if (k->level == LKS__CPU_PLAIN || k->gemm == lks__gemm_dnnl)
        return NULL;
    return "oneDNN (" LKS__ONEDNN_PACKAGES
           ") is not installed here, or not on all hosts, so lockstep's own matrix products are "
           "used, which are slower and give different last digits";
}

void lks__kernels_thread_init(void)
{
    lks__gemm_dnnl_thread_init();
}

lks_status lks__kernels_check(void)
{
    return lks__gemm_dnnl_check();
}

const char *lks__kernels_gemm_library(const lks__kernels *k)
{
    return k->gemm == lks__gemm_dnnl ? lks__gemm_dnnl_version() : "own";
}
