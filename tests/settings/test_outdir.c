/* A run's folder: what an earlier run has left is moved aside, all of it and nothing else, and one
 * run at a time has the folder. */
#include "support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "rundir/outdir.h"

static const char *in(const char *folder, const char *name)
{
    return lks_test_text("%s/%s", folder, name);
}

static void test_start(void **state)
{
    static const char *const of_a_run[] = {"ckpt-00000003", "ckpt-00000004.tmp",
                                           "latest",        "best",
                                           "metrics.jsonl", "evals.jsonl",
                                           "train.log",     "events.out.tfevents.000001.lockstep",
                                           "commands.log",  "ranks.jsonl",
                                           "tokenizer.json"};
    static const char *const others[] = {"notes", "ckpt", "latest.txt", "metrics.json", ".lock"};
    enum { N_RUN = 11, N_OTHERS = 5 };
    const char *out = in(lks_test_folder(), "a/new");
    char moved[4200];
    assert_ok(lks__outdir_start(out, moved)); /* made, and nothing to move */
    assert_string_equal(moved, "");
    assert_int_equal(lks_test_count_files(out), 0);
    for (int i = 0; i < N_OTHERS; i++)
        lks_test_write(in(out, others[i]), "x", 1);
    assert_ok(lks__outdir_start(out, moved));
    assert_string_equal(moved, "");
    for (int turn = 1; turn <= 2; turn++)
        for (int i = 0; i < N_RUN; i++) { /* each of them alone is one */
            const char *earlier = in(out, lks_test_text("earlier-%d", (turn - 1) * N_RUN + i + 1));
            if (of_a_run[i][0] == 'c')
                assert_int_equal(mkdir(in(out, of_a_run[i]), 0777), 0);
            else
                lks_test_write(in(out, of_a_run[i]), "x", 1);
            assert_ok(lks__outdir_start(out, moved));
            assert_string_equal(moved, earlier);
            assert_true(lks_test_exists(in(earlier, of_a_run[i])));
            assert_false(lks_test_exists(in(out, of_a_run[i])));
            assert_int_equal(lks_test_count_files(earlier), 1);
        }
    for (int i = 0; i < N_OTHERS; i++)
        assert_true(lks_test_exists(in(out, others[i])));
}

static void test_lock(void **state)
{
    const char *out = in(lks_test_folder(), "new"), *own = lks_test_text("pid %d", (int)getpid());
    int fd, again;
    assert_ok(lks__outdir_free(out)); /* not there: free */
    assert_ok(lks__outdir_lock(out, &fd));
    assert_fails(LKS_ERR_CONFIG, lks__outdir_free(out), out, "still going on", own);
    assert_fails(LKS_ERR_CONFIG, lks__outdir_lock(out, &again), out, "still going on", own);
    assert_int_equal(again, -1);
    close(fd);
    assert_ok(lks__outdir_free(out));
    assert_ok(lks__outdir_lock(out, &fd));
    close(fd);
    /* What others have written there is gone, such as the name of another job. */
    static const char stale[] = "pid 1 on somewhere with quite a long name\njob of yesterday\n";
    lks_test_write(in(out, ".lock"), stale, sizeof stale - 1);
    assert_ok(lks__outdir_lock(out, &fd));
    const char *text = lks_test_read(in(out, ".lock"), NULL);
    assert_memory_equal(text, own, strlen(own));
    assert_int_equal(strcspn(text, "\n"), strlen(text) - 1);
    close(fd);
    lks_test_write(in(out, "file"), "x", 1);
    assert_int_equal(lks__outdir_lock(in(out, "file"), &fd), LKS_ERR_IO);
    assert_int_equal(fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_lock),
    };
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
