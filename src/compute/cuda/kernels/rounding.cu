/* compute/cuda/kernels/rounding.cu - floats as bfloat16, for products. */
#include "compute/cuda/cuda.h"
#include "compute/cuda/common/rows.h"

static const size_t CHUNK = 8192; /* elements of a block, if there are no rows */

/* A block for each row of `width`, of which the last may have fewer: there are n elements with
 * those between rows. blockIdx.y: the matrix. */
template <int N>
static __global__ void __launch_bounds__(256) round_rows(const lks__cuda_rounding r, size_t n)
{
    const float *x = r.x + blockIdx.y * r.stride_x + blockIdx.x * r.ldx;
    lks_half *y = (lks_half *)r.y + blockIdx.y * r.stride_y + blockIdx.x * r.ldy;
    const size_t left = n - blockIdx.x * r.ldx, width = r.width < left ? r.width : left;
    for (size_t c = (size_t)threadIdx.x * N; c < width; c += (size_t)blockDim.x * N)
        lks_store<N>(y + c, lks_load<N>(x + c));
}

extern "C" void lks__cuda_round(const lks__exec *ex, const lks__cuda_rounding *rounding)
{
    lks__cuda_rounding r = *rounding;
    size_t n = r.rows * r.ldx;
    if (r.rows == 0 || r.width == 0 || r.count == 0)
        return;
    if (r.ldx == r.width && r.ldy == r.width) { /* no gaps: other rows will do */
        r.ldx = r.ldy = r.width = n < CHUNK ? n : CHUNK;
        r.rows = (n + r.width - 1) / r.width;
    }
    lks__cuda_count(ex, 6.0 * (double)r.count * (double)r.rows * (double)r.width, 0.0);
    const bool fours = n % 4 == 0 && r.width % 4 == 0 && lks_in_fours(r.ldx, r.x, r.y) &&
                       r.ldy % 4 == 0 && r.stride_x % 4 == 0 && r.stride_y % 4 == 0;
    LKS_LAUNCH_FOURS(round_rows, fours, dim3((unsigned)r.rows, (unsigned)r.count),
                     dim3(lks_row_threads(r.width, fours)), lks__cuda_stream(ex), r, n);
}
