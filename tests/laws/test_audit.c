/* `lockstep audit`: honest runs are equal, planted lies are found and located, and what can't be
 * executed is said with its reason. */
#include "laws.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/checkpoint/ckpt.h"
#include "poison.h"
#include "train/audit/audit.h"

static void expect(const char *const argv[], int code, const char *const texts[])
{
    const lks_test_result r = assert_exits(code, lks_test_run(argv, NULL, 60));
    for (int i = 0; texts[i] != NULL; i++)
        assert_contains(code == 1 || code == 2 ? r.err : r.out, texts[i]);
}
#define TEXTS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define EXPECT(code, texts, ...)                                                                   \
    expect((const char *const[]){"lockstep", "audit", __VA_ARGS__, NULL}, (code), (texts))

/* The whole run, from its seed. */
static const char *whole(const char *out, int steps, int V)
{
    EXPECT(0,
           TEXTS(lks_test_text("0-%d  from the seed, %d steps to compute; the run took ", steps,
                               steps),
                 lks_test_text("equal (%d steps, %d gradients, ", steps, steps * V),
                 "not shown: where the data come from"),
           out);
    return out;
}

static void remove_folder(const char *path)
{
    lks_test_do("rm", "-r", path);
}

static const char *reference(void)
{
    static const char *out;
    if (out == NULL)
        out = law_output("random", "--nproc_per_node=2");
    return out;
}

/* --- honest runs ------------------------------------------------------------------------------ */

TEST(test_whole)
{
    static const char *const samplers[] = {"nanogpt", "epoch"};
    static const char *const more[] = {"--optimizer=muon", "--optimizer=sgd",
                                       "--freeze=wpe|h.0.mlp", "--dtype=bfloat16"};
    const char *before = lks_test_copy_of(reference());
    whole(reference(), LAW_STEPS, LAW_V);
    const char *const diff[] = {"diff", "-r", before, reference(), NULL}; /* nothing is written */
    assert_exits(0, lks_test_run(diff, NULL, 10));
    for (int i = 0; i < 2; i++)
        whole(law_output(samplers[i], "--nproc_per_node=4"), LAW_STEPS, LAW_V);
    for (int i = 0; i < 4; i++) {
        const char *out = law_family_run(false, NULL, more[i], i == 0 ? "--weight_decay=0" : NULL);
        whole(out, LAW_STEPS, LAW_V);
    }
    whole(law_family_run(true, NULL, "--nproc_per_node=2"), 6, 8);
}

/* The linker's --wrap redirects calls of this function to here: the first one deletes `pruned`, and
 * cuts the file `shortened` or alters the end of `rewritten`, as a run in progress may do. */
static const char *pruned, *shortened, *rewritten;
__typeof__(lks__ckpt_open_iter) __real_lks__ckpt_open_iter, __wrap_lks__ckpt_open_iter;
lks_status __wrap_lks__ckpt_open_iter(const char *run, uint64_t iter, int parts, lks__ckpt *ckpt)
{
    if (pruned != NULL)
        remove_folder(pruned);
    if (shortened != NULL)
        assert_int_equal(truncate(shortened, 500), 0);
    if (rewritten != NULL)
        lks_test_alter(rewritten, -3);
    pruned = shortened = rewritten = NULL;
    return __real_lks__ckpt_open_iter(run, iter, parts, ckpt);
}

/* A checkpoint that is deleted while the audit opens it is compared by its hash, as one that was
 * deleted before. */
TEST(test_pruned)
{
    const char *out = lks_test_copy_of(reference());
    enum lks__verdict verdict;
    lks__settings s;
    char *text;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    lks__settings_defaults(&s);
    pruned = lks_test_text("%s/ckpt-00000003", out);
    assert_ok(lks__audit(out, &s, to, &verdict));
    assert_int_equal(fclose(to), 0);
    assert_false(lks_test_exists(lks_test_text("%s/ckpt-00000003", out)));
    assert_null(strstr(text, "FALSE"));
    assert_contains(text, " checkpoints, 1 by hash only, ");
    assert_int_equal(verdict, LKS__VERDICT_EQUAL);
    free(text);
}

/* Parts of a run, from the nearest checkpoint. */
TEST(test_parts)
{
    const char *out = reference();
    EXPECT(0,
           TEXTS("10-11  from checkpoint 9, 2 steps to compute", "equal (2 steps, 16 gradients, "),
           out, "--step=10");
    EXPECT(0,
           TEXTS("10-11  from checkpoint 9, 2", "equal (1 step, 9 gradients, ",
                 "not compared: the step's own loss, norm and rate, evaluations, times, hosts, "
                 "parameters, settings without an effect, ",
                 "that the gradient was used"),
           out, "--step=10", "--leaf=5", "--threads=1");
    EXPECT(0,
           TEXTS("3-9  from checkpoint 3, 6 steps", "equal (6 steps, 48 gradients, 4 checkpoints"),
           out, "--from=3", "--to=9");
    EXPECT(0,
           TEXTS("drawn     3 of 7 segments between checkpoints; --draw=beef draws the same ones\n",
                 "one false segment passes such a sample in 57.1 % of all draws, one with three in "
                 "11.4 %"),
           out, "--sample=3", "--draw=beef");
    lks_test_result r = lks_test_tool("audit", out, "--sample=5", "--draw=beef");
    int from, last = -1, n = 0; /* in the order of steps */
    for (const char *at = r.out; (at = strchr(at, '\n')) != NULL; at++)
        if (sscanf(at, "\n%d-%*d  from", &from) == 1) {
            assert_true(from > last);
            last = from;
            n++;
        }
    assert_int_equal(n, 5);
    const char *texts[2];
    for (int i = 0; i < 2; i++) {
        r = lks_test_do("lockstep", "audit", out, "--sample=1", i == 0 ? "--draw=1" : "--draw=3");
        texts[i] = lks_test_text("%s", strchr(r.out, '\n'));
    }
    assert_string_not_equal(texts[0], texts[1]); /* other numbers draw another segment */
}

