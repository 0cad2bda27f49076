/* `lockstep report`: runs that it reads, values that it computes, arguments that it refuses. */
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/record/outdir.h"
#include "report/view/seeds.h"
#include "report/view/series.h"

static lks_test_result tool(const char *command, const char *option, const char *const runs[])
{
    const char *argv[16] = {"lockstep", command};
    int n = 2;
    if (option != NULL)
        argv[n++] = option;
    for (; *runs != NULL; runs++)
        argv[n++] = *runs;
    return lks_test_run(argv, (const char *const[]){"LC_ALL=C.UTF-8", "COLUMNS=60", NULL}, 60);
}

static const json_t *report(const char *const runs[])
{
    return lks_test_json(assert_exits(0, tool("report", "--json", runs)).out);
}

/* --- reading ---------------------------------------------------------------------------------- */

TEST(test_follow)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    const char *file = lks_test_text("%s/metrics.jsonl", dir);
    lks__series s;
    size_t bytes;
    assert_ok(lks__series_open(dir, &s));
    assert_int_equal(s.n_points, 20);
    assert_int_equal(s.n_evals, 3);
    assert_near(s.elapsed, 2.0, 1e-9);
    assert_string_equal(s.name, "run");
    assert_true(s.end != NULL && s.starts == 1 && s.checkpoints == 1);
    fake_append(dir, "{'kind':'train','iter':20,'loss'"); /* not complete yet */
    assert_ok(lks__series_read(&s));
    assert_int_equal(s.n_points, 20);
    fake_append(dir, ":1.25}\n{'kind':'host','changed':{'n_layer':3}}\n");
    assert_ok(lks__series_read(&s));
    assert_true(s.n_points == 21 && s.end == NULL && s.starts == 2);
    assert_near(lks__series_last_loss(&s), 1.25, 0.0);
    assert_int_equal(json_integer_value(json_object_get(s.config, "n_layer")), 3);
    /* A resume cuts the file, and what it then writes may be longer than before. */
    const char *text = lks_test_read(file, &bytes);
    const char *cut = strstr(text, "{\"kind\":\"train\",\"iter\":15");
    const unsigned epoch = s.epoch;
    lks_test_write(file, text, (size_t)(cut - text));
    for (int i = 15; i < 60; i++)
        fake_append(dir, lks_test_text("{'kind':'train','iter':%d,'loss':9}\n", i));
    assert_ok(lks__series_read(&s));
    assert_true(s.epoch != epoch);
    assert_int_equal(s.n_points, 60);
    assert_int_equal(s.n_evals, 2);
    assert_near(lks__series_last_loss(&s), 9.0, 0.0);
    assert_int_equal(s.bad, 0);
    assert_true(s.starts == 1 && s.checkpoints == 0); /* counted anew */
    assert_near(s.elapsed, 1.5, 1e-9);
    unlink(file); /* moved away: a new run begins */
    assert_ok(lks__series_read(&s));
    assert_true(s.n_points == 0);
    assert_ok(lks__series_read(&s));
    fake_append(dir, "{'kind':'train','iter':0,'loss':3}\n");
    assert_ok(lks__series_read(&s));
    assert_true(s.n_points == 1);
    lks__series_close(&s);
    unlink(file);
    /* a link isn't followed */
    assert_int_equal(symlink("elsewhere", file), 0);
    lks_test_write(lks_test_text("%s/elsewhere", dir), text, bytes);
    assert_fails(LKS_ERR_IO, lks__series_open(dir, &s), "metrics.jsonl");
}

/* The states and marks of a run that has an evaluation without a result. */
TEST(test_states)
{
    const char *dir = lks_test_folder(), *file = lks_test_text("%s/metrics.jsonl", dir);
    lks__series s;
    lks_test_write_text(file, "");
    fake_append(dir, "{'kind':'config','max_iters':1,'eval_interval':10}\n{'kind':'host'}\n"
                     "{'kind':'eval','iter':0}\n{'kind':'train','iter':-1,'loss':3}\n"
                     "{'kind':'train','iter':0,'loss':3}\n{'kind':'train','it");
    assert_ok(lks__series_open(dir, &s));
    assert_string_equal(lks__series_state(&s), "stopped");
    assert_null(lks__series_best(&s));
    assert_int_equal(s.bad, 1); /* iteration -1 */
    /* the rest of a line, and hosts of which one or both computed wrongly */
    fake_append(dir, "er':1,'loss':2}\n"
                     "{'kind':'recheck','iter':1,'wrong':[{'host':'a'},{'host':'b'}]}\n"
                     "{'kind':'recheck','iter':1,'wrong':[{'host':'a'},{'host':'b'}],'right':'1'}\n"
                     "{'kind':'host','command':['lockstep','--lock=off']}\n");
    assert_ok(lks__series_read(&s));
    assert_int_equal(s.n_points, 2);
    assert_int_equal(s.rechecks, 2);
    assert_string_equal(s.marks[1].text, "wrong gradient on host a or b");
    assert_string_equal(s.marks[2].text, "wrong gradient on host a and b");
    assert_string_equal(lks__series_state(&s), "running, or stopped without an end");
    /* a stop after an evaluation that isn't the final one, then a whole run */
    fake_append(dir,
                "{'kind':'eval','iter':2,'val_loss':1}\n{'kind':'host','micro_batches':[2]}\n");
    assert_ok(lks__series_read(&s));
    assert_string_equal(lks__series_state(&s), "stopped");
    fake_append(dir, "{'kind':'final','iter':2,'val_loss':1}\n");
    assert_ok(lks__series_read(&s));
    assert_string_equal(lks__series_state(&s), "complete");
    assert_int_equal(lks__series_best(&s)->iter, 2);
    lks__series_close(&s);
    assert_fails(LKS_ERR_CONFIG, lks__series_open(file, &s), "is not a run's folder");
}

