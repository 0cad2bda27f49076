#include "faults/chance.h"

#include <errno.h>
#include <time.h>

#include "ckpt/scratch.h"

static uint64_t chance;

void chance_begin(int seed, int index)
{
    chance = 0x9E3779B97F4A7C15u * ((uint64_t)seed << 32 | (uint64_t)(index + 1));
}

bool chance_options(int argc, char **argv, int *n_runs, int *seed, int *only)
{
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "--runs=%d", n_runs) != 1 && sscanf(argv[i], "--seed=%d", seed) != 1 &&
            sscanf(argv[i], "--only=%d", only) != 1) {
            fprintf(stderr, "can't read the argument %s\n", argv[i]);
            return false;
        }
    return true;
}

int draw(int n)
{
    return (int)(next_random(&chance) >> 33) % n;
}

void sleep_us(int us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}
