#include "compute/cuda/questions.h"
#include "compute/cuda/cuda.h"

static size_t parts(size_t rows, size_t of)
{
    return (rows + of - 1) / of;
}

size_t lks__cuda_layernorm_partial_floats(size_t rows, size_t C)
{
    return parts(rows, LKS__CUDA_NORM_ROWS) * 2 * C;
}

size_t lks__cuda_golf_partial_floats(size_t rows, size_t C, size_t n_heads)
{
    const size_t line = LKS__CUDA_GOLF_VECTORS * C;
    return parts(rows, LKS__CUDA_GOLF_ROWS) * (line > n_heads ? line : n_heads);
}

/* Activations are stored in the type of products' operands. */
size_t lks__cuda_act_bytes(bool bf16)
{
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* 2,560 rows with GPT-2's vocabulary. For each chunk the product to the head's weights reads and
 * writes their whole gradient, 309 MB for GPT-2 124M: with the CPU's 128 rows that takes longer
 * than everything else in the head. */
size_t lks__cuda_head_bytes(void)
{
    return LKS__CUDA_HEAD_BYTES;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t lks__cuda_sums_bytes(size_t rows, size_t columns)
{
    /* At most rows / (SUM_ROWS - 1) + 1 lines, with those of further rounds. */
    return rows <= LKS__CUDA_SUM_ROWS
               ? 0
               : (rows / (LKS__CUDA_SUM_ROWS - 1) + 2) * columns * sizeof(float);
}

/* Four numbers of a row: the embedding's gradient has them. */
size_t lks__cuda_sort_bytes(size_t rows)
{
    return 4 * rows * sizeof(int32_t);
}

/* The sizes that callers of lks__cuda_work() request; and in bfloat16 a rounded copy of the
 * parameters, and of the largest factors of updates. */
size_t lks__cuda_work_bytes(const lks__work_use *use)
{
    const size_t tokens = lks__cuda_sort_bytes(use->rows);
    const size_t deltas = use->rows * use->n_heads * sizeof(float); /* attention's backward */
    const size_t sums = lks__cuda_sums_bytes(use->rows, use->columns);
    const size_t rounded = use->params + use->factors[0] + use->factors[1];
    return larger(larger(tokens, deltas), sums) + (use->bf16 ? rounded * sizeof(uint16_t) : 0);
}

const lks__layers lks__cuda_questions = {
#define X(name) .name = lks__cuda_##name,
    LKS__LAYER_QUESTION_MAP(X)
#undef X
};