/* The first weights are gone, and no segment has the steps before the first checkpoint. */
TEST(test_no_start)
{
    static const char lacks[] = "0-3  not compared, because there is no checkpoint before\n";
    const char *first = lks_test_text("%s/ckpt-00000003", reference());
    const char *out = law_output("random", lks_test_text("--init_from=%s", first));
    EXPECT(4, TEXTS(lacks, "3-14  from checkpoint 3, 11 steps"), out);
    EXPECT(4, TEXTS(lacks, "passes such a sample in 14.3 % of all draws"), out, "--sample=99");
}

/* A resume changed the learning rate: from the checkpoint, and over it from an earlier one. */
TEST(test_resumed)
{
    const char *out = law_output("nanogpt", "--max_iters=6");
    law_resume("nanogpt", out, "--learning_rate=5e-4", "--weight_decay=0.3", "--eval_interval=5",
               "--nproc_per_node=2");
    whole(out, LAW_STEPS, LAW_V);
    EXPECT(0, TEXTS("7-9  from checkpoint 7, 2 steps", " s on 2 ranks, without"), out, "--from=7",
           "--to=9");
    remove_folder(lks_test_text("%s/ckpt-00000007", out));
    EXPECT(0, TEXTS("7-9  from checkpoint 6, 3 steps", " s on 1 to 2 ranks, without"), out,
           "--from=7", "--to=9");
    const char *other = law_output("random", "--max_iters=6");
    law_resume("random", other, "--dropout=0.2");
    EXPECT(0, TEXTS("7-9  from checkpoint 7, 2 steps"), other, "--from=7", "--to=9");
    EXPECT(0, TEXTS("0-7  from the seed, 7 steps", "7-14  from checkpoint 7, 7 steps"), other);
    remove_folder(lks_test_text("%s/ckpt-00000007", other));
    EXPECT(4, TEXTS("not possible here: a resume changed dropout at iteration 7, and that"), other);
}

/* A lost record begins again where the run was resumed. Older checkpoints are no part of it. */
TEST(test_lost)
{
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/metrics.jsonl", out);
    const json_t *host = json_array_get(lks_test_metrics(path, "host"), 0);
    const char *data =
        json_string_value(json_object_get(json_object_get(host, "paths"), "dataset"));
    assert_int_equal(unlink(path), 0);
    lks_test_do("lockstep", "resume", lks_test_text("%s/ckpt-00000009", out),
                lks_test_text("--dataset=%s", data));
    EXPECT(0, TEXTS("9-14  from checkpoint 9, 5 steps"), out);
}

/* The auditor's variables, which would be settings of a new run, change nothing. */
TEST(test_variables)
{
    const char *out = law_family_run(true, NULL, "--iterations=3");
    law_family_run(true, out, "--init_from=resume", "--matrix_lr=0.05");
    setenv("MATRIX_LR", "0.5", 1);
    setenv("SCALAR_LR", "0.5", 1);
    setenv("ITERATIONS", "9", 1);
    EXPECT(0, TEXTS("3-6  from checkpoint 3, 3 steps", "equal (3 steps"), out, "--from=3");
    unsetenv("MATRIX_LR");
    unsetenv("SCALAR_LR");
    unsetenv("ITERATIONS");
}

/* A resume with another batch begins a segment of the run and of leaves.bin. */
TEST(test_segments)
{
    const char *out = law_output("nanogpt", "--max_iters=6");
    law_resume("nanogpt", lks_test_text("%s/ckpt-00000006", out), "--batch_size=3",
               "--gradient_accumulation_steps=24");
    EXPECT(0, TEXTS("6-14  from checkpoint 6, 8 steps", "equal (8 steps, 64 gradients"), out,
           "--from=6");
    EXPECT(0, TEXTS("equal (6 steps, 48 gradients"), out, "--to=6");
    EXPECT(0, TEXTS("0-6  from the seed", "6-14  from checkpoint 6"), out);
    const char *golf = law_family_run(true, NULL, NULL);
    law_family_run(true, lks_test_text("%s/ckpt-00000003", golf), "--init_from=resume",
                   "--train_batch_tokens=768", "--virtual_ranks=4");
    EXPECT(0, TEXTS("equal (3 steps, 12 gradients"), golf, "--from=3");
}

/* A resume with another batch evaluates again, and keeps the lower loss of before. */
TEST(test_evaluated_again)
{
    const char *out = law_output("nanogpt", "--max_iters=8", "--eval_iters=1",
                                 "--learning_rate=0.01", "--seed=11");
    law_resume("nanogpt", lks_test_text("%s/ckpt-00000008", out), "--batch_size=3",
               "--gradient_accumulation_steps=24");
    const json_t *evals = lks_test_record(out, "eval");
    lks__ckpt c = {.iter = 0};
    assert_ok(lks__ckpt_open_iter(out, 8, LKS__CKPT_ONLY_STATE, &c));
    for (int i = 0; i < 3; i++)
        assert_true(lks_test_number(c.state, "best_val_loss") + 1e-3 <
                    lks_test_number(evals, lks_test_text("%d.val_loss", i)));
    lks__ckpt_close(&c);
    EXPECT(0, TEXTS("0-8  from the seed", "8-14  from checkpoint 8"), out);
}

