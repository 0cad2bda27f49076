/* A run's folder: what an earlier run has left is moved aside, all of it and nothing else, one run
 * at a time has the folder, and the best checkpoint in it is found again. */
#include "support.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "files/checkpoint/ckpt.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"
#include "report/record/best.h"
#include "report/record/files.h"
#include "report/record/outdir.h"

/* docs/reference/formats.md lists the files of report/record/files.h, and no others. */
TEST(test_documented)
{
    const char *page = lks_test_read(LKS_TEST_SOURCE_DIR "/docs/reference/formats.md", NULL);
    const char *list = lks_test_find(page, "\n## Files of a run\n");
    size_t rows = 0;
    const char *end = strstr(list + 1, "\n## ");
    for (const char *p = list; (p = strstr(p, "\n| `")) != NULL && p < end; p++)
        rows++;
    assert_int_equal(rows, lks__n_run_files);
    for (size_t i = 0; i < lks__n_run_files; i++) {
        const lks__run_file *f = &lks__run_files[i];
        static const char *const later[] = {"stays", "copied", "moved"};
        const char *row = strstr(list, lks_test_text("\n| `%s` |", f->name));
        if (row == NULL || row > end)
            fail_msg("formats.md doesn't list %s", f->name);
        const char *line = lks_test_text("%.*s", (int)strcspn(row + 1, "\n"), row + 1);
        assert_contains(
            line, lks_test_text("| %s | %s |", f->moves ? "moved" : "stays", later[f->later]));
    }
}

static const char *in(const char *folder, const char *name)
{
    return lks_test_text("%s/%s", folder, name);
}

TEST(test_start)
{
    static const char *const of_a_run[] = {"ckpt-00000003",  "ckpt-00000004.tmp",
                                           "latest",         "best",
                                           "metrics.jsonl",  "evals.jsonl",
                                           "train.log",      "events.out.tfevents.000001.lockstep",
                                           "commands.log",   "ranks.jsonl",
                                           "tokenizer.json", LKS__ARTIFACT_FILE,
                                           "leaves.bin"};
    static const char *const others[] = {"notes", "ckpt", "latest.txt", "metrics.json", ".lock"};
    enum { N_RUN = 13, N_OTHERS = 5 };
    const char *out = in(lks_test_folder(), "a/new");
    char moved[LKS__SYS_PATH];
    assert_ok(lks__outdir_start(out, NULL, moved)); /* made, and nothing to move */
    assert_string_equal(moved, "");
    assert_int_equal(lks_test_count_files(out), 0);
    for (int i = 0; i < N_OTHERS; i++)
        lks_test_write_text(in(out, others[i]), "x");
    assert_ok(lks__outdir_start(out, NULL, moved));
    assert_string_equal(moved, "");
    for (int turn = 1; turn <= 2; turn++)
        for (int i = 0; i < N_RUN; i++) { /* each of them alone is one */
            const char *earlier = in(out, lks_test_text("earlier-%d", (turn - 1) * N_RUN + i + 1));
            if (of_a_run[i][0] == 'c')
                assert_int_equal(mkdir(in(out, of_a_run[i]), 0777), 0);
            else
                lks_test_write_text(in(out, of_a_run[i]), "x");
            assert_ok(lks__outdir_start(out, NULL, moved));
            assert_string_equal(moved, earlier);
            assert_true(lks_test_exists(in(earlier, of_a_run[i])));
            assert_false(lks_test_exists(in(out, of_a_run[i])));
            assert_int_equal(lks_test_count_files(earlier), 1);
        }
    for (int i = 0; i < N_OTHERS; i++)
        assert_true(lks_test_exists(in(out, others[i])));
}