TEST(test_long_path)
{
    const char *path = lks_test_folder();
    lks__series s;
    for (int i = 0; i < 3; i++) {
        path = lks_test_text("%s/%0200d", path, i);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    const char *dir = lks_test_text("%s/run", path);
    assert_int_equal(rename(fake_run("run", 1, 20, 1.5, ""), dir), 0);
    assert_ok(lks__series_open(dir, &s));
    assert_int_equal(s.n_points, 20);
    lks__series_close(&s);
}

TEST(test_rollback)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    lks__series s;
    fake_append(dir, "{'kind':'rollback','iter':20,'to':10,'place':'tok_emb'}\n"
                     "{'kind':'train','iter':10,'loss':7,'ms':100,'tok_per_s':10000}\n");
    assert_ok(lks__series_open(dir, &s));
    assert_int_equal(s.n_points, 11);
    assert_int_equal(s.n_evals, 2); /* evaluation 10 isn't made again */
    assert_int_equal(s.rollbacks, 1);
    assert_near(s.elapsed, 2.1, 1e-9); /* the time is gone */
    lks__series_close(&s);
    const json_t *o = report((const char *const[]){dir, NULL});
    assert_near(lks_test_number(o, "runs.0.seconds"), 2.1, 1e-9);
    assert_near(lks_test_number(o, "runs.0.tok_per_s"), 10000.0, 1e-6); /* of the steps that stay */
}

/* The evaluation of an end stays when the run makes more steps: it is the last one until the next,
 * but the run isn't complete any more. */
TEST(test_extended)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    const char *const argv[] = {"lockstep", "info", dir, NULL};
    lks__series s;
    int lock;
    assert_ok(lks__outdir_lock(dir, true, &lock));
    assert_contains(lks_test_run(argv, NULL, 10).out, "running: `lockstep watch"); /* unsaved */
    assert_int_equal(close(lock), 0);
    assert_int_equal(mkdir(lks_test_text("%s/ckpt-00000020", dir), 0777), 0);
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        complete\n");
    fake_append(dir, "{'kind':'host'}\n{'kind':'train','iter':20,'loss':7,'ms':100}\n"
                     "{'kind':'host','micro_batches':[1]}\n");
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        stopped\n");
    assert_ok(lks__series_open(dir, &s));
    assert_int_equal(lks__series_last_eval(&s)->iter, 20);
    assert_int_equal(lks__series_best(&s)->iter, 20);
    lks__series_close(&s);
}

/* A run without evaluations is complete after its last step. */
TEST(test_unevaluated)
{
    const char *dir = fake_run("run", 1, 0, 1.5, "'max_iters':1,'eval_interval':0");
    const char *const argv[] = {"lockstep", "info", dir, NULL};
    const char *path = lks_test_text("%s/metrics.jsonl", dir);
    assert_int_equal(mkdir(lks_test_text("%s/ckpt-00000002", dir), 0777), 0);
    assert_int_equal(unlink(path), 0);
    fake_append(dir, "{'kind':'config','max_iters':1,'eval_interval':0}\n{'kind':'host'}\n"
                     "{'kind':'train','iter':0,'loss':7,'ms':100}\n"
                     "{'kind':'host','micro_batches':[1]}\n");
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        stopped\n");
    fake_append(dir, "{'kind':'host'}\n{'kind':'train','iter':1,'loss':7,'ms':100}\n");
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        stopped\n");
    fake_append(dir, "{'kind':'host','micro_batches':[1]}\n");
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        complete\n");
    fake_append(dir, "{'kind':'host','changed':{'max_iters':2}}\n"
                     "{'kind':'host','micro_batches':[1]}\n");
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        stopped\n");
    /* the last step had no update */
    fake_append(dir, "{'kind':'host'}\n{'kind':'skip','iter':2,'what':'loss'}\n"
                     "{'kind':'host','micro_batches':[1]}\n");
    assert_contains(lks_test_run(argv, NULL, 10).out, "state        complete\n");
}

/* What ranks do is read beside it; a run that is resumed replaces what it makes again. */
TEST(test_ranks)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    lks__series s;
    fake_ranks(dir, "{'iter':0,'steps':0,'memory_bytes':[3,4]}\nnonsense\n{'iter':5}\n"
                    "{'iter':-1,'memory_bytes':[1]}\n{'iter':7,'memory_bytes':['x']}\n"
                    "{'iter':10,'steps':10,'compute_ms':[1,2],'wait_ms':[3,'x'],"
                    "'memory_bytes':[5,6]}\n{'iter':20,'memory_bytes':[7,8]}\n"
                    "{'iter':10,'memory_bytes':[9]}\n{'iter':11,'memory_bytes':[1]}");
    assert_ok(lks__series_open(dir, &s));
    char *text = json_dumps(s.ranks, JSON_COMPACT | JSON_REAL_PRECISION(9));
    /* iteration, tokens and seconds until there, and three lists; what makes no sense is null */
    assert_string_equal(text, "[[0,0.0,0.0,null,null,[3,4]],[10,10000.0,1.0,null,null,[9]]]");
    free(text);
    assert_ok(lks__series_read(&s));
    fake_ranks(dir, "{'iter':1,'compute_ms':[1,2],'wait_ms':[3,4],'memory_bytes':[5,6]}\n");
    assert_ok(lks__series_read(&s));
    text = json_dumps(s.ranks, JSON_COMPACT | JSON_REAL_PRECISION(9));
    assert_string_equal(text, "[[1,1000.0,0.1,[1,2],[3,4],[5,6]]]");
    free(text);
    /* A link isn't followed, and a run without the file has none. */
    const char *file = lks_test_text("%s/ranks.jsonl", dir);
    unlink(file);
    assert_int_equal(symlink("metrics.jsonl", file), 0);
    assert_ok(lks__series_read(&s));
    assert_int_equal(json_array_size(s.ranks), 0);
    lks__series_close(&s);
}