/* Two resumes from one checkpoint. The second begins with the settings of the first if that had
 * saved the checkpoint again, else with those of before. */
TEST(test_resumed_twice)
{
    const char *out = law_output("nanogpt", "--max_iters=8");
    const char *from = lks_test_text("%s/ckpt-00000008", out), *stopped = lks_test_copy_of(out);
    law_resume("nanogpt", from, "--batch_size=3", "--gradient_accumulation_steps=24",
               "--learning_rate=5e-4", "--max_iters=9");
    lks_test_do("lockstep", "resume", from, "--max_iters=12");
    EXPECT(0, TEXTS("0-8  from the seed", "8-13  from checkpoint 8", "equal (5 steps, 40"), out);
    lks_test_do("lockstep", "resume", from, "--max_iters=11", "--batch_size=2");
    EXPECT(0, TEXTS("0-8  from the seed", "8-12  from checkpoint 8", "equal (4 steps, 32"), out);
    lks_test_do("lockstep", "resume", from, "--max_iters=10", "--learning_rate=1e-3");
    EXPECT(0, TEXTS("0-8  from the seed", "8-11  from checkpoint 8", "equal (3 steps, 24"), out);
    /* The first one is stopped in its evaluation. */
    for (int killed = 0; killed < 2; killed++) {
        const char *copy = lks_test_copy_of(stopped);
        from = lks_test_text("%s/ckpt-00000008", copy);
        const char *const first[] = {"lockstep",
                                     "resume",
                                     from,
                                     "--batch_size=3",
                                     "--learning_rate=5e-4",
                                     "--eval_iters=1000000",
                                     "--max_iters=12",
                                     "--timeout=20",
                                     NULL};
        lks_test_child child = lks_test_start(first, NULL);
        lks_test_wait_for_text(lks_test_text("%s/metrics.jsonl", copy), "\"resumed_iter\":8,");
        kill(child.pid, killed ? SIGKILL : SIGTERM);
        lks_test_wait(&child, 60);
        lks_test_do("lockstep", "resume", from, "--max_iters=12");
        EXPECT(0, TEXTS("0-13  from the seed", "equal (13 steps, 104 gradients"), copy);
    }
}

/* Take the line that contains `at` out of the text. */
static void drop_line(const char *text, char *at)
{
    while (at > text && at[-1] != '\n')
        at--;
    const char *next = strchr(at, '\n') + 1;
    memmove(at, next, strlen(next) + 1);
}

/* Steps that were skipped, and data that a rollback left out. */
TEST(test_not_finite)
{
    static const char *const on_nan[] = {"skip", "rollback"};
    for (int i = 0; i < 2; i++) {
        const char *out = lks_test_folder();
        law_args first = poison_train(out, 1);
        law_add(&first, "--iterations=2");
        law_run(&first);
        poison_embedding(out);
        law_args rest = poison_train(out, 2);
        law_add(&rest, "--init_from=resume");
        law_add(&rest, "--on_nan=%s", on_nan[i]);
        law_add(&rest, "--iterations=10");
        lks_test_run(rest.argv, NULL, 60); /* its artifact can't be written */
        EXPECT(0, TEXTS("2-10  from checkpoint 2, 8 steps", "equal (8 steps, "), out, "--from=2");
        /* the altered weight is a lie about the first two steps */
        EXPECT(3,
               TEXTS("FALSE     checkpoint 2: tok_emb.weight, element 1008 is nan in the file, "),
               out, "--to=2");
        if (i == 0)
            continue;
        /* the line of a step that a rollback discarded is no line of the step that replaced it */
        const char *path = lks_test_text("%s/metrics.jsonl", out);
        char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL));
        char *again = strstr(strstr(text, "\"kind\":\"rollback\""), "\"train\"");
        const int step = atoi(strstr(again, "\"iter\":") + strlen("\"iter\":"));
        assert_true(strstr(text, lks_test_text("\"train\",\"iter\":%d,", step)) < again);
        drop_line(text, again);
        lks_test_write_text(path, text);
        EXPECT(3,
               TEXTS(lks_test_text("FALSE     step %d: metrics.jsonl has no line of this step\n",
                                   step)),
               out, "--from=2");
    }
}

/* A step that no run could have made: with the recorded rate its loss isn't finite, and the run
 * would have gone back. */
TEST(test_would_go_back)
{
    const char *out = law_output("random", "--on_nan=rollback", "--threads=1");
    const char *path = lks_test_text("%s/metrics.jsonl", out), *text = lks_test_read(path, NULL);
    static const char rate[] = "\"learning_rate\":";
    const char *at = lks_test_find(text, rate);
    text = lks_test_text("%.*s%s1e6%s", (int)(at - text), text, rate, at + strcspn(at, ","));
    lks_test_write_text(path, text);
    const lks_test_result r = assert_exits(3, lks_test_tool("audit", out));
    assert_contains(r.out, "the record says that it was made; it was not finite when computed\n");
    assert_null(strstr(r.out, "nan computed"));
}

/* --- lies ------------------------------------------------------------------------------------- */

