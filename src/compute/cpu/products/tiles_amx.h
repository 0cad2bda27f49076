/* compute/cpu/products/tiles_amx.h - set up and release the tile registers of AMX. Only for files
 * built with AMX. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/* The operand of LDTILECFG. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "the processor's layout");

/* Eight tiles of 16 rows of 64 bytes. */
static inline void tiles_open(void)
{
    static const tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&config);
}

/* The system saves a thread's tiles at each context switch until they are released. */
static inline void tiles_close(void)
{
    _tile_release();
}
