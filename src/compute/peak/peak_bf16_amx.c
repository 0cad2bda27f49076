/* compute/peak/peak_bf16_amx.c - multiply-adds of tiles of bfloat16 at the core's full speed. */
#include "compute/cpu/products/tiles_amx.h"
#include "compute/cpu/vector/levels.h"

enum { SUMS = 4, ROUNDS = 1 << 12, ROWS = 16, ROW_BYTES = 64 };

static double sum_of(const float *x)
{
    double sum = 0.0;
    for (int i = 0; i < ROWS * ROW_BYTES / (int)sizeof *x; i++)
        sum += (double)x[i];
    return sum;
}

double lks__peak_bf16_amx(void)
{
    uint16_t ones[ROWS * ROW_BYTES / sizeof(uint16_t)];
    float x[SUMS][ROWS * ROW_BYTES / sizeof(float)];
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        ones[i] = 0x3f80;

    tiles_open(); /* all zero */
    _tile_loadd(4, ones, ROW_BYTES);
    _tile_loadd(5, ones, ROW_BYTES);
    _tile_loadd(6, ones, ROW_BYTES);
    _tile_loadd(7, ones, ROW_BYTES);
    for (int r = 0; r < ROUNDS; r++) { /* each adds 32 products of 1 to each of 256 sums */
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, x[0], ROW_BYTES);
    _tile_stored(1, x[1], ROW_BYTES);
    _tile_stored(2, x[2], ROW_BYTES);
    _tile_stored(3, x[3], ROW_BYTES);
    tiles_close();

    double done = 0.0;
    for (int c = 0; c < SUMS; c++)
        done += sum_of(x[c]);
    return 2.0 * done;
}