TEST(test_false_hashes)
{
    const char *out = lks_test_copy_of(reference());
    for (int i = 0; i < 6; i++) {
        const int step = i * 5 % LAW_STEPS, v = i * 3 % LAW_V;
        const long at = 32 + (long)(step * (1 + LAW_V) + 1 + v) * 8 + i;
        lks_test_alter(lks_test_text("%s/leaves.bin", out), at);
        EXPECT(
            3,
            TEXTS(lks_test_text("FALSE     step %d: the gradient of virtual rank %d of 8 has the "
                                "hash ",
                                step, v),
                  "          FALSE: 1 claim (14 steps, 112 gradients"),
            out);
        EXPECT(3,
               TEXTS(lks_test_text("FALSE     step %d: ", step),
                     lks_test_text(" in leaves.bin by rank %d on ", v / 4)),
               out, lks_test_text("--step=%d", step), lks_test_text("--leaf=%d", v));
        lks_test_alter(lks_test_text("%s/leaves.bin", out), at);
    }
    EXPECT(0, TEXTS("equal"), out);
    /* An iteration twice, and a file that is too short. */
    lks_test_alter(lks_test_text("%s/leaves.bin", out), 32 + 6 * (1 + LAW_V) * 8);
    EXPECT(
        3,
        TEXTS("FALSE     ", "leaves.bin: no run has written the record at offset 464",
              "          there are no hashes of the gradients of 8 steps, the first is step 6\n"),
        out);
    assert_int_equal(truncate(lks_test_text("%s/leaves.bin", out), 470), 0);
    EXPECT(3,
           TEXTS("FALSE     step 6: leaves.bin has no hashes of its gradients\n",
                 "FALSE: 1 claim (14 steps, 48 gradients, ", "of 8 steps, the first is step 6\n"),
           out);
    EXPECT(3, TEXTS("FALSE     step 8: leaves.bin has no hashes"), out, "--step=8", "--leaf=1");
    assert_int_equal(unlink(lks_test_text("%s/leaves.bin", out)), 0); /* as on a GPU */
    EXPECT(0, TEXTS("equal (14 steps, ", "of 14 steps, the first is step 0\n"), out);
}

/* Change a digit of a figure in the line of metrics.jsonl that contains `line`; NULL: delete the
 * line. Returns a copy of the run. */
static const char *forged(const char *line, const char *figure)
{
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/metrics.jsonl", out);
    char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL));
    char *at = lks_test_find(text, line);
    if (figure == NULL) {
        drop_line(text, at);
    } else {
        char *digit = strstr(at, lks_test_text("\"%s\":", figure)) + strlen(figure) + 3;
        if (digit[strspn(digit, "0123456789")] == '.')
            digit = strchr(digit, '.') + 3;
        *digit = *digit == '7' ? '3' : '7';
    }
    lks_test_write_text(path, text);
    return out;
}

/* "train_loss is 4.17 in metrics.jsonl, ", with the digits of that file. */
static const char *named(const char *out, const char *line, const char *figure)
{
    const char *at = lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL);
    at = strstr(strstr(at, line), lks_test_text("\"%s\":", figure)) + strlen(figure) + 3;
    return lks_test_text("%s is %.*s in metrics.jsonl, ", figure, (int)strcspn(at, ",}"), at);
}

TEST(test_false_figures)
{
    static const char *const figures[] = {"loss", "lr", "grad_norm", "tokens"};
    for (int i = 0; i < 4; i++)
        EXPECT(3,
               TEXTS(lks_test_text("FALSE     step %d: %s is ", 3 * i + 2, figures[i]),
                     "FALSE: 1 claim"),
               forged(lks_test_text("\"train\",\"iter\":%d,", 3 * i + 2), figures[i]));
    const char *out = forged("\"eval\",\"iter\":0,", "train_loss");
    EXPECT(3,
           TEXTS("FALSE     evaluation 0: ", named(out, "\"eval\",\"iter\":0,", "train_loss"),
                 "FALSE: 1 claim"),
           out);
    out = forged("\"final\",\"iter\":14,", "val_loss");
    EXPECT(3,
           TEXTS("FALSE     evaluation 14: ", named(out, "\"final\",\"iter\":14,", "val_loss"),
                 "FALSE: 1 claim"),
           out);
    out = forged("\"eval\",\"iter\":8,", "val_loss");
    EXPECT(3, TEXTS("FALSE     evaluation 8: val_loss is ", "FALSE: 3 claims (14 steps, "), out);
    EXPECT(3, TEXTS("FALSE     evaluation 8: "), out, "--from=6", "--to=8");
    EXPECT(3, TEXTS("FALSE     checkpoint 8: best_val_loss is ", "2 evaluations, "), out,
           "--from=8");
    EXPECT(0, TEXTS("not compared: evaluations, times, "), out, "--step=3");
    /* One false setting, and more claims than are printed. */
    EXPECT(3, TEXTS(" more false claims: one setting that is false makes"),
           forged("\"config\",", "seed"));
}

/* Lines that were deleted from the record. */
TEST(test_missing)
{
    static const int steps[] = {0, 7, 13};
    for (int i = 0; i < 3; i++)
        EXPECT(3,
               TEXTS(lks_test_text("FALSE     step %d: metrics.jsonl has no line of this step\n",
                                   steps[i]),
                     "FALSE: 1 claim (14 steps, "),
               forged(lks_test_text("\"train\",\"iter\":%d,", steps[i]), NULL));
    EXPECT(3,
           TEXTS("FALSE     evaluation 4: metrics.jsonl has no line of it\n",
                 "FALSE     checkpoint 4: eval_done is true in state.json, but "),
           forged("\"eval\",\"iter\":4,", NULL));
    EXPECT(3,
           TEXTS("FALSE     metrics.jsonl has no config line\n",
                 "0-3  not compared, because there is no checkpoint before\n3-14  from "),
           forged("\"config\",", NULL));
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/metrics.jsonl", out);
    const char *text = lks_test_read(path, NULL);
    lks_test_write(path, text, (size_t)(strstr(text, "\"iter\":10,") - text));
    EXPECT(3,
           TEXTS("FALSE     metrics.jsonl ends before step 10, but checkpoint 14 exists\n",
                 "the last line of metrics.jsonl is incomplete, so it isn't compared\n",
                 "equal (10 steps, "),
           out);
}

