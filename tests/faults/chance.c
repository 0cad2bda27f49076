#include "faults/chance.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "ckpt/scratch.h"

struct chance chance = {.seed = 1, .only = -1, .run = -1};

static uint64_t random_state;

bool chance_options(int argc, char **argv, int n_runs)
{
    chance.n_runs = n_runs;
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "--runs=%d", &chance.n_runs) != 1 &&
            sscanf(argv[i], "--seed=%d", &chance.seed) != 1 &&
            sscanf(argv[i], "--only=%d", &chance.only) != 1) {
            fprintf(stderr, "can't read the argument %s\n", argv[i]);
            return false;
        }
    printf("seed %d, %d runs\n", chance.seed, chance.only < 0 ? chance.n_runs : 1);
    return true;
}

bool chance_next(void)
{
    const bool last =
        chance.only >= 0 ? chance.run == chance.only : chance.run + 1 >= chance.n_runs;
    if (last)
        return false;
    chance.run = chance.only >= 0 ? chance.only : chance.run + 1;
    random_state = 0x9E3779B97F4A7C15u * ((uint64_t)chance.seed << 32 | (uint64_t)(chance.run + 1));
    return true;
}

const char *chance_folder(void)
{
    const char *base = getenv("TMPDIR");
    const char *path =
        lks_test_text("%s/lockstep-campaign-XXXXXX", base != NULL && *base != '\0' ? base : "/tmp");
    assert_non_null(mkdtemp((char *)path));
    return path;
}

int draw(int n)
{
    return (int)(next_random(&random_state) >> 33) % n;
}

void sleep_us(int us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}
