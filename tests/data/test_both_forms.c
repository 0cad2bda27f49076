/* Both families read both forms of token files, and a run without validation tokens. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/prep/prep.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/tokens.h"

static const char *raw, *shards; /* folders with the same tokens */

static void prepare(const char *input, const char *out, double val_fraction, uint64_t shard_tokens)
{
    lks__prep_result r;
    const lks__prep_options o = {
        .input = input, .out_dir = out, .val_fraction = val_fraction, .shard_tokens = shard_tokens};
    assert_ok(lks__prep(lks__prep_kind_of("char"), &o, &r));
}

static const char *text_file(void)
{
    const char *path = lks_test_text("%s/t", lks_test_folder()), *text = "";
    for (int i = 0; i < 100; i++)
        text = lks_test_text("%sline %d of a text\n", text, i * i);
    lks_test_write(path, text, strlen(text));
    return path;
}

static int prepare_both(void **state)
{
    const char *input = text_file();
    raw = strdup(lks_test_folder());
    shards = strdup(lks_test_folder());
    prepare(input, raw, 0.1, 0);
    prepare(input, shards, 0.1, 500);
    return 0;
}

/* Of a folder with both the family's own is taken. */
TEST(test_choice)
{
    const char *dir = lks_test_folder();
    lks__shards *s;
    uint64_t digest, want;
    assert_false(lks__split_exists(dir, LKS__SPLIT_TRAIN));
    assert_fails(LKS_ERR_CONFIG, lks__split_open(dir, LKS__SPLIT_TRAIN, false, 9, &s), "train.bin",
                 "*_train*.bin", "prep char");
    assert_fails(LKS_ERR_CONFIG, lks__split_open(dir, LKS__SPLIT_VAL, true, 9, &s), "val.bin",
                 "*_val*.bin", "prep sentencepiece");
    lks_test_write(lks_test_text("%s/train.bin", dir), "\1\0\2\0\3\0", 6);
    assert_true(lks__split_exists(dir, LKS__SPLIT_TRAIN));
    assert_false(lks__split_exists(dir, LKS__SPLIT_VAL));
    for (int first = 0; first < 2; first++) {
        assert_ok(lks__split_open(dir, LKS__SPLIT_TRAIN, first == 1, 9, &s));
        assert_int_equal(lks__shards_count(s), 3);
        lks__shards_close(s);
    }
    uint8_t shard[LKS__SHARD_HEADER + 4] = {0};
    lks__shard_header(2, 2, shard);
    lks_test_write(lks_test_text("%s/fineweb_train_000000.bin", dir), shard, sizeof shard);
    for (int first = 0; first < 2; first++) {
        assert_ok(lks__split_open(dir, LKS__SPLIT_TRAIN, first == 1, 9, &s));
        assert_int_equal(lks__shards_count(s), first == 0 ? 3 : 2);
        lks__shards_close(s);
    }

    /* A file by itself, of either width. */
    for (int width = 2; width <= 4; width += 2) {
        uint8_t file[LKS__SHARD_HEADER + 8] = {0};
        const char *path = lks_test_text("%s/%d", dir, width);
        lks__shard_header(width, 2, file);
        lks_test_write(path, file, LKS__SHARD_HEADER + 2 * (size_t)width);
        assert_ok(lks__shards_open_any(path, 9, &s));
        assert_int_equal(lks__shards_count(s), 2);
        lks__shards_close(s);
    }
    /* One that can't be read is there: opening it tells why. */
    assert_int_equal(symlink("val.bin", lks_test_text("%s/val.bin", dir)), 0);
    assert_true(lks__split_exists(dir, LKS__SPLIT_VAL));
    assert_fails(LKS_ERR_IO, lks__split_open(dir, LKS__SPLIT_VAL, true, 9, &s),
                 "val.bin: ", "symbolic links");

    /* The digest of a file without a header is its own, which checkpoints keep. */
    lks__tokens *t;
    const char *path = lks_test_text("%s/train.bin", dir);
    assert_ok(lks__tokens_open(path, 9, &t));
    assert_ok(lks__tokens_digest(t, &want));
    lks__tokens_close(t);
    assert_ok(lks__shards_open_any(path, 9, &s));
    assert_ok(lks__shards_digest(s, &digest));
    assert_true(digest == want);
    lks__shards_close(s);
}