/* The run went back, or was replaced, since its record was read: that is said instead of a verdict.
 */
TEST(test_changed)
{
    FILE *to = fopen("/dev/null", "w");
    assert_non_null(to);
    for (int cut = 0; cut < 2; cut++) {
        const char *out = forged("\"train\",\"iter\":7,", NULL);
        enum lks__verdict verdict;
        lks__settings s;
        lks__settings_defaults(&s);
        *(cut ? &shortened : &rewritten) = lks_test_text("%s/metrics.jsonl", out);
        assert_fails(LKS_ERR_IO, lks__audit(out, &s, to, &verdict), "was cut or replaced",
                     "audit the run again");
    }
    fclose(to);
}

/* A copy of the run whose record ends with one more line. */
static const char *with_line(const char *line)
{
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/metrics.jsonl", out);
    const char *text = lks_test_text("%s%s\n", lks_test_read(path, NULL), line);
    lks_test_write_text(path, text);
    return out;
}

/* Lines that no run writes there: claims that nothing else would compare, or that would lead an
 * audit away from the others. */
TEST(test_added)
{
    EXPECT(3, TEXTS("FALSE     evaluation 5000: metrics.jsonl has no steps before it"),
           with_line("{\"kind\":\"eval\",\"iter\":5000,\"val_loss\":1.01}"));
    EXPECT(3, TEXTS("0-4000000000000  from", "FALSE     step 14: the run's settings end it before"),
           with_line("{\"kind\":\"checkpoint\",\"iter\":4000000000000}"));
    EXPECT(3, TEXTS("FALSE     step 13: metrics.jsonl has a rollback that no run makes there"),
           with_line("{\"kind\":\"rollback\",\"iter\":13,\"to\":7,\"data_shift\":7}"));
    EXPECT(3, TEXTS("FALSE     step 14: metrics.jsonl has a rollback that no run makes there"),
           with_line("{\"kind\":\"rollback\",\"iter\":14,\"to\":7,\"data_shift\":0}"));
    EXPECT(3,
           TEXTS("FALSE     metrics.jsonl ends before step 3, but checkpoint ", "reasons of roll"),
           with_line("{\"kind\":\"rollback\",\"iter\":14,\"to\":3,\"data_shift\":12}"));
    static const char *const changes[] = {"block_size\":1048576", "n_layer\":3",
                                          "out_dir\":\"/tmp\"", "trace\":\"/tmp/x\""};
    for (int i = 0; i < 4; i++)
        EXPECT(4, TEXTS("not possible here: a resume can't have changed "),
               with_line(lks_test_text("{\"kind\":\"host\",\"resumed_iter\":5,\"changed\":{\"%s}}",
                                       changes[i])));
}

/* A copy of the run with another text in a file. */
static const char *replaced(const char *file, const char *was, const char *is)
{
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/%s", out, file);
    const char *text = lks_test_text("%s", lks_test_read(path, NULL)),
               *at = lks_test_find(text, was);
    text = lks_test_text("%.*s%s%s", (int)(at - text), text, is, at + strlen(was));
    lks_test_write_text(path, text);
    return out;
}

/* Figures that such a run doesn't have, and settings of other steps. */
TEST(test_other_claims)
{
    EXPECT(3, TEXTS("FALSE     evaluation 0: val_bpb is ", "FALSE: 1 claim"),
           replaced("metrics.jsonl", "\"val_loss\":", "\"val_bpb\":0.91,\"val_loss\":"));
    const char *out = replaced("metrics.jsonl", "\"seed\":", "\"seed\":1");
    EXPECT(3, TEXTS("FALSE     checkpoint 9: seed is "), out, "--from=9", "--to=12");
    EXPECT(3, TEXTS("FALSE     checkpoint 9: seed is "), out, "--step=9", "--leaf=1");
    EXPECT(1, TEXTS("or has a member twice"),
           replaced("metrics.jsonl", ",\"grad_norm\":", ",\"loss\":1.5,\"grad_norm\":"));
    out = lks_test_copy_of(reference()); /* a head of other virtual ranks */
    lks_test_alter(lks_test_text("%s/leaves.bin", out), 16);
    EXPECT(3, TEXTS("FALSE     step 0: leaves.bin is of other virtual ranks"), out, "--step=0",
           "--leaf=7");
}

/* A copy of the run with the line of metrics.jsonl that contains `line` twice. The first one has
 * another digit after `member`; NULL: the same line. */
static const char *doubled(const char *line, const char *member)
{
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/metrics.jsonl", out);
    const char *text = lks_test_text("%s", lks_test_read(path, NULL)),
               *at = lks_test_find(text, line);
    while (at > text && at[-1] != '\n')
        at--;
    const int length = (int)(strchr(at, '\n') + 1 - at);
    char *first = (char *)lks_test_text("%.*s", length, at);
    if (member != NULL) {
        char *digit = strstr(first, member) + strlen(member);
        *digit = *digit == '7' ? '3' : '7';
    }
    text = lks_test_text("%.*s%s%s", (int)(at - text), text, first, at);
    lks_test_write_text(path, text);
    return out;
}