/* Lines that no run has written are left out, whatever they are. */
TEST(test_hostile)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    const char *file = lks_test_text("%s/metrics.jsonl", dir);
    lks__series s;
    FILE *f = fopen(file, "a");
    fputs("nonsense\n[]\n{}\n{\"kind\":3}\n{\"kind\":\"train\"}\n{\"kind\":\"eval\",\"iter\":-1}\n"
          "{\"kind\":\"train\",\"iter\":\"x\"}\n",
          f);
    fwrite("\0\0\n", 1, 3, f);
    for (int i = 0; i < 3 << 20; i++) /* longer than any line */
        fputc('x', f);
    fputs("\n{\"kind\":\"train\",\"iter\":20,\"loss\":null,\"ms\":\"x\",\"tokens\":[]}\n"
          "{\"kind\":\"host\",\"changed\":7}\n{\"kind\":\"rollback\",\"iter\":3,\"to\":-5}\n"
          "{\"kind\":\"of tomorrow and with a long name\",\"iter\":3}\n",
          f);
    fclose(f);
    assert_ok(lks__series_open(lks_test_text("a\033[31m=%s/", dir), &s));
    assert_int_equal(s.n_points, 21);
    assert_true(s.bad >= 8);
    assert_true(isnan(lks__series_last_loss(&s)));
    lks__series_close(&s);
    /* Every length of the file, every byte altered: an answer, and no crash. */
    size_t bytes;
    const char *small = fake_run("small", 1, 2, 1.5, "\"n_layer\":2");
    const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", small), &bytes);
    char *copy = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        memcpy(copy, text, bytes);
        copy[i] = (char)(copy[i] ^ 1 << i % 8);
        lks_test_write(lks_test_text("%s/metrics.jsonl", small), copy, i % 2 == 0 ? bytes : i);
        assert_ok(lks__series_open(small, &s));
        lks__series_close(&s);
    }
    free(copy);
}

/* --- comparing -------------------------------------------------------------------------------- */

/* The values are mpmath's (regularized incomplete beta function). */
TEST(test_t)
{
    assert_near(lks__t_test_p(2.5, 7.3), 0.039650234665600471608, 1e-12);
    assert_near(lks__t_test_p(0.0, 3.0), 1.0, 1e-12);
    assert_near(lks__t_test_p(12.0, 1.5), 0.018042029274027864021, 1e-12);
    assert_near(lks__t_test_p(-2.262157162740992, 9.0), 0.050000000004675688601, 1e-12);
    assert_near(lks__t_test_p(0.3, 100.0), 0.76479988030030348793, 1e-12);
}

TEST(test_two)
{
    const char *a =
        fake_run("a", 1, 40, 1.5, "\"n_layer\":2,\"learning_rate\":0.001,\"eval_iters\":20");
    const char *b = fake_run(
        "b", 1, 20, 1.0, "\"n_layer\":2,\"learning_rate\":0.01,\"eval_iters\":20,\"new\":\"x|y\"");
    const char *c = fake_run("c", 1, 20, 1.0, "\"vocab_size\":65");
    const char *d = fake_run("d", 1, 20, 1.0, "\"vocab_size\":260");
    const char *const runs[] = {a, lks_test_text("<b>=%s", b), NULL};
    const json_t *o = report(runs);
    assert_near(lks_test_number(o, "runs.0.best_val_loss"), 1.5, 1e-9);
    assert_near(lks_test_number(o, "runs.1.best_val_loss"), 1.0, 1e-9);
    assert_near(lks_test_number(o, "runs.0.last_loss"), 1.5, 1e-9);
    assert_near(lks_test_number(o, "runs.0.seconds"), 4.0, 1e-9);
    assert_near(lks_test_number(o, "runs.0.tok_per_s"), 10000.0, 1e-6);
    assert_near(lks_test_number(o, "runs.0.memory_bytes"), 123456.0, 0.0);
    assert_near(lks_test_number(o, "runs.0.wait_ms"), 2.0, 1e-9);
    assert_int_equal(lks_test_number(o, "runs.0.best_iter"), 40);
    assert_int_equal(json_array_size(lks_test_member(o, "settings")), 2); /* rate, and `new` */
    assert_int_equal(json_array_size(lks_test_member(o, "tests")), 0);
    /* At iteration 20, and at 1.6 s (evaluation 10 of both): run a's evaluation 20, and the final
     * one of b. */
    const json_t *steps = lks_test_member(o, "by_step");
    assert_int_equal(json_array_size(steps), 5); /* iterations that were evaluated, and no others */
    for (int i = 0; i < 5; i++)
        assert_int_equal(lks_test_number(json_array_get(steps, (size_t)i), "iter"), 10 * i);
    assert_near(lks_test_number(o, "by_step.2.values.0"), 1.6 + 19.0 / 40, 1e-8);
    assert_near(lks_test_number(o, "by_step.2.values.1"), 1.0, 1e-8);
    assert_true(json_is_null(lks_test_member(o, "by_step.3.values.1")));
    assert_near(lks_test_number(o, "by_time.3.seconds"), 1.6, 1e-9);
    assert_near(lks_test_number(o, "by_time.3.values.0"), 1.6 + 29.0 / 40, 1e-8);
    assert_near(lks_test_number(o, "by_time.3.values.1"), 1.1 + 9.0 / 20, 1e-8);
    assert_true(json_is_null(lks_test_member(o, "by_time.5.values.1"))); /* b has ended */
    lks_test_result r = assert_exits(0, tool("report", NULL, runs));
    assert_contains(r.out, "best val", "learning_rate");
    assert_null(strstr(r.out, "\nSettings that differ\n")); /* they are in each run's row */
    assert_contains(r.out, "\nValidation loss at equal steps\n",
                    "\nEach evaluation samples other batches (--eval_iters)");
    r = tool("report", "--markdown", runs);
    assert_contains(r.out, "| new | - | x\\|y |", "\\<b\\>");
    assert_null(strstr(r.out, "vocabularies differ"));
    r = tool("report", NULL, (const char *const[]){c, d, NULL});
    assert_contains(r.out,
                    "\nThe runs' vocabularies differ, and a loss is per token: compare bits");
    r = tool("report", "--csv", runs);
    assert_contains(r.out, "\nruns,best_val_loss,a,1.5\n", "\nby_step,20,a,2.075\n",
                    "\nby_step,20,<b>,1\n");
}

