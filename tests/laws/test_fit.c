/* batch_size=auto: at each of five limits the run stays below it (Pss of all its ranks) and takes
 * the most that fits; it is the run with that number, a resume keeps it, and too little memory is
 * an error with advice. */
#include "laws.h"

#include <stdlib.h>

/* 120 samples of 2 MB of activations each in a step, and little arithmetic. */
static law_args wide(const char *out)
{
    law_args args = law_begin(law_data(), out);
    law_add_all(&args, "--n_layer=32", "--n_head=2", "--n_embd=16", "--block_size=64",
                "--batch_size=15", "--gradient_accumulation_steps=8", "--virtual_ranks=1",
                "--max_iters=0", "--eval_interval=0", "--batch_size=auto");
    return args;
}

static double last_host(const char *out, const char *what)
{
    const json_t *hosts = lks_test_record(out, "host");
    return lks_test_number(json_array_get(hosts, json_array_size(hosts) - 1), what);
}

static int config_of(const char *out, const char *what)
{
    return (int)lks_test_number(json_array_get(lks_test_record(out, "config"), 0), what);
}

TEST(test_limits)
{
    static const int limits[] = {60, 80, 115, 170, 300}; /* MB */
    if (lks_test_on_device())
        return; /* its memory has guards */
    int before = 0;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const char *out = lks_test_folder();
        law_args args = wide(out);
        law_add(&args, "--memory=%dMB", limits[i]);
        law_run(&args);
        const double used = last_host(out, "memory_bytes") / 1e6;
        const int batch = config_of(out, "batch_size");
        assert_int_equal(batch * config_of(out, "gradient_accumulation_steps"), 120);
        print_message("%d MB: batch_size %d, %.1f MB used\n", limits[i], batch, used);
#ifndef LKS_TEST_INSTRUMENTED /* a sanitizer's own memory counts, too */
        assert_true(used <= limits[i]);
#endif
        /* The next divisor of 120 is at most twice as large, and didn't fit. */
        assert_true(used > 0.45 * limits[i] - 10.0);
        assert_true(batch >= before);
        before = batch;
    }
}

/* The rank with the least memory decides, which may be on another host. */
TEST(test_least)
{
    const char *out = lks_test_folder();
    law_args ranks = {.n = 0}, args = wide(out);
    if (lks_test_on_device())
        return;
    law_add_all(&ranks, "lockstep", "run", "--standalone", "--nproc-per-node=2");
    law_add_shell(&ranks, &args,
                  "exec \"$0\" \"$@\" --virtual_ranks=2 --memory=$((900 - 800 * RANK))MB");
    law_run(&ranks);
    assert_in_range(config_of(out, "batch_size"), 1, 30); /* 60 fit into the first one's */
}

/* The numbers alone make the same run; so does a resume, whether it says auto or not. */
TEST(test_is_that_run)
{
    const char *out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = lks_test_folder();
        law_args args = law_family(false, out[i]);
        law_add_all(&args, "--virtual_ranks=4", "--max_iters=5");
        if (i == 0) {
            law_add_all(&args, "--batch_size=auto", "--memory=1G", "--nproc_per_node=2");
        } else { /* 16 micro-batches of 6: the most that 4 virtual ranks allow */
            law_add_all(&args, "--batch_size=24", "--gradient_accumulation_steps=4");
        }
        law_run(&args);
    }
    assert_int_equal(config_of(out[0], "batch_size"), 24);
    law_assert_same(out[0], out[1]);
    assert_contains(lks_test_read(lks_test_text("%s/train.log", out[0]), NULL),
                    "batch_size=auto: 24 samples in each of 4 micro-batches");
    for (int i = 0; i < 2; i++) {
        law_args args = law_family(false, out[i]); /* with its own numbers, which auto overrides */
        law_add_all(&args, "--virtual_ranks=4", "--init_from=resume");
        law_add(&args, "--batch_size=%s", i == 0 ? "auto" : "24");
        if (i == 0)
            law_add(&args, "--memory=20K"); /* the choice has been made */
        else
            law_add(&args, "--gradient_accumulation_steps=4");
        law_run(&args);
    }
    law_assert_same_checkpoint(out[0], out[1], law_family_last(false));
}

/* golf's micro-batches follow from the tokens of a step: 32 sequences. */
TEST(test_golf)
{
    const char *out = law_family_run(true, NULL, "--virtual_ranks=1", "--iterations=1",
                                     "--eval_interval=0", "--batch_size=auto");
    assert_int_equal(config_of(out, "batch_size"), 32);
    assert_int_equal(config_of(out, "gradient_accumulation_steps"), 1);
}

static void refused(int code, const char *more, const char *says)
{
    law_args args = wide(lks_test_folder());
    law_add(&args, "%s", more);
    assert_exits(code, lks_test_run(args.argv, NULL, 60), says);
}

TEST(test_refused)
{
    refused(1, "--memory=8MB", "batch_size=auto: the smallest micro-batch needs ");
    refused(1, "--memory=8MB", "use --recompute=block, fewer ranks");
    refused(2, "--memory=much", "memory must be a number of bytes");
    refused(2, "--memory=0", "memory must be a number of bytes");
    refused(2, "--memory=1e9", "memory must be a number of bytes");
    law_args args = law_family(false, lks_test_folder());
    law_add(&args, "--memory=1G");
    assert_exits(2, lks_test_run(args.argv, NULL, 60), "memory=1G is for batch_size=auto");
    law_add_all(&args, "--dry_run", "--memory=\x1b[1m");
    assert_exits(2, lks_test_run(args.argv, NULL, 60), "memory=\\x1b[1m is for batch_size=auto");
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(NULL, NULL);
}
