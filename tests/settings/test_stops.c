/* prep, sample, eval and export end cleanly when a signal asks them to: soon, with one line about
 * what they leave, and 128 + the signal's number. */
#include "support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "laws/marked.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
static const char *const names[] = {"SIGINT", "SIGTERM", "SIGHUP"};

/* Wait until the process has a handler for SIGTERM: what comes before ends it at once. */
static void wait_for_handler(pid_t pid)
{
    lks_test_until(marked_has_signal(pid, "SigCgt", SIGTERM));
}

/* Until there are `n` files in the folder, or the child has ended, which expect_stop() reports. */
static void wait_for_files(const lks_test_child *child, const char *folder, int n)
{
    for (int i = 0; lks_test_is_running(child) && i < lks_test_tries(20000); i++, usleep(2000))
        if (lks_test_exists(folder) && lks_test_count_files(folder) >= n)
            return;
}

static void expect_stop(const lks_test_child *child, int which, const char *err)
{
    assert_exits(128 + signals[which], lks_test_wait(child, 30),
                 lks_test_text("stopped by %s: %s", names[which], err));
}

/* Stopped while the first new file is on its way to the disk: what was there stays. */
TEST(test_prep)
{
    const char *dir = lks_test_folder(), *text = lks_test_text("%s/text", dir);
    const char *env[] = {"LOCKSTEP_FAULT=fsync:1:slower", NULL};
    lks_test_write_text(text, "another text");
    for (int i = 0; i < 3; i++) {
        const char *out = lks_test_text("%s/out-%d", dir, i);
        const char *train = lks_test_text("%s/train.bin", out);
        if (i > 0) {
            lks_test_write_text(text, "the old text");
            lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", text),
                        lks_test_text("--out=%s", out));
            lks_test_write(lks_test_text("%s/old", dir), lks_test_read(train, NULL), 20);
            lks_test_write_text(text, "another text");
        }
        const char *argv[] = {"lockstep",
                              "prep",
                              "char",
                              lks_test_text("--input=%s", text),
                              lks_test_text("--out=%s", out),
                              NULL};
        lks_test_child child = lks_test_start(argv, env);
        wait_for_files(&child, out, i > 0 ? 4 : 0); /* 0: the new folder is being synced */
        assert_int_equal(kill(child.pid, signals[i]), 0);
        expect_stop(&child, i, "nothing was written, and --out is unchanged");
        if (i > 0) {
            assert_int_equal(lks_test_count_files(out), 3);
            assert_same_file(train, lks_test_text("%s/old", dir));
        } else {
            assert_false(lks_test_exists(out));
        }
    }
}

/* SentencePiece itself can't be stopped while it trains. */
TEST(test_prep_training)
{
    lks_test_need_sentencepiece();
    const char *dir = lks_test_folder(), *text = lks_test_text("%s/text", dir);
    FILE *f = fopen(text, "w");
    unsigned x = 1;
    for (int i = 0; i < 3000000; i++) {
        x = x * 1664525 + 1013904223;
        fputc(i % 60 == 59 ? '\n' : i % 6 == 5 ? ' ' : (int)('a' + (x >> 24) % 26), f);
        if (i % 600 == 599)
            fputc('\n', f);
    }
    fclose(f);
    const char *argv[] = {"lockstep",
                          "prep",
                          "sentencepiece",
                          lks_test_text("--input=%s", text),
                          lks_test_text("--out=%s/out", dir),
                          "--vocab_size=30000",
                          NULL};
    lks_test_child child = lks_test_start(argv, NULL);
    wait_for_handler(child.pid);
    for (int i = 0; i < 100; i++)
        usleep(2000); /* it counts documents, or trains */
    assert_int_equal(kill(child.pid, SIGTERM), 0);
    expect_stop(&child, 1, "nothing was written");
    assert_false(lks_test_exists(lks_test_text("%s/out", dir)));
}

/* A small run whose split to evaluate has `n_val` tokens. */
static const char *run_with(size_t n_val)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    uint16_t *val = calloc(n_val, sizeof *val);
    lks_test_write(lks_test_text("%s/val.bin", dir), val, n_val * sizeof *val);
    free(val);
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", dir),
                lks_test_text("--out_dir=%s/out", dir), "--vocab_size=65", "--n_layer=1",
                "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=1",
                "--gradient_accumulation_steps=1", "--max_iters=0", "--eval_iters=1");
    return dir;
}