/* The last row of equal times has the last loss, however the time divides into rows. */
TEST(test_last_row)
{
    for (int steps = 1; steps < 40; steps++) {
        const char *const runs[] = {fake_run(lks_test_text("of%d", steps), 1, steps, 1.5, ""),
                                    NULL};
        const json_t *o = report(runs);
        const json_t *rows = lks_test_member(o, "by_time");
        const json_t *last = json_array_get(rows, json_array_size(rows) - 1);
        if (json_is_null(lks_test_member(last, "values.0")))
            fail_msg("%d steps: the last row has no value", steps);
    }
}

static void assert_rows(const char *const runs[], const int *iters, size_t n)
{
    const json_t *o = report(runs);
    const json_t *rows = lks_test_member(o, "by_step");
    assert_int_equal(json_array_size(rows), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(lks_test_number(json_array_get(rows, i), "iter"), iters[i]);
}

/* Each evaluation has a row of equal steps, also the last one before the final one. Of more than
 * ten, the best one of each run and the last two stay. */
TEST(test_rows_of_steps)
{
    static const int all[] = {0, 10, 20, 30, 40, 41},
                     thinned[] = {40, 80, 120, 160, 171, 200, 240, 280, 320, 360, 400, 401};
    const char *const a = fake_run("a", 1, 401, 1.5, "\"n_layer\":2");
    const char *const b = fake_run("b", 1, 171, 0.5, "\"n_layer\":2");
    assert_rows((const char *[]){fake_run("c", 1, 41, 1.5, "\"n_layer\":2"), NULL}, all,
                sizeof all / sizeof all[0]);
    assert_rows((const char *[]){a, b, NULL}, thinned, sizeof thinned / sizeof thinned[0]);
}

/* Two settings, some seeds of each; one seed twice, which is the same run, and one run that was
 * resumed with another length. */
TEST(test_seeds)
{
    static const double a[] = {1.50, 1.52, 1.48, 1.51}, b[] = {1.44, 1.46, 1.43};
    const char *runs[16];
    int n = 0;
    for (int i = 0; i < 4; i++)
        runs[n++] =
            fake_run(lks_test_text("a%d", i), i, 20, a[i], "\"n_layer\":2,\"max_iters\":20");
    for (int i = 0; i < 3; i++)
        runs[n++] =
            fake_run(lks_test_text("b%d", i), i, 20, b[i], "\"n_layer\":3,\"max_iters\":20");
    runs[n++] = fake_run("again", 2, 20, a[2], "\"n_layer\":2,\"max_iters\":20");
    runs[n++] = fake_run("\"longer\"", 9, 20, a[2], "\"n_layer\":3,\"max_iters\":20");
    runs[n] = NULL;
    fake_append(runs[n - 1], "{'kind':'host','changed':{'max_iters':30}}\n");
    const json_t *o = report(runs);
    assert_int_equal(json_array_size(lks_test_member(o, "seeds")), 2);
    assert_int_equal(lks_test_number(o, "seeds.0.seeds"), 4);
    assert_near(lks_test_number(o, "seeds.0.mean"), 1.5025, 1e-9);
    assert_near(lks_test_number(o, "seeds.0.spread"), 0.017078251276599347, 1e-9);
    assert_int_equal(json_array_size(lks_test_member(o, "tests")), 1);
    assert_near(lks_test_number(o, "tests.0.t"), -4.819794056445117, 1e-8);
    assert_near(lks_test_number(o, "tests.0.df"), 4.733990147783253, 1e-8);
    assert_near(lks_test_number(o, "tests.0.p"), 0.0055398865955114305899, 1e-9);
    assert_true(json_is_true(lks_test_member(o, "tests.0.more_than_chance")));
    lks_test_result r = tool("report", NULL, runs);
    assert_contains(r.out, "\n- runs like a0 (n_layer=2, max_iters=20), 4 seeds: mean 1.5025, ",
                    "\n- \\\"longer\\\" is left out of the runs like b0: its max_iters is "
                    "30\n- b0 (n_layer=3, max_iters=20) against a0 (n_layer=2, max_iters=20): ",
                    "more than chance (p < 0.05)");
    r = assert_exits(0, tool("report", "--csv", runs));
    assert_contains(r.out,
                    "\nseeds,settings,a0,\"n_layer=2, max_iters=20\"\nseeds,seeds,a0,4\n"
                    "seeds,mean,a0,1.50",
                    "\nleft_out,run,\"\"\"longer\"\"\",\"\"\"longer\"\"\"\n",
                    "\ntests,p,b0 against a0,0.00553",
                    "\ntests,more_than_chance,b0 against a0,yes\n");

    const char *name[4]; /* long names are whole */
    for (int i = 0; i < 4; i++) {
        name[i] = lks_test_text("%c%0200d", "ab"[i / 2], i);
        runs[i] = fake_run(name[i], i % 2, 20, a[i], lks_test_text("\"n_layer\":%d", i / 2));
    }
    runs[4] = NULL;
    r = assert_exits(0, tool("report", "--csv", runs));
    assert_contains(
        r.out, lks_test_text("\ntests,a,%s against %s,%s\ntests,b,", name[2], name[0], name[0]));
}

/* One-sided, as parameter-golf's contest asks: is the second group's artifact better by more than a
 * margin? The first may be a single number. The p values are integrals of the density by Simpson's
 * rule. */
TEST(test_margin)
{
    static const double a[] = {1.2244, 1.2250, 1.2239}, b[] = {1.2180, 1.2186, 1.2177};
    const char *runs[8] = {NULL};
    for (int i = 0; i < 6; i++) {
        runs[i] = fake_run(lks_test_text("%c%d", "ab"[i / 3], i % 3), i % 3, 20, 1.5,
                           lks_test_text("\"n_layer\":%d", i / 3));
        fake_append(runs[i], lks_test_text("{'kind':'artifact','iter':20,'path':'x','val_loss':2,"
                                           "'val_bpb':%.9g}\n",
                                           (i < 3 ? a : b)[i % 3]));
    }
    const char *const both[] = {"--metric=artifact_bpb",
                                "--margin=0.005",
                                "--alpha=0.01",
                                runs[0],
                                runs[1],
                                runs[2],
                                runs[3],
                                runs[4],
                                runs[5],
                                NULL};
    const json_t *o = report(both);
    assert_near(lks_test_number(o, "tests.0.difference"), -0.0063333333333333, 1e-9);
    assert_near(lks_test_number(o, "tests.0.t"), -3.223291856101405, 1e-6);
    assert_near(lks_test_number(o, "tests.0.df"), 3.872, 1e-6);
    assert_near(lks_test_number(o, "tests.0.p"), 0.01685734244389, 1e-8);
    assert_false(json_is_true(lks_test_member(o, "tests.0.more_than_chance")));
    lks_test_result r = tool("report", NULL, both);
    assert_contains(r.out, "- b0 (n_layer=1) against a0 (n_layer=0): difference -0.0063, Welch's t "
                           "test, one-sided, lower "
                           "by more than 0.005, p = 0.0169: chance can explain it (p >= 0.01)\n");
    const char *const one[] = {both[0], both[1], runs[0], runs[3], runs[4], runs[5], NULL};
    o = report(one);
    assert_near(lks_test_number(o, "tests.0.p"), 0.0195061738795244, 1e-8);
    assert_near(lks_test_number(o, "tests.0.df"), 2.0, 1e-9);
    assert_true(json_is_true(lks_test_member(o, "tests.0.more_than_chance"))); /* p < 0.05 */
    const char *const worse[] = {both[0], both[1], runs[3], runs[0], runs[1], runs[2], NULL};
    o = report(worse);
    assert_true(lks_test_number(o, "tests.0.p") > 0.99);
    const char *const none[] = {"--metric=val_bpb", runs[0], NULL};
    assert_exits(2, tool("report", NULL, none),
                 "no run has recorded bits per byte, as golf runs do");
}

/* Settings that differ only after more bytes than a table shows. */
TEST(test_long_setting)
{
    const char *runs[5] = {NULL};
    for (int i = 0; i < 4; i++)
        runs[i] = fake_run(lks_test_text("r%d", i), i % 2, 20, 1.5 + 0.1 * i,
                           lks_test_text("\"control_tensor_name_patterns\":\"%0300d\"", i / 2));
    const json_t *o = report(runs);
    assert_int_equal(json_array_size(lks_test_member(o, "seeds")), 2);
    assert_int_equal(json_array_size(lks_test_member(o, "settings")), 2); /* and the seed */
}

/* Of equal runs the longest one with a result counts, not the first, which may have been killed. */
TEST(test_longest)
{
    const char *killed = fake_run("killed", 1, 5, 3.0, "\"n_layer\":2");
    const char *lost = fake_run("lost", 1, 30, 2.0, "\"n_layer\":2");
    const char *const runs[] = {killed, fake_run("whole", 1, 20, 1.5, "\"n_layer\":2"), lost,
                                fake_run("other", 2, 20, 1.6, "\"n_layer\":2"), NULL};
    fake_append(lost, "{'kind':'final','iter':30,'val_loss':null}\n");
    const json_t *o = report(runs);
    assert_int_equal(lks_test_number(o, "seeds.0.seeds"), 2);
    assert_near(lks_test_number(o, "seeds.0.mean"), 1.55, 1e-9);
}

/* If one run has no evaluation, training losses are compared, of all runs. */
TEST(test_no_evaluation)
{
    const char *dir = lks_test_folder(), *runs[6] = {dir};
    fake_append(dir, "{'kind':'config','seed':9,'n_layer':3}\n"
                     "{'kind':'train','iter':0,'loss':5,'ms':100}\n");
    for (int i = 0; i < 4; i++) {
        runs[1 + i] = fake_run(lks_test_text("r%d", i), i, 20, 1.5 + 0.1 * (i % 2),
                               i < 2 ? "\"n_layer\":2" : "\"n_layer\":3");
        fake_append(runs[1 + i], "{'kind':'final','iter':20,'val_loss':9}\n");
    }
    const json_t *o = report(runs);
    assert_string_equal(lks_test_string(o, "compared"), "loss");
    assert_near(lks_test_number(o, "seeds.0.mean"), (5.0 + 1.5 + 1.6) / 3.0, 1e-9);
    assert_near(lks_test_number(o, "seeds.1.mean"), 1.55, 1e-9);
    runs[0] = runs[4];
    runs[4] = NULL;
    o = report(runs);
    assert_near(lks_test_number(o, "seeds.0.mean"), 9.0, 1e-9);
}

/* A resume after skipped steps, with another batch: its iteration isn't that after the last loss.
 */
TEST(test_resumed)
{
    const char *dir = fake_run("run", 1, 5, 1.5, "\"batch_size\":2");
    fake_append(dir, "{'kind':'skip','iter':5}\n"
                     "{'kind':'host','resumed_iter':10,'changed':{'batch_size':4}}\n");
    const json_t *o = report((const char *const[]){dir, NULL});
    assert_int_equal(lks_test_number(o, "runs.0.segments.0.iter"), 10);
}

/* Seeds of equal settings, though versions differ; one run diverged, and nothing else spreads. */
TEST(test_no_spread)
{
    const char *a = "\"learning_rate\":0.3,\"version\":\"0.%d\"", *b = "\"learning_rate\":0.1";
    const char *runs[6] = {NULL};
    for (int i = 0; i < 2; i++)
        runs[i] = fake_run(lks_test_text("a%d", i), i, 20, 1.5, lks_test_text(a, i));
    for (int i = 0; i < 3; i++)
        runs[2 + i] = fake_run(lks_test_text("b%d", i), i, 20, 1.25, b);
    fake_append(runs[4], "{'kind':'final','iter':20,'val_loss':null}\n");
    const json_t *o = report(runs);
    assert_int_equal(json_array_size(lks_test_member(o, "seeds")), 2);
    assert_int_equal(lks_test_number(o, "seeds.0.seeds"), 2);
    assert_int_equal(lks_test_number(o, "seeds.1.seeds"), 2);
    assert_near(lks_test_number(o, "seeds.1.mean"), 1.25, 0);
    assert_near(lks_test_number(o, "tests.0.p"), 0.0, 0);
    assert_near(lks_test_number(o, "tests.0.df"), 2.0, 0);
    assert_true(json_is_true(lks_test_member(o, "tests.0.more_than_chance")));
    lks_test_result r = tool("report", NULL, runs);
    assert_contains(r.out,
                    "- b0 (learning_rate=0.1) against a0 (learning_rate=0.3): difference -0.2500,");
    r = tool("report", "--markdown", runs);
    assert_contains(r.out, "| learning\\_rate | 0.3 | 0.3 | 0.1 | 0.1 | 0.1 |");
    runs[0] = runs[2]; /* the same result twice: no difference */
    runs[2] = fake_run("c0", 0, 20, 1.25, "\"learning_rate\":0.2");
    runs[4] = fake_run("c1", 1, 20, 1.25, "\"learning_rate\":0.2");
    runs[1] = runs[3];
    runs[3] = NULL;
    o = report((const char *const[]){runs[0], runs[1], runs[2], runs[4], NULL});
    assert_near(lks_test_number(o, "tests.0.p"), 1.0, 0);
}

/* A short run without evaluations, which skipped a step and went back twice; some of its lines lack
 * a number. All its tables are sound. */
TEST(test_odd_run)
{
    const char *dir = lks_test_folder(), *b = fake_run("b", 1, 3, 1.0, "\"n_layer\":2");
    const char *a = lks_test_text("q\"x=%s", dir);
    fake_append(dir, "{'kind':'config','n_layer':2}\n{'kind':'host'}\n{'kind':'skip','iter':0}\n");
    for (int i = 0; i < 5; i++)
        fake_append(dir, lks_test_text("{'kind':'train','iter':%d,'loss':%d,'ms':100,"
                                       "'tok_per_s':50000%s}\n",
                                       i, 5 - i, i % 2 == 0 ? "" : ",'mfu':0.25"));
    fake_append(dir, "{'kind':'host'}\n{'kind':'rollback','iter':5}\n"
                     "{'kind':'rollback','iter':5}\n");
    const char *const runs[] = {a, b, NULL};
    const json_t *o = report(runs);
    assert_string_equal(lks_test_string(o, "compared"), "loss");
    assert_near(lks_test_number(o, "runs.0.mfu"), 0.25, 1e-12); /* of the lines that have it */
    assert_int_equal(lks_test_number(o, "runs.0.steps"), 5);
    assert_int_equal(lks_test_number(o, "runs.0.resumes"), 1);
    assert_int_equal(lks_test_number(o, "runs.0.skips"), 1);
    assert_int_equal(lks_test_number(o, "runs.0.rollbacks"), 2);
    /* each iteration once, though ten rows have room */
    assert_int_equal(json_array_size(lks_test_member(o, "by_step")), 5);
    for (int i = 0; i < 5; i++) {
        const json_t *row = json_array_get(lks_test_member(o, "by_step"), (size_t)i);
        assert_near(lks_test_number(row, "iter"), i, 0);
        assert_near(lks_test_number(row, "values.0"), 5 - i, 0);
        assert_true(json_is_null(lks_test_member(row, "values.1")) == (i > 2));
    }
    lks_test_result r = tool("report", "--csv", runs);
    assert_memory_equal(r.out, "table,row,run,value\n", 20);
    assert_contains(r.out, "\nruns,steps,\"q\"\"x\",5\n");
    r = tool("report", "--markdown", runs);
    assert_contains(r.out, "\n|---|--:|--:|\n");
    r = tool("report", NULL, runs);
    assert_contains(r.out, " 50000 "); /* tokens/s */
    assert_contains(r.out, " 3000\n"); /* tokens: a whole number at any size */
    assert_null(strstr(r.out, "3000.0"));
    /* Each row says what its number is, and in which unit. */
    assert_contains(r.out, "\n  iteration of best loss ",
                    "\n  share of the peak (MFU)   25.0%             50.0%\n",
                    "\n  waiting per step              -              2 ms\n",
                    "\n  memory of all ranks           -          123.5 kB\n",
                    "\n  time of all steps         0.5 s             0.3 s\n",
                    "\n  threads per rank ");
    assert_null(strstr(r.out, "last bits per byte")); /* nobody has them */
    /* the columns of a table end below each other */
    const char *line = strstr(r.out, "Runs\n") + 5, *next;
    for (size_t width = strcspn(line, "\n"); *line != '\n'; line = next) {
        assert_int_equal(strcspn(line, "\n"), width);
        next = line + width + 1;
    }
}

/* Names that aren't UTF-8, or are longer than a picture has room for. */
TEST(test_names)
{
    const char *e = "\xc3\xa9",
               *ten = lks_test_text("%s%s%s%s%s%s%s%s%s%s", e, e, e, e, e, e, e, e, e, e);
    const char *folder = lks_test_folder();
    const char *latin = fake_run("caf\xe9", 1, 20, 1.5, "\"n_layer\":2");
    const char *wide = lks_test_text("%s%s%s%sx%s", ten, ten, ten, ten, e);
    const char *text =
        lks_test_text("\"n_layer\":3,\"exec_on\":\"%s%s%s%s%s%s%s%s%s%s%s%s%sx%s%s%s\"", ten, ten,
                      ten, ten, ten, ten, ten, ten, ten, ten, ten, ten, e, ten, ten, ten);
    const char *runs[] = {latin, fake_run(wide, 2, 20, 1.0, text), NULL};
    fake_append(runs[1], lks_test_text("{'kind':'skip','iter':3,'place':'%s%s%s%s%s%sx%s'}\n", ten,
                                       ten, ten, ten, ten, ten, ten));
    const json_t *o = report(runs);
    assert_int_equal(json_array_size(lks_test_member(o, "runs")), 2);
    assert_string_equal(lks_test_string(o, "runs.0.run"), "caf?");
    assert_string_equal(lks_test_string(o, "runs.1.run"), wide);
    assert_int_equal(json_array_size(lks_test_member(o, "by_step.0.values")), 2);
    const json_t *row;
    size_t i;
    json_array_foreach(lks_test_member(o, "settings"), i, row)
    {
        assert_int_equal(json_array_size(json_object_get(row, "values")), 2);
    }
    assert_int_equal(i, 3); /* seed, n_layer and the long one */
    const char *page = lks_test_text("%s/page.html", folder);
    assert_exits(0, tool("watch", lks_test_text("--html=%s", page), runs));
    assert_contains(lks_test_read(page, NULL), lks_test_text("[\"caf?\",\"%s\"]", wide),
                    "[3,\"skip\",\"\xc3\xa9");
}

/* A folder of runs stands for these, in the order of the numbers in their names. */
TEST(test_folder)
{
    static const char *const names[] = {"run10", "run2", "lr=1", ".hidden"};
    const char *base = lks_test_folder();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(rename(fake_run(names[i], (int)i, 20, 1.5, "\"n_layer\":2"),
                                lks_test_text("%s/%s", base, names[i])),
                         0);
    /* What is in a run's folder, as an earlier run that was moved aside, stays there. */
    assert_int_equal(rename(fake_run("earlier-1", 9, 20, 1.5, "\"n_layer\":2"),
                            lks_test_text("%s/run2/earlier-1", base)),
                     0);
    assert_int_equal(mkdir(lks_test_text("%s/empty", base), 0777), 0);
    lks_test_write_text(lks_test_text("%s/file", base), "x");
    const json_t *o = report((const char *const[]){base, lks_test_text("%s/run2", base), NULL});
    assert_int_equal(json_array_size(lks_test_member(o, "runs")), 4);
    static const char *const want[] = {"lr=1", "run2", "run10", "run2"};
    for (int i = 0; i < 4; i++)
        assert_string_equal(lks_test_string(o, lks_test_text("runs.%d.run", i)), want[i]);
    lks_test_result r = assert_exits(
        0, tool("plot", NULL, (const char *const[]){lks_test_text("x=%s", base), NULL}),
        lks_test_text("lockstep plot: 3 runs in %s: x/lr=1, x/run2, x/run10\n", base));
    assert_contains(r.out, "x/run10");
    assert_exits(0, tool("watch", lks_test_text("--html=%s/page.html", base),
                         (const char *const[]){base, NULL}));
    assert_contains(lks_test_read(lks_test_text("%s/page.html", base), NULL),
                    "[\"lr=1\",\"run2\",\"run10\"]");
    assert_exits(2,
                 tool("watch", lks_test_text("--html=%s/x/metrics.jsonl", base),
                      (const char *const[]){base, NULL}),
                 "metrics.jsonl: the name must end in .html");
    /* The runs in the folder of a run are left out; those moved aside need no note. */
    const char *outer = lks_test_text("%s/run2", base);
    r = tool("report", NULL, (const char *const[]){outer, NULL});
    assert_null(strstr(r.err, "left out"));
    assert_int_equal(rename(lks_test_text("%s/lr=1", base), lks_test_text("%s/lr=1", outer)), 0);
    assert_exits(0, tool("report", NULL, (const char *const[]){outer, NULL}),
                 "run2 is a run, so the 1 run in it is left out: give their folders\n");
}

/* More runs than a command line can name, and than a line has place for: each has a row. */
TEST(test_many)
{
    const char *base = lks_test_folder();
    for (int i = 0; i < 70; i++)
        assert_int_equal(rename(fake_run("run", i, 2, i == 7 || i == 8 ? 1.5 : 2.0 - 0.005 * i,
                                         "\"n_layer\":2,\"parameters\":1"),
                                lks_test_text("%s/run%d", base, i)),
                         0);
    fake_append(lks_test_text("%s/run0", base),
                "{'kind':'host','commit':'012abcd','changed':{'parameters':2}}\n");
    lks_test_result r = assert_exits(0, tool("report", NULL, (const char *const[]){base, NULL}));
    assert_contains(r.out,
                    "\nRuns, the lowest loss first\n"
                    "         best val  at  last val   train  seed  steps   time\n"
                    "  run7     1.5000   2    1.5000  1.5000     7      2  0.2 s\n"
                    "  run8     1.5000   2    1.5000  1.5000     8      2  0.2 s\n"
                    "  run69    1.6550   2    1.6550  1.6550    69      2  0.2 s\n"
                    "  run68    1.6600   2    1.6600  1.6600    68      2  0.2 s\n",
                    "  run1     1.9950   2    1.9950  1.9950     1      2  0.2 s\n"
                    "  run0     2.0000   2    2.0000  2.0000     0      2  0.2 s\n\n"
                    "`lockstep plot` draws the losses,");
    assert_null(strstr(r.out, "equal steps"));
    r = tool("report", "--markdown", (const char *const[]){base, NULL});
    assert_contains(r.out, "\n|---|--:|--:|", "\n| run7 | 1.5000 | 2 | 1.5000 |");
    r = tool("report", "--csv", (const char *const[]){base, NULL});
    assert_contains(r.out, "\nruns,checkpoints,run69,1\n", "\nruns,commit,run0,012abcd\n",
                    "\nsettings,parameters,run69,1\n", "\nby_step,2,run69,");
    /* One has just begun, so the training losses are compared: it comes last. */
    fake_append(lks_test_text("%s/run12", base), "{'kind':'train','iter':2,'loss':1,'ms':100}\n");
    lks_test_write_text(lks_test_text("%s/run40/metrics.jsonl", base),
                        "{\"kind\":\"config\",\"version\":\"0.1.0\",\"seed\":40,\"n_layer\":2}\n");
    r = assert_exits(0, tool("report", NULL, (const char *const[]){base, NULL}));
    assert_contains(r.out, "  run12    1.9400   2    1.9400  1.0000 ", " time\n  run12 ",
                    "\n  run40         -   -         -       - ");
    assert_null(strstr(strstr(r.out, "\n  run40 ") + 1, "\n  run"));
    assert_exits(
        0, tool("report", NULL, (const char *const[]){lks_test_text("%s/run40", base), NULL}));
    /* Results and settings that don't fit the line follow below, but not in Markdown. */
    const char *longest = lks_test_text("%s/%048d", base, 1);
    assert_int_equal(rename(lks_test_text("%s/run1", base), longest), 0);
    fake_append(longest, "{'kind':'host','changed':{'gradient_accumulation_steps':2,"
                         "'always_save_checkpoint':true,'a_setting_of_a_newer_lockstep':1}}\n");
    r = assert_exits(0, tool("report", NULL, (const char *const[]){base, NULL}));
    assert_contains(r.out, lks_test_text("\n  run40%53s\n\n%54s\n  run12 ", "-", "at"));
    r = tool("report", NULL, (const char *const[]){longest, NULL}); /* one has a column */
    assert_contains(r.out, "\n  best validation loss ");
    r = assert_exits(0, tool("report", "--markdown", (const char *const[]){base, NULL}));
    assert_contains(r.out, "\n| run12 | 1.9400 | 2 | 1.9400 | 1.0000 | 12 | - | - | - |\n");
}

/* With many groups of seeds, report compares each of them with the best one. */
TEST(test_many_groups)
{
    static const double mean[] = {1.5, 1.3, 1.4};
    const char *runs[7] = {NULL};
    for (int i = 0; i < 6; i++)
        runs[i] = fake_run(lks_test_text("%c%d", "abc"[i / 2], i % 2), i % 2, 20,
                           mean[i / 2] + 0.01 * (i % 2), lks_test_text("\"n_layer\":%d", i / 2));
    assert_int_equal(json_array_size(lks_test_member(report(runs), "tests")), 3);
    lks_test_result r = tool("report", NULL, runs);
    assert_contains(r.out, "\n- b0 (n_layer=1) against a0 (n_layer=0): ",
                    "\n- c0 (n_layer=2) against b0 (n_layer=1): ");
    assert_null(strstr(r.out, "\n- c0 (n_layer=2) against a0 (n_layer=0): "));
    assert_contains(tool("report", "--margin=0.01", runs).out,
                    "\n- c0 (n_layer=2) against a0 (n_layer=0): ");
    const char *argv[9] = {"lockstep", "report"};
    memcpy(argv + 2, runs, sizeof runs);
    r = lks_test_run(argv, (const char *const[]){"COLUMNS=200", NULL}, 60);
    assert_contains(
        r.out, "\n- c0 (n_layer=2) against a0 (n_layer=0): "); /* few enough for a column per run */
}

/* Runs of one name have their parents' names, too, unless a name was given. */
TEST(test_same_name)
{
    const char *base = lks_test_folder(), *dirs[3];
    static const char *const paths[] = {"b/x", "b/x/run", "a", "a/x", "a/x/run/", "a/run"};
    assert_int_equal(mkdir(lks_test_text("%s/b", base), 0777), 0);
    for (int i = 0, n = 0; i < 6; i++) {
        const char *path = lks_test_text("%s/%s", base, paths[i]);
        if (strstr(path, "run") == NULL)
            assert_int_equal(mkdir(path, 0777), 0);
        else
            assert_int_equal(rename(fake_run("run", 1, 20, 1.5, "\"n_layer\":2"), dirs[n++] = path),
                             0);
    }
    const json_t *o =
        report((const char *const[]){dirs[0], dirs[1], lks_test_text("c=%s", dirs[0]), dirs[0],
                                     dirs[2], lks_test_text("run=%s", dirs[2]), NULL});
    static const char *const want[] = {"b/x/run", "a/x/run", "c", "b/x/run", "a/run", "run"};
    for (int i = 0; i < 6; i++)
        assert_string_equal(lks_test_string(o, lks_test_text("runs.%d.run", i)), want[i]);
    o = report(
        (const char *const[]){lks_test_text("%s/a", base), lks_test_text("%s/b", base), NULL});
    assert_string_equal(lks_test_string(o, "runs.2.run"), "b/x/run");
}

TEST(test_refused)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    const char *none = lks_test_folder();
    assert_exits(2, tool("report", NULL, (const char *const[]){NULL}),
                 "give one or more run folders");
    assert_exits(2, tool("report", NULL, (const char *const[]){dir, none, NULL}),
                 "is not a run's folder or a folder of runs: it contains no metrics.jsonl");
    const char *unreadable = lks_test_folder(); /* for root, too */
    assert_int_equal(symlink("metrics.jsonl", lks_test_text("%s/metrics.jsonl", unreadable)), 0);
    assert_exits(1, tool("report", NULL, (const char *const[]){unreadable, NULL}),
                 lks_test_text("can't open %s/metrics.jsonl: ", unreadable));
    assert_exits(2,
                 tool("report", NULL, (const char *const[]){lks_test_text("%s/none", none), NULL}),
                 lks_test_text("there is no folder %s/none: give the folder of a run, as "
                               "in `lockstep report ",
                               none));
    assert_exits(2, tool("report", "--json", (const char *const[]){"--csv", dir, NULL}));
    static const char *const serving[] = {"--port=0", "--address=0.0.0.0", "--tty"};
    for (int i = 0; i < 3; i++)
        assert_exits(2,
                     tool("watch", lks_test_text("--html=%s/x.html", none),
                          (const char *const[]){serving[i], dir, NULL}),
                     "--html writes a file and serves nothing");
    assert_exits(2, tool("plot", "--out=x.gif", (const char *const[]){dir, NULL}),
                 "must end in .svg or .png");
    fake_append(none, "{'kind':'train','iter':0,'loss':1}\n");
    assert_exits(2, tool("plot", NULL, (const char *const[]){none, NULL}),
                 "there is nothing to draw yet");
}
