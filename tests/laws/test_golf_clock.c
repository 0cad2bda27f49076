/* parameter-golf by the wall clock: ranks stop together, the log explains it, and the last lines of
 * such a run are in the script's words. */
#include "support.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "train/procedure/procedure.h"

static const char *const variables[] = {
    "NUM_LAYERS=2",
    "MODEL_DIM=32",
    "NUM_HEADS=2",
    "NUM_KV_HEADS=1",
    "TRAIN_SEQ_LEN=16",
    "ITERATIONS=1000000",
    "VOCAB_SIZE=1024",
    "VAL_LOSS_EVERY=0",
    "WARMDOWN_ITERS=40",
    "SEED=3",
    "TRAIN_BATCH_TOKENS=128",
    "TRAIN_LOG_EVERY=50",
    "TOKENIZER_PATH=",
    "MAX_WALLCLOCK_SECONDS=1.5",
    NULL,
};

static lks_test_result train(const char *data, const char *out, const char *more,
                             const char *and_more)
{
    const char *env[32];
    int n = 0;
    for (; variables[n] != NULL; n++)
        env[n] = variables[n];
    env[n++] = lks_test_text("DATA_PATH=%s", data);
    env[n] = NULL;
    const char *const argv[] = {"lockstep",
                                "train",
                                LKS_TEST_SOURCE_DIR "/config/golf_baseline.conf",
                                "--scalar_lr=0.0412345678", /* Python prints all its digits */
                                lks_test_text("--out_dir=%s", out),
                                more,
                                and_more,
                                NULL};
    return assert_exits(0, lks_test_run(argv, env, 120));
}

/* A line of `text` must match the whole pattern. */
static void assert_line(const char *text, const char *pattern)
{
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
    int rc = regexec(&re, text, 0, NULL, 0);
    regfree(&re);
    if (rc != 0)
        fail_msg("no line is %s in:\n%s", pattern, text);
}

static size_t n_lines(const char *out, const char *kind)
{
    return json_array_size(lks_test_record(out, kind));
}