/* llm.c's names, and a shard under the name of a file without a header. */
TEST(test_other_names)
{
    const char *dir = lks_test_folder();
    lks__shards *s;
    uint8_t shard[LKS__SHARD_HEADER + 4] = {0};
    lks__shard_header(2, 2, shard);
#define PUT(name) lks_test_write(lks_test_text("%s/" name, dir), shard, sizeof shard)
    PUT("edu_fineweb_val_000000.bin");
    PUT("edu_fineweb_train_000001.bin");
    PUT("edu_fineweb_train_000002.bin");
    for (int split = 0; split < 2; split++) {
        assert_true(lks__split_exists(dir, split));
        assert_ok(lks__split_open(dir, split, split == 1, 9, &s));
        assert_int_equal(lks__shards_count(s), split == LKS__SPLIT_TRAIN ? 4 : 2);
        assert_string_equal(lks__shards_split_name(s),
                            split == LKS__SPLIT_TRAIN ? "*_train*.bin" : "*_val*.bin");
        lks__shards_close(s);
    }
    static const char *const unclear[] = {"edu_fineweb_train_old.bin", "edu_train_val.bin",
                                          "edu_val.bin"};
    for (int i = 0; i < 3; i++) { /* the second one would be in both splits */
        const char *path = lks_test_text("%s/%s", dir, unclear[i]);
        lks_test_write(path, shard, sizeof shard);
        assert_fails(LKS_ERR_CONFIG, lks__split_open(dir, i % 2, false, 9, &s), unclear[i],
                     i == 0 ? "isn't named like NAME_train.bin" : "different datasets");
        assert_int_equal(unlink(path), 0);
    }
    const char *both = lks_test_folder(); /* validation would be trained on */
    lks_test_write(lks_test_text("%s/x_train_train.bin", both), shard, sizeof shard);
    lks_test_write(lks_test_text("%s/x_train_val.bin", both), shard, sizeof shard);
    assert_fails(LKS_ERR_CONFIG, lks__split_open(both, LKS__SPLIT_TRAIN, false, 9, &s),
                 "x_train_val.bin isn't named like");
    PUT("tiny_shakespeare_val.bin"); /* training on one and validating on the other is no use */
    for (int split = 0; split < 2; split++)
        assert_fails(LKS_ERR_CONFIG, lks__split_open(dir, split, false, 9, &s),
                     "and tiny_shakespeare_val.bin belong to different datasets");
    PUT("train.bin"); /* the names that our programs write come first, and alone */
    assert_false(lks__split_exists(dir, LKS__SPLIT_VAL));
    assert_ok(lks__split_open(dir, LKS__SPLIT_TRAIN, true, 9, &s));
    assert_int_equal(lks__shards_count(s), 2);
    assert_string_equal(lks__shards_split_name(s), "train.bin");
    lks__shards_close(s);
}

/* params_hash of the last checkpoint. */
static const char *weights(const char *run)
{
    const char *metrics = lks_test_read(lks_test_text("%s/metrics.jsonl", run), NULL), *at = NULL;
    for (const char *p = metrics; (p = strstr(p, "\"params_hash\":\"")) != NULL; p++)
        at = p;
    assert_non_null(at);
    return lks_test_text("%.16s", at + 15);
}

static lks_test_result train(const char *data, const char *run, const char *family,
                             const char *more)
{
    return lks_test_tool("train", lks_test_text("--dataset=%s", data),
                         lks_test_text("--out_dir=%s", run), family, more, "--threads=1");
}

#define SMALL                                                                                      \
    "--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_size=2", "--seed=3"

static const char *gpt2_on(const char *data, const char *sampler)
{
    const char *run = lks_test_text("%s/run", lks_test_folder());
    assert_exits(0, lks_test_tool("train", lks_test_text("--dataset=%s", data),
                                  lks_test_text("--out_dir=%s", run), SMALL,
                                  "--gradient_accumulation_steps=1", "--max_iters=3",
                                  "--eval_iters=2", "--eval_interval=2", "--threads=1",
                                  lks_test_text("--sampler=%s", sampler)));
    return run;
}

