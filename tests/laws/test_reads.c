/* `lockstep diff` names the first token in which the data of two runs differ, and the first step
 * that read one: it must be the step from which the records differ. A hash of whole files finds a
 * token that the digest of large files misses. */
#include "laws.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokens.h"
#include "report/diff/diff.h"
#include "train/audit/diff.h"

enum { N = 900, VOCAB = 64 };

/* Write a dataset in which one token (>= 0) has another id. Returns its folder. */
static const char *write_data(bool golf, int altered)
{
    static uint16_t ids[N];
    const char *dir = lks_test_folder();
    for (int i = 0; i < N; i++)
        ids[i] = (uint16_t)(i * i % 59 + i % 4);
    if (golf)
        lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), ids, 100);
    else
        lks_test_write(lks_test_text("%s/val.bin", dir), ids, 100 * sizeof *ids);
    if (altered >= 0)
        ids[altered] ^= 1;
    if (golf) { /* of two files */
        lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", dir), ids, 300);
        lks_test_write_shard(lks_test_text("%s/fineweb_train_000001.bin", dir), ids + 300, N - 300);
    } else {
        lks_test_write(lks_test_text("%s/train.bin", dir), ids, sizeof ids);
    }
    return dir;
}

static const char *weights; /* --init_from of new runs, or NULL */

/* A run of 12 steps. `more`: for a resume in the middle, with another batch; or NULL. */
static const char *train(const char *data, const char *sampler, const char *more)
{
    const bool golf = strcmp(sampler, "stream") == 0;
    const char *out = lks_test_folder();
    for (int part = 0; part < (more != NULL ? 2 : 1); part++) {
        const int steps = more != NULL && part == 0 ? 6 : 12;
        law_args args = law_begin(data, out);
        law_add(&args, "--sampler=%s", sampler);
        law_add_all(&args, "--n_layer=1", "--n_head=1", "--n_embd=8", "--block_size=8",
                    "--vocab_size=64", "--virtual_ranks=2", "--eval_interval=4", "--threads=1",
                    "--checkpoint_interval=3", "--tensorboard=false",
                    "--gradient_accumulation_steps=4");
        if (golf) {
            law_add_all(&args, "--family=golf", "--num_kv_heads=1", "--max_wallclock_seconds=0",
                        "--train_batch_tokens=32", "--val_batch_size=16");
            law_add(&args, "--iterations=%d", steps);
        } else {
            law_add_line(&args, "--batch_size=1 --eval_iters=2 --max_iters=%d", steps - 1);
        }
        if (part == 0 && weights != NULL)
            law_add(&args, "--init_from=%s", weights);
        if (part == 1) {
            law_add(&args, "--init_from=resume");
            law_add(&args, "%s", more);
        }
        law_run(&args);
    }
    return out;
}

/* Until the next call. */
static const json_t *differ(const char *a, const char *b)
{
    static json_t *r;
    lks__history both[2];
    lks__settings s;
    json_decref(r);
    r = NULL;
    lks__settings_defaults(&s);
    assert_ok(lks__diff(a, b, both, &r));
    assert_ok(lks__reads_diff(both, &s, r));
    lks__history_close(&both[0]);
    lks__history_close(&both[1]);
    return r;
}

/* Compare with the record of a run on the altered data. Returns true if a step has read the token.
 */
static bool check(const char *a, const char *b, int altered)
{
    const json_t *r = differ(a, b), *first = json_object_get(r, "first");
    assert_int_equal(json_array_size(lks_test_member(r, "data.splits")), 1);
    assert_int_equal(lks_test_number(r, "data.splits.0.token"), altered);
    assert_int_equal(lks_test_number(r, "data.splits.0.different"), 1);
    for (int i = 0; i < 2; i++) {
        const json_t *step = json_array_get(lks_test_member(r, "data.splits.0.read"), (size_t)i);
        assert_true(json_is_null(
            json_array_get(lks_test_member(r, "data.splits.0.unread_why"), (size_t)i)));
        if (json_is_object(first)) {
            assert_int_equal(lks_test_number(step, "step"), lks_test_number(r, "first.iter"));
            assert_int_equal(lks_test_number(step, "token"), altered);
        } else {
            assert_true(json_is_null(step));
        }
    }
    return json_is_object(first);
}