/* The newest line of a step, an evaluation or a checkpoint is true, but not the only one. */
TEST(test_doubled)
{
    const char *const step =
        "FALSE     step 7: metrics.jsonl has another line of it, or of a later "
        "step, before its line\n";
    EXPECT(3, TEXTS(step, "FALSE: 1 claim (14 steps, "), doubled("\"train\",\"iter\":7,", NULL));
    EXPECT(3, TEXTS(step), doubled("\"train\",\"iter\":7,", "\"loss\":"), "--step=7");
    EXPECT(3, TEXTS("FALSE     evaluation 8: val_loss is ", "FALSE: 1 claim (14 steps, "),
           doubled("\"eval\",\"iter\":8,", "\"val_loss\":"));
    EXPECT(3, TEXTS("FALSE     evaluation 14: val_loss is ", "FALSE: 1 claim (14 steps, "),
           doubled("\"final\",\"iter\":14,", "\"val_loss\":"));
    EXPECT(3, TEXTS("FALSE     checkpoint 9: the weights have the hash ", "FALSE: 1 claim (14 "),
           doubled("\"checkpoint\",\"iter\":9,", "\"params_hash\":\""));
}

static void change_sampler(const char *name, float *x, size_t n, size_t width)
{
    if (strcmp(name, "sampler.state") == 0)
        ((char *)x)[30] ^= 1;
}

static void change_weight(const char *name, float *x, size_t n, size_t width)
{
    if (strcmp(name, "transformer.h.1.mlp.c_proj.weight") == 0)
        x[777] += 0.25f;
}

static void change_moment(const char *name, float *x, size_t n, size_t width)
{
    if (strcmp(name, "transformer.wpe.weight.exp_avg_sq") == 0)
        x[30] *= 2.0f;
}

/* One weight or one moment of the last checkpoint, with all of its hashes computed again. */
TEST(test_false_checkpoint)
{
    const char *out = lks_test_copy_of(reference());
    poison_alter(out, POISON_MODEL, change_weight);
    EXPECT(3,
           TEXTS("FALSE     checkpoint 14: transformer.h.1.mlp.c_proj.weight, element 777 is ",
                 "computed; 1 of its "),
           out, "--from=12");
    out = lks_test_copy_of(reference());
    poison_alter(out, POISON_OPTIMIZER, change_moment);
    EXPECT(3, TEXTS("FALSE     checkpoint 14: transformer.wpe.weight.exp_avg_sq, element 30 is "),
           out, "--from=12");
    out = lks_test_copy_of(reference()); /* and the checkpoint from which steps are computed */
    lks_test_alter(lks_test_text("%s/ckpt-00000009/model.safetensors", out), 60000);
    EXPECT(3,
           TEXTS("FALSE     checkpoint 9: ",
                 "hash: --from below 9 with --to starts before this checkpoint\n"),
           out, "--step=9");
    const lks_test_result all = assert_exits(3, lks_test_tool("audit", out, "--sample=99"));
    assert_contains(all.out, "drawn     7 of 7 segments ",
                    "one false segment passes such a sample in 14.3 % of all draws");
    EXPECT(3, TEXTS("FALSE     checkpoint 9: ", "is altered or damaged", " their hash\n"), out,
           "--step=8");
    remove_folder(lks_test_text("%s/ckpt-00000009", out));
    EXPECT(0, TEXTS("equal (1 step, 8 gradients, 1 checkpoint, 1 by hash only, "), out, "--step=8");
}

/* The rest of state.json, by which a resume continues; also of the checkpoint where an audit
 * starts. */
TEST(test_false_state)
{
    const struct {
        const char *member;
        json_t *value;
        const char *text;
    } cases[] = {
        {"data_shift", json_integer(7), "data_shift is 7 in state.json, 0 in metrics.jsonl\n"},
        {"eval_done", json_true(), "eval_done is true in state.json, but "},
        {"best_val_loss", json_real(0.5), "best_val_loss is 0.5 in state.json, 4."},
        {"segment", json_pack("{s:i}", "iter", 3), "segment in state.json isn't the run's\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *out = lks_test_copy_of(reference());
        poison_state(out, cases[i].member, cases[i].value);
        EXPECT(3, TEXTS("FALSE     checkpoint 14: ", cases[i].text, "FALSE: 1 claim"), out,
               "--from=13");
    }
    const char *out = lks_test_copy_of(reference());
    remove_folder(lks_test_text("%s/ckpt-00000014", out));
    remove_folder(lks_test_text("%s/ckpt-00000012", out));
    assert_int_equal(unlink(lks_test_text("%s/latest", out)), 0);
    poison_state(out, "data_shift", json_integer(7));
    EXPECT(3, TEXTS("9-10  from", "FALSE     checkpoint 9: data_shift is 7 in state.json, 0 in "),
           out, "--step=9");
}

/* An auditor elsewhere names the data, whose recorded folder doesn't exist there. */
TEST(test_moved_data)
{
    const char *out = lks_test_copy_of(reference());
    const char *path = lks_test_text("%s/metrics.jsonl", out), *data = law_data();
    char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL));
    const size_t last = strlen(data) - 1;
    for (char *at = text; (at = strstr(at, data)) != NULL; at += last)
        at[last] = at[last] == 'x' ? 'y' : 'x';
    lks_test_write_text(path, text);
    EXPECT(4, TEXTS("doesn't exist now: give --dataset=DIR"), out, "--step=0");
    EXPECT(0, TEXTS("equal (1 step"), out, "--step=0", lks_test_text("--dataset=%s", data));
}