/* One rank; two ranks; two of which only the second learns of it. */
TEST(test_eval)
{
    const char *dir = run_with(8000000);
    for (int i = 0; i < 3; i++) {
        const char *mark = marked_variable(), *env[] = {mark, NULL};
        const char *argv[] = {"lockstep",
                              "eval",
                              lks_test_text("--dataset=%s", i < 2 ? dir : run_with(2000000)),
                              lks_test_text("--out_dir=%s/out", dir),
                              "--batch_size=1",
                              "--threads=1",
                              lks_test_text("--nproc_per_node=%d", i == 0 ? 1 : 2),
                              NULL};
        lks_test_child child = lks_test_start(argv, env);
        pid_t ranks[2] = {child.pid, child.pid};
        for (int r = 0; r < 2 && i > 0; r++)
            while ((ranks[r] = marked_rank(mark, r)) < 0 && lks_test_is_running(&child))
                usleep(2000);
        for (int r = 0; r < 2; r++)
            wait_for_handler(ranks[r]);
        for (int k = 0; k < 25; k++)
            usleep(2000); /* set-up, or its batches: either is stopped */
        assert_int_equal(lks_test_kill(i < 2 ? child.pid : ranks[1], signals[i]), 0);
        expect_stop(&child, i, "there is no loss, and nothing was written");
        assert_string_equal(lks_test_read(child.out_path, NULL), "");
        marked_assert_gone(mark, 2);
    }
}

/* In the middle of a text without an end. */
TEST(test_sample)
{
    const char *dir = lks_test_folder(), *text = lks_test_text("%s/text", dir);
    lks_test_write_text(text, "abc abc bca cab abc abc bca cab abc abc bca cab abc abc bca cab");
    const char *data = lks_test_text("--dataset=%s/data", dir);
    const char *out = lks_test_text("--out_dir=%s/out", dir);
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", text),
                lks_test_text("--out=%s/data", dir));
    lks_test_do("lockstep", "train", data, out, "--n_layer=1", "--n_head=1", "--n_embd=16",
                "--block_size=4", "--batch_size=1", "--gradient_accumulation_steps=1",
                "--max_iters=0", "--eval_iters=1");
    for (int i = 0; i < 3; i++) {
        const char *argv[] = {"lockstep",
                              "sample",
                              out,
                              "--start=a",
                              "--num_samples=3",
                              "--top_k=2",
                              "--max_new_tokens=1000000000",
                              NULL};
        lks_test_child child = lks_test_start(argv, NULL);
        size_t bytes = 0;
        for (int k = 0; k < lks_test_tries(20000) && bytes < 100; k++, usleep(2000))
            lks_test_read(child.out_path, &bytes);
        assert_int_equal(kill(child.pid, signals[i]), 0);
        expect_stop(&child, i, "of 3 samples 0 are complete, and any text after them is cut short");
        const char *got = lks_test_read(child.out_path, &bytes);
        assert_true(bytes > 100 && got[bytes - 1] == '\n');
    }
}

/* No temporary file is left of an export that is stopped. */
TEST(test_export)
{
    const char *dir = lks_test_folder(), *data = lks_test_text("%s/data", dir);
    const char *run = lks_test_text("--out_dir=%s/run", dir);
    const char *fault[] = {"LOCKSTEP_FAULT=fsync:1:slower", NULL};
    assert_int_equal(mkdir(data, 0755), 0);
    lks_test_generated_tokens(data);
    lks_test_do("lockstep", "train", run, lks_test_text("--dataset=%s", data), "--n_layer=1",
                "--n_head=1", "--n_embd=16", "--block_size=8", "--batch_size=1",
                "--gradient_accumulation_steps=1", "--max_iters=0", "--eval_iters=1",
                "--vocab_size=65");
    for (int i = 0; i < 3; i++) {
        const char *out = lks_test_text("%s/hf-%d", dir, i);
        const char *to = lks_test_text("--out=%s", out);
        const char *argv[] = {"lockstep", "export", run, "--format=hf", to, NULL};
        assert_int_equal(mkdir(out, 0755), 0); /* so that the first sync is a file's */
        lks_test_child child = lks_test_start(argv, fault);
        wait_for_files(&child, out, 1);
        assert_int_equal(kill(child.pid, signals[i]), 0);
        expect_stop(&child, i, "the export wasn't completed; run the command again");
        assert_int_equal(lks_test_count_files(out), 0);
    }
}