/* A run that moves back and is stopped in the middle doesn't stay in two folders. */
TEST(test_undo)
{
    static const char *const files[] = {"train.log", "metrics.jsonl", "ranks.jsonl"};
    const char *out = in(lks_test_folder(), "new"), *block = in(out, "metrics.jsonl");
    char moved[LKS__SYS_PATH];
    assert_ok(lks__outdir_start(out, NULL, moved));
    for (int i = 0; i < 3; i++)
        lks_test_write_text(in(out, files[i]), "x");
    assert_ok(lks__outdir_start(out, NULL, moved));
    assert_ok(lks__outdir_undo(out, moved));
    assert_false(lks_test_exists(moved));
    assert_int_equal(lks_test_count_files(out), 3);
    assert_ok(lks__outdir_start(out, NULL, moved));
    assert_int_equal(mkdir(block, 0777), 0); /* which no file can replace */
    assert_fails(LKS_ERR_IO, lks__outdir_undo(out, moved), "can't move", "metrics.jsonl");
    assert_fails(LKS_ERR_CONFIG, lks__outdir_check(out), "move them back");
    assert_int_equal(rmdir(block), 0);
    assert_ok(lks__outdir_start(out, NULL, moved));
    for (int i = 0; i < 3; i++)
        assert_true(lks_test_exists(in(moved, files[i])));
}

/* OUT/data moves with the run that prepared it, and stays if it is the user's or the new run's. */
TEST(test_data)
{
    const char *out = in(lks_test_folder(), "new"), *data = in(out, "data"), *earlier;
    char moved[LKS__SYS_PATH];
    assert_ok(lks__outdir_start(out, NULL, moved));
    assert_int_equal(mkdir(data, 0777), 0);
    lks_test_write_text(in(data, "train.bin"), "x");
    lks_test_write_text(in(out, "train.log"), "x");
    assert_ok(lks__outdir_start(out, NULL, moved));
    assert_string_equal(moved, in(out, "earlier-1"));
    assert_true(lks_test_exists(in(data, "train.bin")));
    lks_test_write_text(in(data, LKS__DATA_MARK), "{}");
    lks_test_write_text(in(out, "train.log"), "x");
    assert_ok(lks__outdir_start(out, data, moved));
    assert_string_equal(moved, in(out, "earlier-2"));
    assert_true(lks_test_exists(in(data, "train.bin")));
    assert_ok(lks__outdir_start(out, in(out, "earlier-1"), moved));
    assert_string_equal(moved, earlier = in(out, "earlier-3"));
    assert_true(lks_test_exists(in(earlier, "data/train.bin")));
    assert_false(lks_test_exists(data));
}

TEST(test_lock)
{
    const char *out = in(lks_test_folder(), "new"), *own = lks_test_text("pid %d", (int)getpid());
    int fd, again;
    assert_ok(lks__outdir_free(out, true)); /* not there: free */
    assert_ok(lks__outdir_lock(out, false, &fd));
    const int asking = open(in(out, ".lock"), O_RDWR); /* it must not lock */
    assert_false(lks__sys_is_locked(asking, LKS__LOCK_RUN));
    assert_ok(lks__outdir_lock(out, true, &fd));
    assert_true(lks__sys_is_locked(asking, LKS__LOCK_RUN));
    close(asking);
    assert_fails(LKS_ERR_CONFIG, lks__outdir_free(out, true), out, "still in progress", own);
    assert_fails(LKS_ERR_CONFIG, lks__outdir_lock(out, true, &again), out, "still in progress",
                 own);
    assert_int_equal(again, -1);
    close(fd);
    /* Somebody who may only read the folder can't stop a run there. */
    const int reader = open(in(out, ".lock"), O_RDONLY);
    assert_int_equal(flock(reader, LOCK_EX | LOCK_NB), 0);
    assert_ok(lks__outdir_free(out, true));
    assert_ok(lks__outdir_lock(out, true, &fd));
    close(fd);
    close(reader);
    /* What others have written there is gone, such as the name of another job. */
    static const char stale[] = "pid 1 on somewhere with quite a long name\njob of yesterday\n";
    lks_test_write_text(in(out, ".lock"), stale);
    assert_ok(lks__outdir_lock(out, true, &fd));
    const char *text = lks_test_read(in(out, ".lock"), NULL);
    assert_memory_equal(text, own, strlen(own));
    assert_int_equal(strcspn(text, "\n"), strlen(text) - 1);
    close(fd);
    lks_test_write_text(in(out, "file"), "x");
    /* A look at what names can be leaves nothing. */
    bool links;
    int err;
    const int before = lks_test_count_files(out);
    assert_ok(lks__name_probe(out, &links, &err));
    assert_true(links && err == 0);
    assert_int_equal(lks_test_count_files(out), before);
    assert_int_equal(lks__outdir_lock(in(out, "file"), true, &fd), LKS_ERR_IO);
    assert_int_equal(fd, -1);
}

