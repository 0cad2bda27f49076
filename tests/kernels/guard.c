#include "kernels/guard.h"
#include "support.h"

#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, MAX_BUFFERS = 64, CANARY = 0xC5 };

static struct buffer {
    unsigned char *map; /* guard page, body, guard page */
    size_t body_bytes;
    size_t first, bytes; /* the buffer within the body */
} buffers[MAX_BUFFERS];
static int n_buffers;

float *guard_copy(const float *x, size_t n, guard_place place)
{
    assert_true(n_buffers < MAX_BUFFERS);
    struct buffer *b = &buffers[n_buffers++];
    b->bytes = n * sizeof(float);
    b->body_bytes = (b->bytes + sizeof(float) + PAGE - 1) / PAGE * PAGE;
    b->first = place == GUARD_START   ? 0
               : place == GUARD_SHIFT ? sizeof(float)
                                      : b->body_bytes - b->bytes;

    b->map = mmap(NULL, b->body_bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b->map != MAP_FAILED);
    unsigned char *body = b->map + PAGE;
    assert_int_equal(mprotect(body, b->body_bytes, PROT_READ | PROT_WRITE), 0);
    memset(body, CANARY, b->body_bytes);
    if (n > 0)
        memcpy(body + b->first, x, b->bytes);
    return (float *)(void *)(body + b->first);
}

void guard_release(void)
{
    for (int i = 0; i < n_buffers; i++) {
        const struct buffer *b = &buffers[i];
        const unsigned char *body = b->map + PAGE;
        for (size_t j = 0; j < b->body_bytes; j++)
            if ((j < b->first || j >= b->first + b->bytes) && body[j] != CANARY)
                fail_msg("byte %zd from the start of buffer %d of %zu bytes was written",
                         (ptrdiff_t)(j - b->first), i, b->bytes);
        munmap(b->map, b->body_bytes + 2 * PAGE);
    }
    n_buffers = 0;
}

void fill_random(float *x, size_t n, float scale, unsigned seed)
{
    uint64_t state = seed; /* Knuth's MMIX generator */
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(state >> 32) * 0x1p-31f * scale;
    }
}
