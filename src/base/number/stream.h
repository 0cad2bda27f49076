/* base/number/stream.h - stores that bypass the caches, for memory that is larger than them. They
 * save the read of each cache line before it is written. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Copy n floats. Call lks__stream_end() before another thread may read them. */
static inline void lks__stream(float *to, const float *from, size_t n)
{
#ifdef __SSE2__
    size_t i = (16 - (uintptr_t)to % 16) % 16 / sizeof *to;
    i = i < n ? i : n;
    memcpy(to, from, i * sizeof *to);
    for (; i + 4 <= n; i += 4)
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    memcpy(to + i, from + i, (n - i) * sizeof *to);
#else
    memcpy(to, from, n * sizeof *to);
#endif
}

static inline void lks__stream_end(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}
