/* parameter-golf's tokens of single bytes, from text to samples: `prep bytes`, a golf run without
 * SentencePiece, its bits per byte, eval, sample, and the script's description of the tokenizer. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/read/shards.h"
#include "data/text/byte_tokens.h"

static const char *dir, *data, *run; /* run: --out_dir=… */

/* 60 documents of several lines, as JSON lines; the last has a NUL, CRLF and no ASCII. */
static const char *write_documents(void)
{
    const char *path = lks_test_text("%s/docs.jsonl", dir), *text = "";
    for (int i = 0; i < 59; i++)
        text = lks_test_text("%s{\"text\":\"line %d of one\\nand of %c more, \\u00e9t\\u00e9\"}\n",
                             text, i, 'a' + i % 26);
    text = lks_test_text("%s{\"id\":7,\"text\":\"\\u0000\\r\\n\\ud83d\\ude00\"}\n", text);
    lks_test_write_text(path, text);
    return path;
}

/* What train_gpt.py's settings are for a small run. */
#define SMALL                                                                                      \
    "--family=golf", "--num_layers=2", "--model_dim=32", "--num_heads=2", "--num_kv_heads=1",      \
        "--train_seq_len=16", "--train_batch_tokens=256", "--val_batch_size=4096",                 \
        "--iterations=4", "--max_wallclock_seconds=0", "--threads=1"

static int train(void **state)
{
    dir = lks_test_folder();
    data = lks_test_text("%s/data", dir);
    run = lks_test_text("--out_dir=%s/run", dir);
    lks_test_need_zip();
    const lks_test_result r =
        lks_test_do("lockstep", "prep", "bytes", lks_test_text("--input=%s", write_documents()),
                    lks_test_text("--out=%s", data), "--num_val_docs=20", "--shards=1000");
    assert_contains(r.out, "vocab size: 260\n");
    const lks_test_result trained =
        lks_test_do("lockstep", "train", SMALL, lks_test_text("--dataset=%s", data), run);
    assert_contains(trained.out, "next: lockstep sample ",
                    lks_test_text("val_bpb:enabled tokenizer_kind=byte "
                                  "tokenizer_path=%s/meta.json\n",
                                  data));
    const json_t *evals = lks_test_record(lks_test_text("%s/run", dir), "eval");
    const json_t *last = json_array_get(evals, json_array_size(evals) - 1);
    assert_contains(trained.out, lks_test_text(" val_loss:%.4f val_bpb:%.4f train_time:",
                                               lks_test_number(last, "val_loss"),
                                               lks_test_number(last, "val_bpb")));
    return 0;
}

static lks__shards *open_shards(const char *pattern)
{
    lks__shards *s;
    assert_ok(lks__shards_open(lks_test_text("%s/%s", data, pattern), LKS__BYTE_TOKENS, &s));
    return s;
}

/* Each document is BOS and its bytes; full shards but for the last. */
TEST(test_shards)
{
    const char *meta = lks_test_read(lks_test_text("%s/meta.json", data), NULL);
    assert_contains(meta, "{\"kind\":\"bytes\",\"vocab_size\":260,\"hashes\":{");
    lks__shards *val = open_shards(LKS__SHARDS_VAL), *all = open_shards(LKS__SHARDS_TRAIN);
    for (int i = 0; i < 2; i++) {
        uint64_t hash;
        assert_ok(lks__shards_hash(all, i, &hash));
        assert_contains(meta, lks_test_text("\"fineweb_train_00000%d.bin\":\"%016llx\"", i,
                                            (unsigned long long)hash));
    }
    assert_int_equal(lks__shards_n_files(val), 1);
    assert_int_equal(lks__shards_n_files(all), 2);
    static const char first[] = "line 0 of one\nand of a more, \xc3\xa9t\xc3\xa9";
    static const char last[] = "\0\r\n\xf0\x9f\x98\x80";
    int32_t ids[64];
    assert_ok(lks__shards_read(val, 0, sizeof first + 1, ids));
    assert_int_equal(ids[0], 1);
    for (size_t i = 0; i < sizeof first - 1; i++)
        assert_int_equal(ids[i + 1], 4 + (unsigned char)first[i]);
    assert_int_equal(ids[sizeof first], 1); /* the next document */
    assert_ok(lks__shards_read(all, lks__shards_count(all) - sizeof last, sizeof last, ids));
    assert_int_equal(ids[0], 1);
    for (size_t i = 0; i < sizeof last - 1; i++)
        assert_int_equal(ids[i + 1], 4 + (unsigned char)last[i]);
    lks__shards_close(val);
    lks__shards_close(all);
}