TEST(test_clock)
{
    const char *data = lks_test_folder(), *out = lks_test_folder(), *code = lks_test_folder();
    lks_test_generated_golf(data);
    const char *a = lks_test_text("%s/a.py", code), *b = lks_test_text("%s/b.py", code);
    lks_test_write(a, "print(1)\n", 9);
    lks_test_write(b, "pass\n", 5);
    train(data, out, "--nproc_per_node=2", "--replicas=private");
    const json_t *lines = lks_test_record(out, "train");
    size_t steps = json_array_size(lines);
    assert_in_range(steps, 2, 999999);
    /* the rates fall with the clock */
    double before = lks_test_number(json_array_get(lines, steps / 2), "lr");
    assert_true(lks_test_number(json_array_get(lines, steps - 1), "lr") < before);
    /* both ranks have made all steps: 4 of the 8 micro-batches each */
    const json_t *host = lks_test_record(out, "host");
    const json_t *last = json_array_get(host, json_array_size(host) - 1);
    assert_int_equal(lks_test_number(last, "micro_batches.0"), 4 * steps);
    assert_int_equal(lks_test_number(last, "micro_batches.1"), 4 * steps);

    const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL);
    assert_line(
        log, "^the learning rates follow rank 0's clock, .*; MAX_WALLCLOCK_SECONDS=0 avoids it$");
    assert_line(log, "^train_loader:dataset:lockstep-test-[^/]+ train_shards:2$");
    assert_line(log, "^val_loader:shards pattern=/.*/fineweb_val_\\*.bin tokens:19984$");
    assert_line(log, "^world_size:2 grad_accum_steps:4$");
    assert_line(log, "^tie_embeddings:True embed_lr:0.05 head_lr:0.0 matrix_lr:0.04 "
                     "scalar_lr:0.0412345678$");
    assert_line(log, "^step:1/1000000 train_loss:[0-9]\\.[0-9]{4} train_time:[0-9]+ms "
                     "step_avg:[0-9]+\\.[0-9]{2}ms$");
    assert_line(log, lks_test_text("^step:%zu/1000000 val_loss:[0-9]\\.[0-9]{4} "
                                   "train_time:[0-9]+ms step_avg:[0-9]+\\.[0-9]{2}ms$",
                                   steps));
    assert_line(log, lks_test_text("^stopping_early: wallclock_cap train_time:[0-9]+ms "
                                   "step:%zu/1000000$",
                                   steps));
    assert_line(log, "^peak memory allocated: [1-9][0-9]* MiB reserved: [1-9][0-9]* MiB$");
    assert_line(log, "^Code size: 0 bytes$");
    assert_line(log, "^final_int8_zlib_roundtrip val_loss:[0-9]\\.[0-9]{4} eval_time:[0-9]+ms$");
    assert_line(log, "^final_int8_zlib_roundtrip_exact val_loss:[0-9]\\.[0-9]{8}$");

    /* its time is over, on any resume; and the code's files count */
    lks_test_result r = train(data, out, "--init_from=resume", lks_test_text("--code=%s", a));
    assert_int_equal(n_lines(out, "train"), steps);
    assert_line(r.out, "^Code size: 9 bytes$");
    assert_contains(r.err, "the run is complete; with a larger max_wallclock_seconds it continues");

    /* the code is part of the run's total, also of a resume that doesn't name it */
    const char *const resume[] = {"lockstep", "resume", out, "--nproc_per_node=1", NULL};
    const char *artifact = lks_test_text("%s/final_model.int8.ptz", out);
    size_t bytes;
    char *packed = lks_test_read(artifact, &bytes);
    packed[bytes / 2] ^= 1; /* so it is written again */
    lks_test_write(artifact, packed, bytes);
    r = assert_exits(0, lks_test_run(resume, NULL, 120));
    assert_line(r.out, "^Code size: 9 bytes$");
    const char *model = lks_test_find(r.out, "Serialized model: ");
    const char *total = lks_test_find(r.out, "Total submission size: ");
    assert_int_equal(strtol(strchr(total, ':') + 1, NULL, 10),
                     strtol(strchr(model, ':') + 1, NULL, 10) + 9);

    /* with all of that there, nothing is left to do */
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    const char *text = lks_test_read(metrics, NULL);
    assert_exits(0, lks_test_run(resume, NULL, 120), "Its final_model.int8.ptz is whole, so ",
                 " stays unchanged\n");
    assert_string_equal(lks_test_read(metrics, NULL), text);

    /* unless another tokenizer's bits per byte are wanted */
    const char *const none[] = {"lockstep", "resume", out, "--tokenizer_path=", NULL};
    assert_line(lks_test_run(none, NULL, 120).out, "^Code size: 9 bytes$");
}

/* A limit that a resume gives: only the steps since then were timed. Here each takes 6 s, so the 10
 * of the warmdown begin 60 s before the end. */
TEST(test_timed_steps)
{
    lks__run *run = calloc(1, sizeof *run);
    lks__state at = {.iter = 105, .data_shift = 5, .elapsed_from = 100, .elapsed_s = 60.0};
    lks__rates rates;
    assert_non_null(run);
    run->s.max_wallclock_seconds = 100.0;
    run->s.warmdown_iters = 10;
    run->s.matrix_lr = 3.0;
    assert_near(lks__procedure_golf.rates(run, &at, &rates), 2.0, 1e-9);
    free(run);
}

/* As the script with ITERATIONS=0: the initial weights are evaluated and written. */
TEST(test_no_step)
{
    const char *data = lks_test_folder(), *out = lks_test_folder();
    lks_test_generated_golf(data);
    lks_test_result r = train(data, out, "--iterations=0", "--max_wallclock_seconds=0");
    assert_line(r.out, "^step:0/0 val_loss:6.9[0-9]{3} train_time:0ms step_avg:0.00ms$");
    assert_line(r.out, "^final_int8_zlib_roundtrip_exact val_loss:6.9[0-9]{7}$");
    assert_int_equal(n_lines(out, "train"), 0);
}
