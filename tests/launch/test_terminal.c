/* On a terminal (script(1) makes one): the live line, messages beside it, progress of long work. */
#include "support.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY                                                                                       \
    " --n_layer=1 --n_head=1 --n_embd=16 --block_size=16 --batch_size=1 "                          \
    "--gradient_accumulation_steps=2 --vocab_size=65 --eval_iters=2"

static const char *data_folder(void)
{
    static const char *dir;
    if (dir == NULL) {
        dir = lks_test_folder();
        lks_test_generated_tokens(dir);
    }
    return dir;
}

/* What the terminal gets from "lockstep ARGUMENTS". */
static const char *on_terminal(const char *arguments, const char *const env[])
{
    const char *copy = lks_test_text("%s/typescript", lks_test_folder());
    const char *command = lks_test_text("'%s' %s", lks_test_program(), arguments);
    const char *const argv[] = {"script", "-qec", command, copy, NULL};
    lks_test_result r = lks_test_run(argv, env, 120);
    assert_int_not_equal(r.exit_code, 127); /* Debian's bsdutils, which is essential, has script */
    return lks_test_read(copy, NULL);
}

static const char *train(const char *out, const char *more)
{
    return lks_test_text("train --dataset='%s' --out_dir='%s'" TINY " %s", data_folder(), out,
                         more);
}

/* Only a rank whose stdout a person watches redraws a line; the file has all lines in any case. */
TEST(test_live_line)
{
    static const struct {
        const char *env[6], *more;
        bool live;
    } cases[] = {
        {{"TERM=xterm"}, "--max_iters=30", true},
        {{"TERM=xterm"}, "--max_iters=30 --nproc_per_node=2", true},
        {{"TERM=dumb"}, "--max_iters=30", false},
        {{"TERM=xterm", "RANK=0", "WORLD_SIZE=1"}, "--max_iters=30", false},
        {{"TERM=xterm", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1",
          "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1"},
         "--max_iters=30 --nproc_per_node=2",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *out = lks_test_folder();
        const char *text = on_terminal(train(out, cases[i].more), cases[i].env);
        assert_contains(text, "step 0: train loss");
        if (cases[i].live) {
            assert_contains(text, "iter 30/30  loss", "\033[K\r");
            assert_null(strstr(text, "iter 30: "));
        } else {
            assert_contains(text, "iter 30: loss");
            /* a launcher clears the line before a message, such as that oneDNN isn't installed */
            assert_null(strstr(text, "\033[K\r"));
        }
        const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL);
        assert_contains(log, "\niter 0: loss", "\niter 30: loss");
        assert_null(strchr(log, '\033'));
        assert_null(strchr(log, '\r'));
    }
}

/* The launcher's message begins on a cleared line, and nothing that stood before it is lost. */
TEST(test_message_clears)
{
    const char *const xterm[] = {"TERM=xterm", NULL}, *const dumb[] = {"TERM=dumb", NULL};
    static const char dies[] = "run sh -c 'printf \"live line\\r\"; kill -KILL $$'";
    assert_contains(on_terminal(dies, xterm), "live line\r\033[Klockstep run: rank 0");
    assert_contains(on_terminal(dies, dumb), "live line\rlockstep run: rank 0");
}

TEST(test_evaluation_progress)
{
    const char *const xterm[] = {
        "TERM=xterm", /* each of these reads takes 0.4 s */
        "LOCKSTEP_FAULT=read:30:slow,read:50:slow,read:70:slow,read:90:slow,read:110:slow", NULL};
    const char *more = "--eval_only --eval_iters=70 --threads=1";
    const char *text = on_terminal(train(lks_test_folder(), more), xterm);
    assert_contains(text, " of 140 batches, ", "step 0: train loss");
    const char *status = lks_test_find(text, "evaluation 0: ");
    assert_in_range(atoi(status + strlen("evaluation 0: ")), 1, 139);
    assert_contains(status, " left\033[K\r");
}

/* After a few steps a long run names the time it takes; a short one doesn't. */
TEST(test_estimate)
{
    static const char said[] = " steps to come take about ";
    const char *const run[] = {
        "sh", "-c",
        lks_test_text("exec '%s' %s", lks_test_program(),
                      train(lks_test_folder(), "--max_iters=4000000000 --eval_interval=0")),
        NULL};
    lks_test_child child = lks_test_start(run, NULL);
    lks_test_wait_for_text(child.err_path, said);
    kill(child.pid, SIGINT);
    lks_test_result r = assert_exits(128 + SIGINT, lks_test_wait(&child, 60), said,
                                     "lockstep train: a step takes ");
    assert_null(strstr(r.err, "a step takes 0.0 s")); /* less than that is in milliseconds */
    const char *const brief[] = {"sh", "-c",
                                 lks_test_text("exec '%s' %s", lks_test_program(),
                                               train(lks_test_folder(), "--max_iters=9")),
                                 NULL};
    r = assert_exits(0, lks_test_run(brief, NULL, 60));
    assert_null(strstr(r.err, said));
}