/* --- seals ------------------------------------------------------------------------------------ */

TEST(test_seal)
{
    const char *out = lks_test_copy_of(reference());
    const lks_test_result r = lks_test_do("lockstep", "audit", out, "--seal");
    const char *seal = lks_test_text("%.64s", strstr(r.out, "seal      ") + 10);
    const char *file = lks_test_text("%s/published", lks_test_folder());
    const char *weights = lks_test_text("%s/ckpt-00000009/model.safetensors", out);
    lks_test_write_text(file, r.out);
    assert_contains(
        r.out, lks_test_text("%s  ckpt-00000009/model.safetensors\n", lks_test_sha256(weights)),
        "  data/train.bin\n");
    const char *const by[] = {lks_test_text("--seal=%s", seal), lks_test_text("--seal=%s", file)};
    for (int i = 0; i < 2; i++) {
        EXPECT(0, TEXTS("seal      equal: ", "equal (1 step"), out, by[i], "--step=0");
        EXPECT(0, TEXTS("seal      equal: ", "because only --seal was given; add"), out, by[i]);
    }
    const char *only = lks_test_text("%s/only", lks_test_folder()); /* the last line */
    lks_test_write_text(only, strstr(r.out, "seal      "));
    EXPECT(0, TEXTS("seal      equal: "), out, lks_test_text("--seal=%s", only));
    lks_test_alter(weights, 70000);
    EXPECT(3, TEXTS("FALSE     the files have the seal "), out, lks_test_text("--seal=%s", only));
    EXPECT(3, TEXTS("FALSE     the files have the seal ", "  ckpt-00000009/model.safetensors\n"),
           out, by[0], "--step=0");
    EXPECT(3, TEXTS("FALSE     ckpt-00000009/model.safetensors isn't the file that was sealed\n"),
           out, by[1]);
    remove_folder(lks_test_text("%s/ckpt-00000009", out));
    EXPECT(3, TEXTS("ckpt-00000009/state.json is in the seal, but doesn't exist here\n"), out,
           by[1], "--step=0");
    const char *after = lks_test_text("%s%s", r.out, r.out);
    lks_test_write_text(only, after);
    EXPECT(3, TEXTS("only was changed: there is text after its seal"), out,
           lks_test_text("--seal=%s", only));
    const char *longer = lks_test_text("%.*s00\n", (int)strlen(r.out) - 1, r.out);
    lks_test_write_text(only, longer);
    EXPECT(2, TEXTS("its last line must be `seal`"), out, lks_test_text("--seal=%s", only));
    char *changed = strdup(r.out);
    changed[0] = changed[0] == '0' ? '1' : '0';
    lks_test_write_text(only, changed);
    EXPECT(3, TEXTS("only was changed: its lines have the seal "), out,
           lks_test_text("--seal=%s", only));
    lks_test_write(only, changed, strlen(changed) - 75); /* without its last line */
    free(changed);
    EXPECT(2, TEXTS("its last line must be `seal`"), out, lks_test_text("--seal=%s", only));
    EXPECT(2, TEXTS("seal=abc is neither a SHA-256"), out, "--seal=abc");
    EXPECT(2, TEXTS("is no list that"), out, lks_test_text("--seal=%s/train.log", out));
    EXPECT(2, TEXTS("--seal without a value only prints"), out, "--seal", "--step=0");
}

/* --- trails ----------------------------------------------------------------------------------- */

/* Write the trail of a step; returns its file. */
static const char *trail(const char *out, int step, const char *leaf)
{
    const char *file = lks_test_text("%s/trail", lks_test_folder());
    const char *to = lks_test_text("--trail=%s", file);
    const char *at = lks_test_text("--step=%d", step);
    const char *written = lks_test_text("trail     %s has the results of step %d\n", file, step);
    if (leaf != NULL)
        EXPECT(0, TEXTS("equal (", written), out, at, to, leaf);
    else
        EXPECT(0, TEXTS("equal (", written), out, at, to);
    return file;
}

static void compare(const char *a, const char *b, int code, const char *const texts[])
{
    expect((const char *const[]){"lockstep", "diff", a, b, NULL}, code, texts);
}

/* The same step has the same trail on other ranks and threads, and from another checkpoint. */
TEST(test_trails)
{
    const char *other = law_output("random", "--nproc_per_node=4"), *whole_step;
    whole_step = trail(reference(), 4, NULL);
    compare(whole_step, trail(other, 4, NULL), 0, TEXTS("The same step: all "));
    size_t bytes;
    const char *text = lks_test_read(whole_step, &bytes);
    static const char *const whats[] = {
        "moments", "weights",       "tokens",          "output",
        "loss",    "gradient",      "gradient's hash", "mean gradient",
        "norm",    "learning rate", "updated moments", "updated weights",
        "end"};
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) { /* in this order */
        text = lks_test_find(text, lks_test_text("{\"what\":\"%s\"", whats[i]));
    }
    remove_folder(lks_test_text("%s/ckpt-00000004", other));
    compare(trail(reference(), 4, "--leaf=3"), trail(other, 4, "--leaf=3"), 0,
            TEXTS("The same step: "));
    /* The sampler's generators don't notice that the gradients are computed twice. */
    const char *drawn = law_output("nanogpt", "--nproc_per_node=2");
    EXPECT(0, TEXTS("equal (4 steps, 32 "), drawn, "--from=6", "--to=10");
    const char *altered = lks_test_copy_of(drawn);
    poison_alter_at(altered, 9, POISON_OPTIMIZER, change_sampler);
    EXPECT(3, TEXTS("FALSE     checkpoint 9: sampler.state isn't the computed one\n", "1 claim"),
           altered, "--from=8", "--to=9");
    trail(drawn, 7, NULL);
    const char *out = law_family_run(true, NULL, NULL);
    compare(trail(out, 4, NULL), trail(out, 4, NULL), 0, TEXTS("The same step: "));
    compare(trail(out, 4, NULL), trail(out, 5, NULL), 2, TEXTS("they differ in \"step\""));
    EXPECT(2, TEXTS("--trail needs --step"), out, "--trail=x");
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    EXPECT(2, TEXTS("metrics.jsonl exists and isn't a trail"), out, "--step=4",
           lks_test_text("--trail=%s", metrics));
    EXPECT(0, TEXTS("equal (2 steps"), out, "--step=4"); /* the record is still there */
    EXPECT(1, TEXTS("can't write "), out, "--step=4", lks_test_text("--trail=%s/no/trail", out));
    const char *none = lks_test_text("%s/none", lks_test_folder()); /* no part of a trail is left */
    EXPECT(4, TEXTS("not possible here: "), reference(), "--step=3",
           lks_test_text("--dataset=%s", poison_data()), lks_test_text("--trail=%s", none));
    assert_int_equal(access(none, F_OK), -1);
}