/* Bits per byte from the loss, the targets, and those of them that are bytes. */
static double bits_per_byte(double loss)
{
    lks__shards *val = open_shards(LKS__SHARDS_VAL);
    const uint64_t n = (lks__shards_count(val) - 1) / 16 * 16;
    int32_t *ids = test_malloc((n + 1) * sizeof *ids);
    double bytes = 0.0;
    assert_ok(lks__shards_read(val, 0, n + 1, ids));
    for (uint64_t i = 1; i <= n; i++)
        bytes += ids[i] >= 4;
    test_free(ids);
    lks__shards_close(val);
    assert_true(bytes < (double)n); /* BOS counts as a token, and none of the bytes */
    return loss / log(2.0) * (double)n / bytes;
}

TEST(test_bpb)
{
    const json_t *evals = lks_test_record(lks_test_text("%s/run", dir), "eval"), *line;
    size_t i;
    assert_true(json_array_size(evals) > 0);
    json_array_foreach(evals, i, line)
    {
        const double bpb = bits_per_byte(lks_test_number(line, "val_loss"));
        assert_near(lks_test_number(line, "val_bpb"), bpb, 1e-6);
    }
    const char *log = lks_test_read(lks_test_text("%s/run/train.log", dir), NULL);
    assert_contains(log,
                    lks_test_text("val_bpb:enabled tokenizer_kind=byte tokenizer_path=%s/"
                                  "meta.json\n",
                                  data),
                    "\nnext: lockstep sample ");
    /* eval of the checkpoint and of the artifact, with and without the folder's meta.json */
    const char *shards = lks_test_text("--dataset=%s/" LKS__SHARDS_VAL, data);
    double loss, bpb;
    const char *const more[] = {run, lks_test_text("--artifact=%s/run/final_model.int8.ptz", dir)};
    for (int a = 0; a < 2; a++) {
        const lks_test_result r = lks_test_do("lockstep", "eval", more[a], shards);
        assert_int_equal(sscanf(strstr(r.out, " loss "), " loss %lf", &loss), 1);
        assert_non_null(strstr(r.out, "perplexity "));
        assert_int_equal(sscanf(strstr(r.out, ", ") + 2, "%lf bits", &bpb), 1);
        assert_near(bpb, bits_per_byte(loss), 1e-6);
    }
}

TEST(test_sample)
{
    const char *const argv[] = {
        "lockstep", "sample", run, "--num_samples=1", "--start=\xc3\xa9", "--max_new_tokens=30",
        NULL};
    const lks_test_result r = assert_exits(
        0, lks_test_run(argv, (const char *const[]){"TOKENIZER_PATH=/none", NULL}, 60));
    assert_memory_equal(r.out, "\xc3\xa9", 2);
    assert_contains(r.err, "not used here: TOKENIZER_PATH: the tokens are single bytes\n");
    lks_test_write_text(lks_test_text("%s/empty", dir), "");
    lks_test_do("lockstep", "sample", run, "--num_samples=1",
                lks_test_text("--start=FILE:%s/empty", dir));
    assert_exits(2, lks_test_tool("sample", run, "--tokenizer_path=/none.model"),
                 "need no tokenizer");
}

