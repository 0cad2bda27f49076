/* compute/cpu/kernels.c - which version of each kernel a level uses. */
#include "compute/cpu/kernels.h"

#include "compute/cpu/products/gemm_dnnl.h"
#include "compute/cpu/products/kinds.h"
#include "compute/cpu/vector/levels.h"

/* 128 rows keep oneDNN (2.6) at 95 % of a core's peak, and the operands of a tile in the
 * second-level cache. Blocks of 64 queries need fewer calls than smaller ones, and waste less on
 * masked scores than larger ones. */
const lks__tiles lks__gemm_tiles = {.rows = LKS__TILE_ROWS,
                                    .tall_rows = LKS__TILE_ROWS,
                                    .cols = 512,
                                    .slow_columns = true,
                                    .panel = 64,
                                    .queries = 64,
                                    .far_queries = 64};

/* Products of operands that are rounded to bfloat16 copy both operands of a tile (but AMX's, which
 * have their own tiles): the squarer the tile, the less is copied. Use tall tiles if there are
 * enough of them for many threads. */
static const lks__tiles rounded_tiles = {.rows = 128,
                                         .tall_rows = 256,
                                         .tall_from = 1024,
                                         .cols = 256,
                                         .panel = 128,
                                         .queries = 64,
                                         .far_queries = 64};

static const lks__kernels table_plain = {
#define X(name, type) .name = lks__##name##_plain,
    LKS__KERNEL_MAP(X)
#undef X
        .level = LKS__CPU_PLAIN,
    .gemm_bf16_tiles = &rounded_tiles,
};

void lks__kernels_open_own(lks__cpu_level level, lks__kernels *k)
{
    *k = table_plain; /* always complete; a level replaces some entries */
    lks__kernels_of_level(level, k);
    k->level = level;
}

lks_status lks__kernels_open(lks__cpu_level level, lks__kernels *k)
{
    lks__kernels table;
    lks__kernels_open_own(level, &table);
    if (level >= LKS__CPU_AVX2 && lks__kernels_have_library()) {
        LKS__TRY(lks__gemm_dnnl_open(level));
        lks__kinds_open(lks__gemm_dnnl, table.gemm);
        table.gemm = lks__kinds_gemm;
    }
    *k = table;
    return LKS_OK;
}

const char *lks__kernels_gemm_library(const lks__kernels *k)
{
    return k->gemm == lks__kinds_gemm ? lks__gemm_dnnl_version() : "own";
}
