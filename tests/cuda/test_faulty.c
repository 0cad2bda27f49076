/* The harness finds what it is there for: faulty.cu's faults, one by one, in the build that should
 * find it, and none in its kernels without a fault. */
#include "support.h"

#include <string.h>

#define PLAIN   LKS_TEST_FAULTY "_plain"
#define ADDRESS LKS_TEST_FAULTY "_address"
#define THREAD  LKS_TEST_FAULTY "_thread"

static const struct {
    const char *name, *program, *says;
} faults[] = {
    {"early_return", PLAIN, "which not all others reach"},
    {"other_barrier", PLAIN, ", but thread "},
    {"barrier_in_branch", PLAIN, ", but thread "},
    {"shuffle_in_branch", PLAIN, "which not all others reach"},
    {"part_of_mask", PLAIN, "a shuffle with the mask 0xffff"},
    {"no_barrier_before_use", PLAIN, "a result is NaN"},
    {"no_barrier_before_use", THREAD, "data race"},
    {"no_barrier_after_use", PLAIN, "other bits in another order"},
    {"no_barrier_after_use", THREAD, "data race"},
    {"warp_barrier_for_block", THREAD, "data race"},
    {"shuffle_for_barrier", THREAD, "data race"},
    {"shared_too_short", ADDRESS, "heap-buffer-overflow"},
    {"shared_not_written", PLAIN, "a result is NaN"},
    {"row_too_long", ADDRESS, "heap-buffer-overflow"},
    {"row_before", ADDRESS, "heap-buffer-overflow"},
    {"blocks_race", PLAIN, "other bits in another order"},
    {"blocks_race", THREAD, "data race"},
    {"order_of_blocks", PLAIN, "other bits in another order"},
    {"order_of_threads", PLAIN, "other bits in another order"},
    {"not_aligned", ADDRESS, "misaligned address"},
    {"int_too_small", ADDRESS, "signed integer overflow"},
    {"empty_grid", PLAIN, "CUDA refuses a grid of 0,1,1 blocks"},
    {"tall_grid", PLAIN, "CUDA refuses a grid of 7,65536,1 blocks"},
    {"large_block", PLAIN, "CUDA refuses a block of 1056,1,1 threads"},
    {"half_a_warp", PLAIN, "a block of 48 threads, whose last warp isn't full"},
    {"no_barrier_before_matrices", PLAIN, "a result is NaN"},
    {"no_barrier_before_matrices", THREAD, "data race"},
    {"matrices_not_aligned", PLAIN, "ldmatrix of a row that isn't aligned"},
    {"matrices_by_half_a_warp", PLAIN, ", but thread "},
    {"product_by_half_a_warp", PLAIN, "which not all others reach"},
    {"much_shared", PLAIN, "53248 bytes of shared memory, and a block has 49152"},
};

/* On stdout, since lks_test_run() takes a sanitizer's report on stderr for a failure. */
static lks_test_result run(const char *program, const char *name)
{
    const char *const command = lks_test_text("exec '%s/tests/cuda/steady.sh' '%s' %s 2>&1",
                                              LKS_TEST_SOURCE_DIR, program, name);
    return lks_test_shell(command);
}

TEST(test_faults)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const lks_test_result r = run(faults[i].program, faults[i].name);
        if (r.exit_code == 0 || strstr(r.out, faults[i].says) == NULL)
            fail_msg("%s %s: exit code %d, and not '%s':\n%s", faults[i].program, faults[i].name,
                     r.exit_code, faults[i].says, r.out);
    }
}

TEST(test_sound)
{
    const char *const programs[] = {PLAIN, ADDRESS, THREAD};
    for (int i = 0; i < 3; i++) {
        assert_exits(0, run(programs[i], "sound"));
    }
}

int main(void)
{
    const lks_test_result r = run("true", "");
    if (r.exit_code == 77)
        lks_test_exit_lacks("steady-addresses", "programs with sanitizers fail to start");
    return lks_test_run_all(NULL, NULL);
}