TEST(test_gpt2)
{
    static const char *const samplers[] = {"random", "nanogpt", "epoch"};
    for (int i = 0; i < 3; i++)
        assert_string_equal(weights(gpt2_on(raw, samplers[i])),
                            weights(gpt2_on(shards, samplers[i])));
    const char *run = gpt2_on(shards, "random"), *out = lks_test_text("--out_dir=%s", run);
    lks_test_result a = assert_exits(
                        0, lks_test_tool("eval", out, lks_test_text("--dataset=%s", shards))),
                    b = lks_test_tool("eval", out, lks_test_text("--dataset=%s", raw));
    assert_string_equal(a.out, b.out);
    a = assert_exits(
        0, lks_test_tool("sample", out, "--start=line", "--num_samples=1", "--max_new_tokens=3"));
    assert_memory_equal(a.out, "line", 4);
}

static const char *golf_on(const char *data)
{
    const char *run = lks_test_text("%s/run", lks_test_folder());
    lks_test_result r = lks_test_tool(
        "train", "--family=golf", "--sampler=stream", lks_test_text("--dataset=%s", data),
        lks_test_text("--out_dir=%s", run), "--n_layer=2", "--n_head=2", "--num_kv_heads=1",
        "--n_embd=16", "--mlp_mult=2", "--block_size=8", "--train_batch_tokens=64",
        "--gradient_accumulation_steps=8", "--virtual_ranks=1", "--val_batch_size=64",
        "--iterations=2", "--warmup_steps=0", "--threads=1", "--eval_interval=0");
    assert_string_equal(r.err, "");
    assert_int_equal(r.exit_code, 0);
    return run;
}

TEST(test_golf)
{
    const char *run = golf_on(raw);
    assert_string_equal(weights(run), weights(golf_on(shards)));
    lks_test_result r =
        assert_exits(0, lks_test_tool("sample", lks_test_text("--out_dir=%s", run), "--start=line",
                                      "--num_samples=1",
                                      "--max_new_tokens=3")); /* by the characters of meta.json */
    assert_memory_equal(r.out, "line", 4);
}

/* A run doesn't go on with other data, also if only the validation tokens are others. */
TEST(test_other_data)
{
    static const char *const files[] = {"train.bin", "val.bin", "meta.json"};
    for (int golf = 0; golf < 2; golf++)
        for (int k = 0; k < 2; k++) {
            const char *run = golf ? golf_on(raw) : gpt2_on(raw, "random");
            const char *dir = lks_test_folder();
            for (int i = 0; i < 3; i++) {
                size_t bytes;
                char *data = (char *)lks_test_read(lks_test_text("%s/%s", raw, files[i]), &bytes);
                data[2] ^= i == k; /* another id: there are more than these two */
                lks_test_write(lks_test_text("%s/%s", dir, files[i]), data, bytes);
            }
            assert_exits(2, train(dir, run, "--init_from=resume", "--keep=3"),
                         "is not the data that checkpoint");
        }
}

TEST(test_no_validation)
{
    const char *data = lks_test_folder(), *run = lks_test_text("%s/run", lks_test_folder());
    prepare(text_file(), data, 0.0, 0);
    assert_exits(2, train(data, run, "--n_layer=1", "--block_size=8"), "val.bin",
                 "--eval_interval=off");
    lks_test_result r = lks_test_tool(
        "train", lks_test_text("--dataset=%s", data), lks_test_text("--out_dir=%s", run), SMALL,
        "--gradient_accumulation_steps=1", "--max_iters=2", "--warmup_iters=1", "--eval_interval=0",
        "--checkpoint_interval=2", "--threads=1");
    assert_string_equal(r.err, "");
    assert_int_equal(r.exit_code, 0);
    assert_exits(0, train(data, run, "--init_from=resume", "--max_iters=4"));
    assert_exits(2, train(data, run, "--init_from=resume", "--eval_only=true"), "val.bin");
    assert_exits(0, lks_test_tool("train", "--dry_run=true", lks_test_text("--dataset=%s", data),
                                  SMALL, "--eval_interval=0"));
}

int main(void)
{
    setenv("LOCKSTEP_CPU", "plain", 1); /* other levels warn if oneDNN is missing */
    return lks_test_run_all(prepare_both, NULL);
}