TEST(test_steps)
{
    static const struct {
        const char *sampler, *more;
    } runs[] = {{"random", NULL},
                {"nanogpt", NULL},
                {"epoch", NULL},
                {"stream", NULL},
                {"random", "--batch_size=2"},
                {"nanogpt", "--batch_size=2"},
                {"epoch", "--batch_size=2"},
                {"stream", "--train_batch_tokens=64"}};
    static const int altered[] = {130, 702};
    int n_read = 0;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const bool golf = strcmp(runs[i].sampler, "stream") == 0;
        const char *a = train(write_data(golf, -1), runs[i].sampler, runs[i].more);
        for (int k = 0; k < (runs[i].more == NULL ? 2 : 1); k++)
            n_read += check(a, train(write_data(golf, altered[k]), runs[i].sampler, runs[i].more),
                            altered[k]);
    }
    assert_in_range(n_read, 3, 11); /* of 12: both cases occur */
}

/* Of runs that begin with given weights, too, except with sampler=nanogpt, which draws its
 * positions after the weights of a run that has none. */
TEST(test_given_weights)
{
    const char *first = train(write_data(false, -1), "random", NULL);
    for (int nanogpt = 0; nanogpt < 2; nanogpt++) {
        const char *sampler = nanogpt ? "nanogpt" : "random", *runs[2];
        weights = first;
        for (int i = 0; i < 2; i++)
            runs[i] = train(write_data(false, i == 0 ? -1 : 130), sampler, NULL);
        weights = NULL;
        if (!nanogpt)
            check(runs[0], runs[1], 130);
        else
            assert_contains(lks_test_string(differ(runs[0], runs[1]), "data.unknown"),
                            "run A: the run began with given weights, so the first numbers of "
                            "sampler=nanogpt aren't in its record");
    }
}

/* People see file, offset and tokens. Data that no step has read change nothing. */
TEST(test_printed)
{
    const char *a = train(write_data(false, -1), "random", NULL);
    int seen = 0;
    for (int k = 1; seen != 3 && k < 40; k++) {
        const int altered = k * 331 % N, id = altered * altered % 59 + altered % 4;
        const char *data = write_data(false, altered), *b = train(data, "random", NULL);
        const bool read = check(a, b, altered);
        const lks_test_result r = lks_test_tool("diff", a, b);
        assert_contains(r.out, lks_test_text("train token %d is %d (", altered, id),
                        lks_test_text("| %d (%s/train.bin, byte %d); 1 token differs\n", id ^ 1,
                                      data, 2 * altered),
                        read ? "A and B read such a token first in step "
                             : "A and B read no such token\n");
        if (read && !(seen & 1))
            law_assert_remedy(a, b, lks_test_text("%s-equal", b), a);
        if (!read && r.exit_code == 0) /* not even an evaluation */
            assert_contains(r.out, "changes no bit    data, digest ");
        seen |= read ? 1 : r.exit_code == 0 ? 2 : 0;
    }
    assert_int_equal(seen, 3);
    const char *cut = write_data(false, -1);
    assert_int_equal(truncate(lks_test_text("%s/train.bin", cut), 2 * (N - 3)), 0);
    const lks_test_result r = lks_test_tool("diff", a, train(cut, "random", NULL));
    assert_contains(
        r.out, lks_test_text("train token %d is ", N - 3),
        lks_test_text(" | the data end after %d tokens, the first of 3 tokens that differ\n",
                      N - 3),
        "the lengths differ, so samplers can draw other positions\n",
        lks_test_text("the data differ: train has %d | %d tokens, so samplers "
                      "can draw other positions\n",
                      N, N - 3));
    uint16_t *ids = (uint16_t *)lks_test_read(lks_test_text("%s/train.bin", cut), NULL);
    for (int i = 50; i < N - 3; i += 97) /* read later than other positions */
        ids[i] ^= 1;
    lks_test_write(lks_test_text("%s/train.bin", cut), ids, 2 * (N - 3));
    const lks_test_result early = lks_test_tool("diff", a, train(cut, "random", NULL));
    assert_contains(early.out, "The records differ first at step 0:\n",
                    " read such a token first in step 1, ", "the data differ: train has ");
    const char *half = write_data(false, -1);
    assert_int_equal(truncate(lks_test_text("%s/train.bin", half), N), 0);
    const lks_test_result shorter = lks_test_tool("diff", a, train(half, "random", NULL));
    assert_contains(shorter.out, " | -\n"); /* A has read a token after B's end */
    const char *gone = write_data(false, 5), *c = train(gone, "random", NULL);
    remove(lks_test_text("%s/train.bin", gone));
    assert_contains(lks_test_tool("diff", a, c).out, "data              not compared: run B: ");
    /* --dataset=DIR is of the run whose data have moved. */
    const char *from = write_data(false, 5), *to = lks_test_text("%s/to", lks_test_folder());
    const char *moved = train(from, "random", NULL), *dataset = lks_test_text("--dataset=%s", to);
    assert_int_equal(rename(from, to), 0);
    assert_contains(lks_test_tool("diff", a, moved).out, "doesn't exist now: give --dataset=DIR");
    const lks_test_result given = lks_test_tool("diff", a, moved, dataset);
    assert_contains(given.out, lks_test_text(" | 27 (%s/train.bin, byte 10); 1 token differs", to));
    assert_null(strstr(given.out, "not "));
}

