/* kernels/x86/peak_bf16_amx.c - how fast this core multiplies and adds tiles of bfloat16. */
#include "base/sys.h"
#include "kernels/x86/tiles_amx.h"
#include "kernels/x86/x86.h"

enum { SUMS = 4, ROUNDS = 1 << 12, FLOPS = 2 * 16 * 16 * 32 };

double lks__peak_bf16_amx(double seconds)
{
    double start = lks__sys_now(), elapsed, flops = 0;
    tiles_open(); /* all zero, because the speed doesn't depend on the values */
    do {
        for (int r = 0; r < ROUNDS; r++) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        flops += (double)FLOPS * SUMS * ROUNDS;
        elapsed = lks__sys_now() - start;
    } while (elapsed < seconds);
    tiles_close();
    return flops / elapsed;
}
