/* Data and settings that can't be right give a clear sentence before anything is written. */
#include "faults.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/cpu.h"

static const char *train_bin(const fault_run *run)
{
    return lks_test_text("%s/train.bin", run->data);
}

/* The same on one rank and on two: the file is named, and no output folder is made. */
static void expect_data_error(void (*spoil)(const fault_run *run), const char *const texts[])
{
    for (int W = 1; W <= 2; W++) {
        fault_run run = fault_train(W);
        spoil(&run);
        fault_fails(&run, -1, NULL, texts);
        assert_false(lks_test_exists(run.out));
    }
}
#define expect_data(spoil, ...) expect_data_error((spoil), (const char *const[]){__VA_ARGS__, NULL})

static void remove_train(const fault_run *run)
{
    unlink(train_bin(run));
}

static void remove_val(const fault_run *run)
{
    unlink(lks_test_text("%s/val.bin", run->data));
}

static void remove_all(const fault_run *run)
{
    remove_train(run);
    remove_val(run);
    rmdir(run->data);
}

static void empty_train(const fault_run *run)
{
    lks_test_write_text(train_bin(run), "");
}

static void odd_train(const fault_run *run)
{
    lks_test_write(train_bin(run), "\1\0\2\0\3", 5);
}

static void short_train(const fault_run *run)
{
    lks_test_write(train_bin(run), "\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0", 16);
}

static void short_val(const fault_run *run)
{
    lks_test_write(lks_test_text("%s/val.bin", run->data), "\1\0\2\0", 4);
}

static void foreign_token(const fault_run *run)
{
    lks_test_overwrite(train_bin(run), 2 * 70000, "\x41", 1); /* 65: valid ids go to 64 */
}

static void folder_for_file(const fault_run *run)
{
    remove_train(run);
    assert_int_equal(rmdir(run->data), -1); /* val.bin is in it */
    lks_test_do("mkdir", train_bin(run));
}

static void bad_meta(const fault_run *run)
{
    static const char text[] = "{\"kind\":\"char\",\"vocab_size\":3,\"chars\":\"ab\"}";
    lks_test_write_text(lks_test_text("%s/meta.json", run->data), text);
}

static void smaller_meta(const fault_run *run)
{
    static const char text[] = "{\"kind\":\"char\",\"vocab_size\":2,\"chars\":\"ab\"}";
    lks_test_write_text(lks_test_text("%s/meta.json", run->data), text);
}

TEST(test_data)
{
    expect_data(remove_train, "train.bin", "there is no token file");
    expect_data(remove_val, "val.bin", "there is no token file");
    expect_data(remove_all, "dataset");
    expect_data(empty_train, "train.bin", "empty");
    expect_data(odd_train, "train.bin", "5 bytes");
    expect_data(short_train, "train", "8 tokens", "block_size + 1 = 9");
    expect_data(short_val, "val", "2 tokens",
                "block_size + 1 = 9: use a longer text, a larger --val_fraction");
    expect_data(foreign_token, "train.bin", "65", "140000");
    expect_data(folder_for_file, "train.bin");
    expect_data(bad_meta, "meta.json");
    expect_data(smaller_meta, "vocab_size", "65", "meta.json");
}

/* Settings that don't fit together: the message names both numbers and what to change. */
TEST(test_settings)
{
    fault_run run = fault_train(1);
    fault_add(&run, "--n_head=3");
    fault_expect(&run, 2, NULL, "n_embd=16", "n_head=3");

    run = fault_train(3); /* with 4 virtual ranks */
    fault_expect(&run, 2, NULL, "4", "3", "allow_uneven", "gradient_accumulation_steps");

    run = fault_train(1);
    fault_add(&run, "--n_layers=2");
    fault_expect(&run, 2, NULL, "n_layers", "n_layer");

    run = fault_train(2);
    law_add_all(&run.args, "--batch_size=65536", "--block_size=1048576");
    fault_expect(&run, 2, NULL, "65536", "1048576", "smaller");
    assert_false(lks_test_exists(run.out));

    int cores = lks__cpu_count();
    if (cores < 64) {
        run = fault_train(4);
        fault_add(&run, "--threads=%d", 8 * cores + 1);
        fault_expect(&run, 2, NULL, "threads=", "4 ranks", "cores");
    }
}

/* The same for ranks that another launcher started, each of which checks by itself. */
TEST(test_settings_of_ranks)
{
    fault_run run = fault_train(1);
    fault_run launched = {.args.n = 0};
    law_add_all(&launched.args, "lockstep", "run", "--standalone", "--nproc-per-node=3", "--");
    fault_add(&launched, "%s", LKS_TEST_TOOL);
    law_add_words(&launched.args, run.args.argv + 1);
    fault_expect(&launched, 2, NULL, "4", "3", "allow_uneven");
    assert_false(lks_test_exists(run.out));
}

/* A resume checks what the checkpoint fixes. */
TEST(test_resume)
{
    fault_run run = fault_train(1), again = fault_resume(&run, 2);
    fault_expect(&again, -1, NULL, run.out, "there is no folder");
    assert_false(lks_test_exists(run.out));
    fault_succeeds(&run);
    const char *before = fault_snapshot(run.out);

    again = fault_resume(&run, 1);
    fault_add(&again, "--n_embd=32");
    fault_expect(&again, 2, NULL, "n_embd", "32", "16", run.out);
    again = fault_resume(&run, 2);
    fault_add(&again, "--seed=7");
    fault_expect(&again, 2, NULL, "seed", "7", "1337");
    again = fault_resume(&run, 3);
    fault_expect(&again, 2, NULL, "4", "3", "allow_uneven");

    fault_run other = fault_train(1); /* other data */
    lks_test_write(lks_test_text("%s/val.bin", other.data), "\1\0\2\0\3\0\4\0\5\0\6\0\7\0\1\0\1\0",
                   18);
    other.out = run.out;
    again = fault_resume(&other, 2);
    fault_expect(&again, 2, NULL, other.data, "digest", "ckpt-00000010");
    assert_string_equal(fault_snapshot(run.out), before);

    again = fault_resume(&run, 2); /* nothing is left to do, and it says so */
    assert_exits(0, lks_test_run(again.args.argv, NULL, 30),
                 "the run is complete; with a larger max_iters");
}
