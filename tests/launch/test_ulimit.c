/* What a shell's ulimit leaves: a small stack is enough, and few descriptors are raised. */
#include "support.h"

#include <string.h>

static lks_test_result limited(const char *limit, const char *words)
{
    const char *command = lks_test_text("%s; exec %s %s", limit, LKS_TEST_TOOL, words);
    return lks_test_run((const char *const[]){"sh", "-c", command, NULL}, NULL, 60);
}

/* 256 KiB, for one rank and for two, with threads. */
static void test_stack(void **state)
{
    const char *data = lks_test_folder(), *text = "";
    for (int i = 0; i < 40; i++)
        text = lks_test_text("%sline %d of a text\n", text, i * i);
    lks_test_write(lks_test_text("%s/t", data), text, strlen(text));
    lks_test_result r =
        limited("ulimit -s 256", lks_test_text("prep char --input=%s/t --out=%s", data, data));
    assert_string_equal(r.err, "");
    assert_int_equal(r.exit_code, 0);
    for (int ranks = 1; ranks <= 2; ranks++) {
        r = limited("ulimit -s 256",
                    lks_test_text("train --dataset=%s --out_dir=%s/run%d --nproc_per_node=%d "
                                  "--n_layer=1 --n_head=1 --n_embd=16 --block_size=8 "
                                  "--batch_size=2 --gradient_accumulation_steps=2 --max_iters=2 "
                                  "--eval_iters=1 --threads=2",
                                  data, data, ranks, ranks));
        assert_string_equal(r.err, "");
        assert_int_equal(r.exit_code, 0);
    }
    r = limited("ulimit -s 256", lks_test_text("sample --out_dir=%s/run1 --start=line "
                                               "--num_samples=1 --max_new_tokens=4",
                                               data));
    assert_int_equal(r.exit_code, 0);
}

/* The soft limit is raised to the hard one, as far as a job can need. */
static void test_descriptors(void **state)
{
    lks_test_result r =
        limited("ulimit -Sn 40; ulimit -Hn 500", "run --no-python sh -c 'ulimit -Sn'");
    assert_int_equal(r.exit_code, 0);
    assert_string_equal(r.out, "500\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_descriptors),
    };
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