/* Each planted difference is the first entry that differs. */
TEST(test_trail_places)
{
    const char *seed = law_output("random", "--seed=7"), *dropout, *rate;
    const char *a = trail(reference(), 0, "--leaf=2");
    compare(a, trail(seed, 0, "--leaf=2"), 3,
            TEXTS("place             step 0, before the step: weights of transformer.wte.weight; "
                  "all 2 results before it are equal\n",
                  "cause             seed 1337 | 7\n"));
    dropout = law_output("random", "--dropout=0.25");
    compare(a, trail(dropout, 0, "--leaf=2"), 3,
            TEXTS("place             step 0, virtual rank 2, micro-batch 0, forward: output of "
                  "transformer.",
                  "                  begins with ",
                  "remedy            train B again with A's settings: --dropout=0.1\n"));
    rate = law_output("random", "--max_iters=6");
    law_resume("random", rate, "--learning_rate=5e-4");
    compare(trail(reference(), 7, NULL), trail(rate, 7, NULL), 3,
            TEXTS("place             step 7, update: learning rate; all ",
                  "                  value 0.00"));
    const char *text = lks_test_read(a, NULL), *cut = lks_test_text("%s/cut", lks_test_folder());
    lks_test_write(cut, text, strlen(text) / 2 / 256 * 256);
    compare(a, cut, 2, TEXTS("a trail is incomplete"));
    compare(a, reference(), 2, TEXTS("a trail can't be compared with a run"));
}

/* --- not here --------------------------------------------------------------------------------- */

TEST(test_impossible)
{
    const char *out = lks_test_copy_of(reference()), *path = lks_test_text("%s/metrics.jsonl", out);
    char *text = (char *)lks_test_text("%s", lks_test_read(path, NULL));
    char *digit = strstr(text, "\"fingerprint\":\"") + 15;
    *digit = *digit == '7' ? '3' : '7';
    lks_test_write_text(path, text);
    EXPECT(4, TEXTS("not possible here: step 0 was made with kernels of fingerprint "), out);
    EXPECT(4, TEXTS("not possible here: ", " are not the run's: their digest is "),
           lks_test_copy_of(reference()), lks_test_text("--dataset=%s", poison_data()));
    const char *nothing = lks_test_folder();
    static const char *const starts[] = {"--step=0", "--step=10"};
    for (int i = 0; i < 2; i++) {
        const lks_test_result r =
            assert_exits(4, lks_test_tool("audit", reference(), starts[i],
                                          lks_test_text("--dataset=%s", nothing)));
        assert_contains(r.out, lks_test_text("%s has no token files of the run: give their folder "
                                             "by --dataset\nnot compared",
                                             nothing));
    }
    const char *clock = law_family_run(true, NULL, "--max_wallclock_seconds=600");
    EXPECT(4, TEXTS("not possible here: with max_wallclock_seconds"), clock);
    EXPECT(0, TEXTS("equal (1 gradient, "), clock, "--step=3", "--leaf=2");
    EXPECT(2, TEXTS("step=14, but the record has steps 0 to 13: give 0 to 13"), reference(),
           "--step=14");
    EXPECT(2, TEXTS("to=99, but the record has steps 0 to 13: give 1 to 14"), reference(),
           "--to=99");
    EXPECT(2, TEXTS("from=14, but the record has steps 0 to 13: give 0 to 13"), reference(),
           "--from=14");
    EXPECT(2, TEXTS("leaf=8, but step 10 has 8 virtual ranks: give 0 to 7"), reference(),
           "--step=10", "--leaf=8");
    EXPECT(2, TEXTS("from=9 isn't below to=3"), reference(), "--from=9", "--to=3");
    EXPECT(2, TEXTS("--leaf needs --step"), reference(), "--leaf=1");
    EXPECT(2, TEXTS("give one of --step"), reference(), "--step=1", "--sample=2");
    const char *none = lks_test_text("%s/none", nothing);
    EXPECT(2, TEXTS("draw must be"), reference(), "--draw=xyz", "--sample=2");
    EXPECT(2, TEXTS("contains no metrics.jsonl"), lks_test_folder());
    EXPECT(2, TEXTS("/none: give the folder of a run, as in `lockstep audit "), none);
    EXPECT(2, TEXTS("is a file: give the folder of a run, as in `lockstep audit "), path);
}