/* --- the best checkpoint ---------------------------------------------------------------------- */

static void save(const char *out, uint64_t iter)
{
    const lks__ckpt_content nothing = {.iter = iter};
    char name[32], hash[17];
    assert_ok(lks__ckpt_save(out, &nothing, 0, name, hash));
    assert_string_equal(hash, "2d06800538d394c2"); /* XXH3-64 of nothing */
}

static void put_eval(FILE *f, int iter, double loss, int saved)
{
    fprintf(f, "{\"kind\":\"eval\",\"iter\":%d,\"val_loss\":%.9g}\n", iter, loss);
    fprintf(f, "{\"kind\":\"checkpoint\",\"iter\":%d,\"params_hash\":\"2d06800538d394c2\"}\n",
            saved);
}

static void assert_best(const char *out, const lks__best *best, uint64_t iter, double loss)
{
    lks__ckpt ckpt;
    assert_true(best->found && best->iter == iter && best->loss == loss);
    assert_ok(lks__ckpt_open_best(out, LKS__CKPT_ONLY_STATE, &ckpt));
    assert_int_equal(ckpt.iter, iter);
    lks__ckpt_close(&ckpt);
}

/* In a file of any length, whose lines end anywhere: it is read in pieces of 256 KiB. */
TEST(test_best)
{
    enum { PIECE = 256 << 10, N = 300, LOWEST = 299 };
    const char *out = lks_test_folder();
    lks__best best;
    save(out, 2);
    save(out, 50);
    save(out, 51);
    save(out, LOWEST);
    FILE *f = fopen(in(out, "metrics.jsonl"), "w");
    /* The state of evaluation 50 was never saved: checkpoint 50 is another run's. */
    for (int i = 1; i < LOWEST; i++)
        put_eval(f, i, i == 50 ? 0.1 : i == 51 ? 1.5 : 2.0 - i * 0.001, i == 50 ? 49 : i);
    fprintf(f, "{\"kind\":\"train\",\"x\":\"");
    while (ftell(f) < PIECE - 20)
        fputs(ftell(f) % 1000 != 999 ? "x" : "\"}\n{\"kind\":\"train\",\"x\":\"", f);
    fputs("\"}\n", f);
    put_eval(f, LOWEST, 0.5, LOWEST);
    fclose(f);
    assert_ok(lks__best_decide(out, N, &best));
    assert_best(out, &best, LOWEST, 0.5);
    assert_ok(lks__best_decide(out, LOWEST - 1, &best));
    assert_best(out, &best, 51, 1.5);

    /* Without that file the name that is there counts, unless its checkpoint is a later one. */
    assert_ok(lks__best_decide(out, N, &best));
    assert_ok(lks__best_keep(out, LOWEST, 0.7, &best));
    assert_best(out, &best, LOWEST, 0.7);
    assert_ok(lks__best_keep(out, LOWEST - 1, 0.7, &best));
    assert_false(best.found);
    assert_false(lks_test_exists(in(out, "best")));
}

/* Losses are compared as they are written, with nine digits; of equal ones the earlier stays. */
TEST(test_beaten)
{
    lks__best best = {.found = false};
    assert_false(lks__best_beaten(&best, (double)NAN));
    assert_true(lks__best_beaten(&best, 3.0));
    lks__best_set(&best, 7, 0.123456789012);
    assert_true(best.found && best.iter == 7 && best.loss == 0.123456789);
    assert_false(lks__best_beaten(&best, 0.123456789012));
    assert_false(lks__best_beaten(&best, 0.1234567888));
    assert_true(lks__best_beaten(&best, 0.123456788));
    assert_false(lks__best_beaten(&best, (double)NAN));
}