/* Data that have moved: the remedy needs those of the run that it repeats. */
TEST(test_moved)
{
    static uint16_t ids[N];
    const char *dirs[2], *places[2], *runs[2];
    for (int i = 0; i < 2; i++) {
        dirs[i] = write_data(false, -1);
        places[i] = lks_test_text("%s/to", lks_test_folder());
        if (i == 1)
            lks_test_write(lks_test_text("%s/train.bin", dirs[i]), ids, sizeof ids);
        runs[i] = train(dirs[i], "random", NULL);
    }
    assert_int_equal(rename(dirs[0], places[0]), 0);
    lks_test_result r = lks_test_tool("diff", runs[0], runs[1], "--dataset=nosuch");
    assert_contains(r.out, "trains A again, as the same run as B:\n");
    assert_null(strstr(r.out, "--dataset=nosuch "));
    r = lks_test_tool("diff", runs[0], runs[1], lks_test_text("--dataset=%s", places[0]));
    assert_contains(r.out, lks_test_text("--dataset=%s --out_dir=%s-equal", places[0], runs[1]));
    assert_int_equal(rename(dirs[1], places[1]), 0);
    r = lks_test_tool("diff", runs[0], runs[1], lks_test_text("--dataset=%s", places[1]));
    assert_contains(r.out,
                    lks_test_text("run A: %s has the data of B, not of A: one --dataset "
                                  "can't serve both, so put A's data back in %s\n",
                                  places[1], dirs[0]),
                    "trains A again, as the same run as B:\n");
    r = lks_test_tool("diff", runs[0], runs[1], "--dataset=nosuch");
    assert_contains(r.out, "remedy            not possible here: run A: ");
    assert_int_equal(rename(places[0], dirs[0]), 0);
    const char *resumed = train(dirs[0], "random", "--learning_rate=0.1");
    assert_int_equal(rename(dirs[0], places[0]), 0);
    r = lks_test_tool("diff", runs[0], resumed, lks_test_text("--dataset=%s", places[0]));
    assert_contains(r.out, "this command continues B from checkpoint 6 ",
                    lks_test_text(" --dataset=%s\n", places[0]));
    r = lks_test_tool("diff", runs[0], resumed);
    assert_contains(r.out, "remedy            not possible here: run B: ");
}

/* If many tokens differ, the data's row names the token at which the execution finds the place.
 */
TEST(test_same_place)
{
    static uint16_t ids[N];
    static const int every[] = {41, 80, 3}; /* anywhere, at the ends of samples, several in each */
    for (int k = 0; k < 6; k++) {
        const int golf = k % 2, n = every[k / 2];
        const char *sampler = golf ? "stream" : "epoch", *data = write_data(golf, -1);
        const char *a = train(data, sampler, NULL), *other = write_data(golf, -1);
        for (int i = 0; i < N; i++)
            ids[i] = (uint16_t)(i * i % 59 + i % 4) ^ (i % n == (n == 80 ? 0 : n - 1));
        if (golf)
            lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", other), ids, 300);
        else
            lks_test_write(lks_test_text("%s/train.bin", other), ids, sizeof ids);
        const char *b = train(other, sampler, NULL);
        const json_t *r = lks_test_json(lks_test_tool("diff", a, b, "--json").out);
        const json_t *read = json_array_get(lks_test_member(r, "data.splits.0.read"), 0);
        const json_t *place = lks_test_member(r, "execution.place");
        static const char *const equal[] = {"virtual_rank", "micro_batch"};
        for (int i = 0; i < 2; i++)
            assert_int_equal(lks_test_number(read, equal[i]),
                             lks_test_number(lks_test_member(place, "a"), equal[i]));
        assert_int_equal(lks_test_number(read, "step"), lks_test_number(r, "execution.step"));
        if (!golf && n > 3) /* others read the first one first */
            assert_true(lks_test_number(read, "token") !=
                        lks_test_number(r, "data.splits.0.token"));
        assert_true(json_equal(json_object_get(read, "ids"), json_object_get(place, "values")));
        assert_contains(lks_test_tool("diff", a, b).out,
                        lks_test_text("cause             the data differ: train token %d is ",
                                      (int)lks_test_number(read, "token")));
    }
}

