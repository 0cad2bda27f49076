/* cuda/questions.h - sizes on which kernels and the answers to questions (layers.h) depend, and the
 * table of these answers. They need no GPU and no library of NVIDIA's, so the program has them
 * without the module, too: a run can be planned anywhere. */
#ifndef LKS_COMPUTE_CUDA_QUESTIONS_H
#define LKS_COMPUTE_CUDA_QUESTIONS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "compute/layers.h"

enum {
    LKS__CUDA_NORM_ROWS = 32,           /* of a line of a LayerNorm's `partial` */
    LKS__CUDA_GOLF_ROWS = 16,           /* of a line of golf's `partial` */
    LKS__CUDA_GOLF_VECTORS = 3,         /* vectors of C floats in such a line */
    LKS__CUDA_SUM_ROWS = 512,           /* that a block of threads adds up */
    LKS__CUDA_SORT_ROWS = 2048,         /* that a block of threads sorts by token */
    LKS__CUDA_HEAD_BYTES = 512 << 20,   /* of a chunk of logits in float32 */
    LKS__CUDA_PRODUCT_BYTES = 32 << 20, /* work space of matrix products */
    /* Memory of the GPU for CUDA's context, and for code that is loaded when it is first used. Both
     * are estimates. */
    LKS__CUDA_CONTEXT_BYTES = 500 << 20,
    LKS__CUDA_LATER_BYTES = 256 << 20,
};

extern const lks__layers lks__cuda_questions; /* without operations */

#ifdef __cplusplus
}
#endif

#endif