/* The file that the data script writes beside its shards, which come without meta.json. */
TEST(test_description)
{
#define DESCRIPTION(offset)                                                                        \
    "{\n  \"config\": {\n    \"bos_id\": 1,\n    \"byte_count\": 256,\n    "                       \
    "\"byte_offset\": " offset                                                                     \
    ",\n    \"eos_id\": 2,\n    \"pad_id\": 0,\n    \"unk_id\": 3\n  },\n"                         \
    "  \"tokenizer_type\": \"pure_byte\",\n  \"vocab_size\": 260\n}\n"
    static const char good[] = DESCRIPTION("4"), bad[] = DESCRIPTION("3");
    const char *path = lks_test_text("%s/fineweb_pure_byte_260.json", dir);
    const char *bare = lks_test_text("%s/bare", dir),
               *token = lks_test_text("--tokenizer_path=%s", path);
    bool found;
    lks_test_write_text(path, good);
    lks_test_do("sh", "-c", lks_test_text("cp -r %s %s && rm %s/meta.json", data, bare, bare));
    const char *out = lks_test_text("--out_dir=%s/again", dir);
    lks_test_do("lockstep", "train", SMALL, lks_test_text("--dataset=%s", bare), out, token,
                "--vocab_size=260");
    assert_same_file(lks_test_text("%s/again/latest/model.safetensors", dir),
                     lks_test_text("%s/run/latest/model.safetensors", dir));
    assert_same_file(lks_test_text("%s/again/latest/state.json", dir),
                     lks_test_text("%s/run/latest/state.json", dir));
    lks_test_do("lockstep", "sample", out, token, "--num_samples=1", "--max_new_tokens=5");
    /* A resume keeps it: evaluations still have val_bpb, and checkpoints the tokenizer. */
    lks_test_do("lockstep", "train", out, "--init_from=resume", "--iterations=5");
    assert_true(lks_test_number(lks_test_record(lks_test_text("%s/again", dir), "final"),
                                "0.val_bpb") > 0.0);
    assert_exits(2,
                 lks_test_tool("train", SMALL, lks_test_text("--dataset=%s", bare),
                               lks_test_text("--out_dir=%s/other", dir), token, "--vocab_size=261"),
                 "are 260, but the vocabulary has 261");
    /* weights that don't say what their tokens are */
    lks_test_do("lockstep", "export", "--format=golf", run, lks_test_text("--out=%s/raw.pt", dir));
    const char *raw = lks_test_text("--init_from=%s/raw.pt", dir);
    const char *const names[] = {path, data};
    for (int i = 0; i < 2; i++)
        assert_memory_equal(lks_test_do("lockstep", "sample", raw, "--n_head=2", "--num_samples=1",
                                        lks_test_text("--tokenizer=%s", names[i]), "--start=xyz")
                                .out,
                            "xyz", 3);
    assert_contains(lks_test_do("lockstep", "eval", raw, "--n_head=2", "--block_size=16", token,
                                lks_test_text("--dataset=%s", bare))
                        .out,
                    " bits per byte), ");
    lks_test_write_text(path, bad);
    assert_fails(LKS_ERR_FORMAT, lks__byte_tokens_at(path, &found), path, "must begin at 4 of 260");
    lks_test_write(path, "{\"version\":\"1.0\"}", 17);
    assert_ok(lks__byte_tokens_at(path, &found));
    assert_false(found);
}

/* A text in another encoding keeps its bytes, and prep says so. */
TEST(test_any_bytes)
{
    const char *text = lks_test_text("%s/latin1", dir), *out = lks_test_text("%s/latin", dir);
    lks_test_write(text, "caf\xe9\n\n\xff", 7);
    const lks_test_result r =
        lks_test_do("lockstep", "prep", "bytes", lks_test_text("--input=%s", text),
                    lks_test_text("--out=%s", out));
    assert_contains(
        r.err,
        "is not valid UTF-8 (byte 0xe9 at offset 3), and its bytes are kept, but "
        "samples will show U+FFFD for them; it looks like LATIN1: `iconv -f LATIN1 -t UTF-8 ");
    static const uint16_t train[] = {LKS__BYTE_BOS, 0xff + 4},
                          val[] = {LKS__BYTE_BOS, 'c' + 4, 'a' + 4, 'f' + 4, 0xe9 + 4};
    size_t bytes;
    const char *shard = lks_test_read(lks_test_text("%s/fineweb_train_000000.bin", out), &bytes);
    assert_int_equal(bytes, 1024 + sizeof train);
    assert_memory_equal(shard + 1024, train, sizeof train);
    shard = lks_test_read(lks_test_text("%s/fineweb_val_000000.bin", out), &bytes);
    assert_int_equal(bytes, 1024 + sizeof val);
    assert_memory_equal(shard + 1024, val, sizeof val);
}

/* An empty text, JSON lines that aren't UTF-8, and settings of other kinds. */
TEST(test_refused)
{
    const char *text = lks_test_text("%s/text", dir), *out = lks_test_text("--out=%s/none", dir);
    const char *input = lks_test_text("--input=%s", text);
    lks_test_write(text, "\n\n", 2);
    assert_exits(1, lks_test_tool("prep", "bytes", input, out), "is empty");
    const char *lines = lks_test_text("%s/text.jsonl", dir);
    lks_test_write(lines, "{\"text\":\"\xff\"}\n", 13);
    assert_exits(1, lks_test_tool("prep", "bytes", lks_test_text("--input=%s", lines), out));
    assert_contains(lks_test_tool("prep", "bytes", input, out, "--vocab_size=300").err,
                    "--vocab_size doesn't apply to bytes tokens");
    assert_false(lks_test_exists(lks_test_text("%s/none", dir)));
}

int main(void)
{
    return lks_test_run_all(train, NULL);
}