/* Only evaluations read the validation split. */
TEST(test_evaluations)
{
    const char *data = write_data(false, -1), *a = train(data, "random", NULL);
    const char *other = write_data(false, -1), *file = lks_test_text("%s/val.bin", other);
    size_t bytes;
    uint16_t *ids = (uint16_t *)lks_test_read(file, &bytes);
    for (int i = 0; i < 100; i++)
        ids[i] ^= 1;
    lks_test_write(file, ids, bytes);
    const char *b = train(other, "random", NULL);
    const lks_test_result r = assert_exits(3, lks_test_tool("diff", a, b));
    assert_contains(r.out, "evaluations only  data, digest ",
                    "The same steps: 12 steps, 4 checkpoints, weights ",
                    "Only evaluations differ, first at iteration 0:\n  val_loss ",
                    "cause             the data differ: val token 0 is 0 | 1\n");
    law_assert_remedy(a, b, lks_test_text("%s-equal", b), a);
}

/* --- large files ------------------------------------------------------------------------------ */

static void write_meta(const char *dir)
{
    lks__tokens *t;
    uint64_t train, val;
    assert_ok(lks__tokens_open(lks_test_text("%s/train.bin", dir), VOCAB, &t));
    assert_false(lks__tokens_whole(t));
    assert_ok(lks__tokens_hash(t, &train));
    lks__tokens_close(t);
    assert_ok(lks__tokens_open(lks_test_text("%s/val.bin", dir), VOCAB, &t));
    assert_ok(lks__tokens_hash(t, &val));
    lks__tokens_close(t);
    const char *text =
        lks_test_text("{\"kind\":\"ids\",\"vocab_size\":%d,\"hashes\":{\"train.bin\":"
                      "\"%016" PRIx64 "\",\"val.bin\":\"%016" PRIx64 "\"}}",
                      VOCAB, train, val);
    lks_test_write_text(lks_test_text("%s/meta.json", dir), text);
}

/* A token in no page that the digest reads. */
TEST(test_large)
{
    enum { TOKEN = 1000003 };
    const char *runs[2], *dirs[2];
    for (int i = 0; i < 2; i++) {
        dirs[i] = write_data(false, -1);
        const char *train_bin = lks_test_text("%s/train.bin", dirs[i]);
        assert_int_equal(truncate(train_bin, (256 << 20) + 4096), 0);
        if (i == 1)
            lks_test_overwrite(train_bin, 2 * TOKEN, "\1", 1);
        write_meta(dirs[i]);
        runs[i] = train(dirs[i], "random", NULL);
    }
    const lks_test_result r = lks_test_do("lockstep", "diff", runs[0], runs[1]);
    assert_contains(r.out, "changes no bit    data, hash of whole files ",
                    lks_test_text("train token %d is 0 (", TOKEN));
    lks_test_result audit = lks_test_do("lockstep", "audit", runs[0], "--step=0");
    assert_contains(audit.out, "because the digest samples them: equal (");
    lks_test_overwrite(lks_test_text("%s/train.bin", dirs[0]), 2 * TOKEN, "\1", 1);
    audit = assert_exits(4, lks_test_tool("audit", runs[0], "--step=0"));
    assert_contains(audit.out, "has changed since `lockstep prep` wrote it");
    lks_test_do("lockstep", "audit", runs[0], "--step=0", "--leaf=1");
    write_meta(dirs[0]); /* prepared again, from another text */
    audit = assert_exits(4, lks_test_tool("audit", runs[0], "--step=0"));
    assert_contains(audit.out, " aren't the run's: their hash is ");
}
