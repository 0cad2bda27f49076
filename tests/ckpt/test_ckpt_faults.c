/* A save that dies, or whose n-th system call fails, for every n: the old or the new checkpoint is
 * there, complete, and the next save works as usual.
 *
 * Each save runs in a process of its own: this program again, as `test --save OUT ITER VARIANT
 * KEEP`, with LOCKSTEP_FAULT in its environment. All of them together sync 24,000 times, which
 * takes minutes on a slow disk: so they run in memory, and with the argument `disk` a few of them
 * run in TMPDIR. */

#include "support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/content.h"
#include "ckpt/scratch.h"
#include "files/checkpoint/name.h"
#include "report/record/best.h"
#include "report/record/files.h"
#include "report/record/outdir.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

enum { MAX_CALLS = 200 };

typedef struct scenario {
    const char *name;
    void (*prepare)(const char *out);
    int old_iter, old_variant; /* what `latest` names before; -1: nothing */
    int iter, variant, keep;   /* the save that the fault hits */
} scenario;

static void save(const char *out, int iter, int variant)
{
    assert_int_equal(save_content(out, (uint64_t)iter, variant, 0), LKS_OK);
}

static void prepare_none(const char *out)
{
    assert_int_equal(mkdir(out, 0777), 0);
}

static void prepare_two(const char *out)
{
    save(out, 10, 0);
    save(out, 20, 0);
}

/* What remains of a save of 20 that died between its two renames, and of one of 15 before that. */
static void prepare_leftovers(const char *out)
{
    const char *old = lks_test_text("%s/ckpt-00000020", out);
    const char *torn = lks_test_text("%s/ckpt-00000015.tmp", out);
    prepare_two(out);
    assert_int_equal(rename(old, lks_test_text("%s.old", old)), 0);
    assert_int_equal(mkdir(torn, 0777), 0);
    lks_test_write(lks_test_text("%s/model.safetensors", torn), "torn", 4);
}

static const scenario scenarios[] = {
    {"first", prepare_none, -1, 0, 10, 0, 0},
    {"next", prepare_two, 20, 0, 30, 0, 1},
    {"replacing", prepare_two, 20, 0, 20, 1, 0},
    {"older", prepare_two, 20, 0, 10, 1, 1}, /* replaces one that `latest` does not name */
    {"after a death", prepare_leftovers, 20, 0, 30, 0, 2},
    {"replacing after a death", prepare_leftovers, 20, 0, 20, 1, 0},
};

static char said[4096]; /* printed by the last save */

/* Run the save with `fault`; returns the wait status. */
static int run(const scenario *s, const char *out, const char *fault)
{
    const char *iter = lks_test_text("%d", s->iter), *keep = lks_test_text("%d", s->keep);
    const char *variant = lks_test_text("%d", s->variant);
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        setenv("LOCKSTEP_FAULT", fault, 1);
        execl("/proc/self/exe", "test", "--save", out, iter, variant, keep, (char *)NULL);
        _exit(99);
    }
    close(ends[1]);
    size_t n = 0;
    ssize_t got;
    while (n < sizeof said - 1 && (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static const char *prepared(const scenario *s)
{
    const char *out = in_scratch("out");
    remove_tree(out);
    s->prepare(out);
    return out;
}

static void is_old(const scenario *s, const char *out)
{
    lks__ckpt ckpt;
    if (s->old_iter >= 0)
        assert_true(opens_as(out, (uint64_t)s->old_iter, s->old_variant));
    else
        assert_int_equal(lks__ckpt_open(out, 1, &ckpt), LKS_ERR_IO);
}

/* A save that failed gives the one that it was replacing its name back. */
static void is_back(const scenario *s, const char *out)
{
    if (s->prepare != prepare_two)
        return;
    assert_false(any_name_ends(out, ".old"));
    if (s->iter <= s->old_iter)
        assert_true(opens_as(lks_test_text("%s/ckpt-%08d", out, s->iter), (uint64_t)s->iter, 0));
}

static bool is_new(const scenario *s, const char *out)
{
    return opens_as(out, (uint64_t)s->iter, s->variant);
}

/* Are parts of the save left? */
static bool half_written(const scenario *s, const char *out)
{
    return any_name_ends(out, lks_test_text("-%08d.tmp", s->iter)) ||
           any_name_ends(out, "latest.tmp");
}

/* The next save isn't hindered, and leaves only checkpoints. */
static void goes_on(const scenario *s, const char *out)
{
    assert_int_equal(save_content(out, (uint64_t)s->iter, s->variant, s->keep), LKS_OK);
    assert_true(is_new(s, out));
    assert_false(any_name_ends(out, ".tmp"));
    assert_false(any_name_ends(out, ".old"));
    if (s->keep == 0 && s->old_iter >= 0 && s->old_iter != s->iter)
        assert_true(lks_test_exists(in_scratch("out/ckpt-00000020")));
}

/* A deletion that died leaves no incomplete folder with a checkpoint's name. */
static void all_whole(const char *out)
{
    for (int iter = 10; iter <= 30; iter += 10) {
        const char *folder = lks_test_text("%s/ckpt-%08d", out, iter);
        lks__ckpt ckpt;
        if (!lks_test_exists(folder))
            continue;
        assert_ok(lks__ckpt_open(folder, LKS__CKPT_ALL_ALONE, &ckpt));
        lks__ckpt_close(&ckpt);
    }
}

/* Kill it at call k, for all k or every `step`th; returns the last k that killed it. `also`:
 * additional faults. */
static int kill_at_each(const scenario *s, const char *how, const char *also, int step)
{
    bool turned = false;
    for (int k = 1; k < MAX_CALLS; k += step) {
        const char *out = prepared(s);
        int status = run(s, out, lks_test_text("any:%d:%s%s", k, how, also));
        if (!WIFSIGNALED(status)) {
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            assert_true(turned && is_new(s, out));
            return k - step;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
        /* First always the old one, from some call on always the new one. */
        if (is_new(s, out))
            turned = true;
        else if (turned)
            fail_msg("%s, killed at call %d: the new one was lost", s->name, k);
        else
            is_old(s, out);
        all_whole(out);
        goes_on(s, out);
    }
    fail_msg("a save makes more than %d calls", MAX_CALLS);
    return 0;
}

TEST(killed)
{
    for (size_t i = 0; i < COUNT(scenarios); i++) {
        int calls = kill_at_each(&scenarios[i], "die", "", 1);
        assert_in_range(calls, 20, MAX_CALLS);
        assert_int_equal(kill_at_each(&scenarios[i], "die-after", "", 1), calls);
    }
}

/* On file systems without symbolic links `latest` is a small file, which is replaced atomically,
 * too. */
TEST(without_links)
{
    static const char *const errors[] = {"EPERM", "EACCES", "EOPNOTSUPP"};
    struct stat info;
    for (size_t i = 0; i < COUNT(errors); i++) {
        const scenario *s = &scenarios[i];
        const char *out = prepared(s);
        if (run(s, out, lks_test_text("symlink:*:%s", errors[i])) != 0)
            fail_msg("%s: %s", errors[i], said);
        assert_int_equal(lstat(in_scratch("out/latest"), &info), 0);
        assert_true(S_ISREG(info.st_mode));
        assert_true(is_new(s, out));
        goes_on(s, out);
    }
    kill_at_each(&scenarios[1], "die", ",symlink:*:EPERM", 1);
    kill_at_each(&scenarios[2], "die-after", ",symlink:*:EPERM", 1);
    /* Its content is durable before it becomes `latest`: the sixth sync, after those of the files,
     * of their folder and of its name. */
    const char *out = prepared(&scenarios[1]);
    assert_true(WIFSIGNALED(run(&scenarios[1], out, "fsync:6:die,symlink:*:EPERM")));
    assert_true(lks_test_exists(in_scratch("out/latest.tmp")));
    is_old(&scenarios[1], out);
    /* A full disk is not mistaken for that. */
    out = prepared(&scenarios[1]);
    assert_int_not_equal(run(&scenarios[1], out, "symlink:1:ENOSPC"), 0);
    is_old(&scenarios[1], out);
}

TEST(killed_sometimes)
{
    assert_in_range(kill_at_each(&scenarios[1], "die", "", 7), 20, MAX_CALLS);
}

/* Number of calls that the save makes, found by bisection: it is killed at call k if there is
 * one. */
static int count_calls(const scenario *s)
{
    int there = 1, beyond = MAX_CALLS;
    while (beyond - there > 1) {
        int k = (there + beyond) / 2;
        if (WIFSIGNALED(run(s, prepared(s), lks_test_text("any:%d:die", k))))
            there = k;
        else
            beyond = k;
    }
    return there;
}

static void fail_each(const scenario *s, const char *what, const char *cause)
{
    int calls = count_calls(s), failures = 0;
    for (int k = 1; k <= calls; k++) {
        const char *out = prepared(s);
        int status = run(s, out, lks_test_text("any:%d:%s", k, what));
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 0) { /* the folder existed already, or a deletion was hit */
            assert_true(is_new(s, out));
        } else {
            assert_int_equal(WEXITSTATUS(status), 1);
            failures++;
            if (!strstr(said, in_scratch("")) || !strstr(said, cause))
                fail_msg("%s, call %d: %s", s->name, k, said);
            /* The last sync comes after all renames: then the new one is there. */
            if (is_new(s, out)) {
                assert_contains(said, "is saved, but a power failure may undo `latest`");
            } else {
                assert_contains(said, "is not saved");
                is_old(s, out);
                is_back(s, out);
            }
            assert_false(half_written(s, out));
        }
        goes_on(s, out);
    }
    assert_in_range(failures, 25, calls);
}

TEST(failed)
{
    for (size_t i = 0; i < COUNT(scenarios); i++) {
        fail_each(&scenarios[i], "ENOSPC", "No space left on device");
        fail_each(&scenarios[i], "EIO", "Input/output error");
    }
    fail_each(&scenarios[1], "EACCES", "Permission denied");
    /* The one that was being replaced doesn't get its name back. */
    assert_int_not_equal(run(&scenarios[4], prepared(&scenarios[4]), "rename:1:EIO"), 0);
    assert_contains(said, "cannot rename", "ckpt-00000020.old: Input/output error");
}

/* The best checkpoint stays even if the file that names it can't be read. */
TEST(best_unknown)
{
    const scenario *s = &scenarios[1];
    const int calls = count_calls(s) + 10;
    for (int k = 20; k <= calls; k++) { /* names are read after all else */
        const char *out = prepared(s);
        lks_test_write(in_scratch("out/best"), "ckpt-00000010\n", 14);
        assert_true(WIFEXITED(run(s, out, lks_test_text("any:%d:EIO", k))));
        assert_true(lks_test_exists(in_scratch("out/ckpt-00000010")));
    }
}

/* `best` is durable, too, with its checkpoint or if it moves to one that exists already; so is
 * `latest` after a rollback. */
TEST(names_synced)
{
    static const struct {
        scenario moves;
        const char *fault, *name;
    } rows[] = {{{"best", prepare_two, 20, 0, 10, -3, 0}, "fsync:1:die", "best"},
                {{"new best", prepare_two, 20, 0, 10, -5, 0}, "fsync:7:die", "best"},
                {{"rollback", prepare_two, 20, 0, 10, -4, 0}, "fsync:1:die", "latest"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        lks__entry e;
        const char *out = prepared(&rows[i].moves);
        assert_true(WIFSIGNALED(run(&rows[i].moves, out, rows[i].fault)));
        assert_int_equal(lks__name_read(out, rows[i].name, &e), LKS_OK);
        assert_int_equal(e.iter, 10);
    }
}

/* Half a write, then a full disk. */
TEST(torn)
{
    const scenario *s = &scenarios[2];
    for (int k = 1;; k++) {
        const char *out = prepared(s);
        int status = run(s, out, lks_test_text("write:%d:short", k));
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 0) {
            assert_true(k > 10); /* 9 tensors, 2 headers, a state */
            break;
        }
        assert_non_null(strstr(said, "No space left on device"));
        is_old(s, out);
        assert_false(half_written(s, out));
    }
}

/* After a power cut only what was synced before remains. Files must be durable before their folder
 * gets its name, that name before `latest` moves to it, and that before older checkpoints are
 * deleted. So each sync of a save comes between what it makes durable and what needs that. */
TEST(synced)
{
    static const struct {
        const char *there, *not_yet;
    } at[] = {
        {"ckpt-00000030.tmp/model.safetensors", "ckpt-00000030.tmp/optimizer.safetensors"},
        {"ckpt-00000030.tmp/optimizer.safetensors", "ckpt-00000030.tmp/state.json"},
        {"ckpt-00000030.tmp/state.json", "ckpt-00000030"},
        {"ckpt-00000030.tmp/state.json", "ckpt-00000030"}, /* the names of its files */
        {"ckpt-00000030", "latest.tmp"},
        {"ckpt-00000020", "latest.tmp"},
    };
    const scenario *s = &scenarios[1];
    for (size_t k = 0; k < COUNT(at); k++) {
        const char *out = prepared(s);
        assert_true(WIFSIGNALED(run(s, out, lks_test_text("fsync:%zu:die", k + 1))));
        assert_true(lks_test_exists(lks_test_text("%s/%s", out, at[k].there)));
        assert_false(lks_test_exists(lks_test_text("%s/%s", out, at[k].not_yet)));
        assert_true(is_new(s, out) == (k == COUNT(at) - 1));
    }
    assert_false(WIFSIGNALED(run(s, prepared(s), lks_test_text("fsync:%zu:die", COUNT(at) + 1))));
    /* The name of a save that died is durable before the one that it replaced is deleted. */
    const char *out = prepared(s), *old = in_scratch("out/ckpt-00000020.old");
    lks_test_do("cp", "-a", in_scratch("out/ckpt-00000020"), old);
    assert_true(WIFSIGNALED(run(s, out, "fsync:1:die")));
    assert_true(lks_test_exists(old));
}

/* --- a resume from an older checkpoint -------------------------------------------------------- */

static const char metrics[] = "{\"kind\":\"config\"}\n"
                              "{\"kind\":\"checkpoint\",\"iter\":10,\"path\":\"\"}\n"
                              "{\"kind\":\"checkpoint\",\"iter\":30,\"path\":\"\"}\n";

/* A run with three checkpoints, of which the newest is the best, and the files of its end. */
static void prepare_run(const char *out)
{
    prepare_two(out);
    assert_int_equal(save_best(out, 30, 0, 0), LKS_OK);
    lks_test_write(in_scratch("out/metrics.jsonl"), metrics, strlen(metrics));
    lks_test_write(in_scratch("out/train.log"), "lines\n", 6);
    lks_test_write(in_scratch("out/" LKS__ARTIFACT_FILE), "artifact", 8);
}

static const scenario back_to_10 = {"back", prepare_run, 30, 0, 10, -1, 0};

static void has_text(const char *path, const char *text)
{
    size_t bytes;
    char *data = lks_test_read(in_scratch(path), &bytes);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(data, text, bytes);
}

/* Everything later is in earlier-1, and nothing else. */
static void is_moved(const char *out)
{
    static const char *const moved[] = {"ckpt-00000020", "ckpt-00000030", LKS__ARTIFACT_FILE};
    lks__entry e;
    for (size_t i = 0; i < COUNT(moved); i++) {
        assert_false(lks_test_exists(lks_test_text("%s/%s", out, moved[i])));
        assert_true(lks_test_exists(lks_test_text("%s/earlier-1/%s", out, moved[i])));
    }
    assert_true(opens_as(out, 10, 0));
    assert_true(opens_as(in_scratch("out/earlier-1"), 30, 0));
    has_text("out/earlier-1/metrics.jsonl", metrics);
    has_text("out/earlier-1/train.log", "lines\n");
    assert_int_equal(lks__name_read(in_scratch("out/earlier-1"), "best", &e), LKS_OK);
    assert_true(e.kind == LKS__ENTRY_CKPT && e.iter == 30);
    assert_false(lks_test_exists(in_scratch("out/best")));
    assert_false(lks_test_exists(in_scratch("out/earlier-2")));
    assert_false(lks_test_exists(in_scratch("out/earlier.tmp")));
}

static void is_unmoved(const char *out)
{
    assert_true(opens_as(out, 30, 0));
    assert_true(lks_test_exists(in_scratch("out/best")));
    assert_true(lks_test_exists(in_scratch("out/ckpt-00000010")));
    assert_true(lks_test_exists(in_scratch("out/ckpt-00000020")));
    assert_true(lks_test_exists(in_scratch("out/" LKS__ARTIFACT_FILE)));
    assert_false(lks_test_exists(in_scratch("out/earlier-1")));
    assert_false(lks_test_exists(in_scratch("out/earlier.tmp")));
}

/* After a death or a failure a plain resume continues from the checkpoint that `latest` names: with
 * all of the old history, or with its later part in one folder. */
static void resumes(const char *out)
{
    lks__ckpt ckpt;
    char moved[LKS__SYS_PATH];
    const int files = lks_test_count_files("/proc/self/fd");
    has_text("out/metrics.jsonl", metrics);
    assert_int_equal(lks__ckpt_open(out, LKS__CKPT_ALL, &ckpt), LKS_OK);
    const uint64_t iter = ckpt.iter;
    lks__ckpt_close(&ckpt);
    assert_int_equal(lks__outdir_back(out, iter, moved), LKS_OK);
    if (iter == 30)
        is_unmoved(out);
    else
        is_moved(out);
    /* asked again, it is complete */
    assert_int_equal(lks__outdir_back(out, 10, moved), LKS_OK);
    is_moved(out);
    assert_int_equal(lks_test_count_files("/proc/self/fd"), files);
}

TEST(back_killed)
{
    static const char *const faults[] = {"die", "die-after", "EIO", "ENOSPC"};
    for (size_t f = 0; f < COUNT(faults); f++) {
        int hit = 0;
        for (int k = 1;; k++) {
            const char *out = prepared(&back_to_10);
            int status = run(&back_to_10, out, lks_test_text("any:%d:%s", k, faults[f]));
            hit += WIFSIGNALED(status) || WEXITSTATUS(status) == 1;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
                assert_contains(said, in_scratch(""));
            resumes(out);
            if (f < 2 && WIFEXITED(status))
                break;
            if (f >= 2 && k == 60)
                break;
        }
        assert_in_range(hit, 25, 60);
    }
}

/* The later part must survive a power cut at any moment of the move: its copies are synced before
 * `latest` moves, that name before checkpoints move, and their names before the folder gets its
 * own. */
TEST(back_synced)
{
    /* At each sync: `latest` in earlier.tmp, `latest` moved, a checkpoint moved, earlier-1. */
    static const char *const at[] = {"----", "----", "L---", "LM--", "LMC-", "LMC-", "-M-E"};
    char now[5] = "";
    lks__entry latest, copied;
    for (size_t k = 0; k < COUNT(at); k++) {
        const char *out = prepared(&back_to_10);
        assert_true(WIFSIGNALED(run(&back_to_10, out, lks_test_text("fsync:%zu:die", k + 1))));
        assert_int_equal(lks__name_read(out, "latest", &latest), LKS_OK);
        assert_int_equal(lks__name_read(in_scratch("out/earlier.tmp"), "latest", &copied), LKS_OK);
        now[0] = copied.kind == LKS__ENTRY_CKPT ? 'L' : '-';
        now[1] = latest.iter == 10 ? 'M' : '-';
        now[2] = lks_test_exists(in_scratch("out/earlier.tmp/ckpt-00000030")) ? 'C' : '-';
        now[3] = lks_test_exists(in_scratch("out/earlier-1")) ? 'E' : '-';
        assert_string_equal(now, at[k]);
    }
    const char *fault = lks_test_text("fsync:%zu:die", COUNT(at) + 1);
    assert_false(WIFSIGNALED(run(&back_to_10, prepared(&back_to_10), fault)));
}

/* The remains of a move that died belong to the earlier run, if a new one begins. A complete
 * checkpoint of a save that died before `latest` moved is a leftover; one that metrics.jsonl has
 * is not. */
TEST(back_otherwise)
{
    char moved[LKS__SYS_PATH];
    const char *out = prepared(&back_to_10);
    assert_true(WIFSIGNALED(run(&back_to_10, out, "rename:5:die")));
    assert_true(lks_test_exists(in_scratch("out/earlier.tmp/ckpt-00000030")));
    assert_int_equal(lks__outdir_start(out, NULL, moved), LKS_OK);
    assert_non_null(strstr(moved, "/earlier-2"));
    assert_true(opens_as(in_scratch("out/earlier-1"), 30, 0));
    assert_true(opens_as(in_scratch("out/earlier-2"), 10, 0));

    /* Copies of a move that died before `latest` moved aren't those of another move. */
    out = prepared(&back_to_10);
    assert_int_equal(lks__name_set(out, "best", "ckpt-00000020"), LKS_OK);
    assert_true(WIFSIGNALED(run(&back_to_10, out, "symlink:3:die")));
    assert_true(opens_as(out, 30, 0));
    lks__entry e;
    assert_int_equal(lks__name_read(in_scratch("out/earlier.tmp"), "best", &e), LKS_OK);
    assert_int_equal(e.iter, 20);
    assert_int_equal(lks__outdir_back(out, 20, moved), LKS_OK);
    assert_true(opens_as(in_scratch("out/earlier-1"), 30, 0));
    assert_int_equal(lks__name_read(in_scratch("out/earlier-1"), "best", &e), LKS_OK);
    assert_int_equal(e.kind, LKS__ENTRY_OTHER); /* none */

    /* A folder from elsewhere may contain a link in its place. */
    out = prepared(&back_to_10);
    assert_int_equal(symlink(lks_test_folder(), in_scratch("out/earlier.tmp")), 0);
    assert_fails(LKS_ERR_IO, lks__outdir_back(out, 10, moved), "earlier.tmp: Not a directory");
    assert_true(opens_as(out, 30, 0));

    /* How metrics.jsonl has the newest checkpoint: not, in its last line, at the border of two
     * pieces that are read, or nobody knows, as the file is gone; in a torn line. */
    enum { PIECE = 1 << 20 };
    static char long_metrics[PIECE + sizeof metrics];
    const size_t line =
        (size_t)(strstr(metrics, "\n{\"kind\":\"checkpoint\",\"iter\":30") - metrics);
    memset(long_metrics, '\n', sizeof long_metrics);
    memcpy(long_metrics + PIECE - 5 - line, metrics, strlen(metrics));
    for (int how = 0; how < 5; how++) {
        out = prepared(&scenarios[1]);
        assert_true(WIFSIGNALED(run(&scenarios[1], out, "symlink:1:die")));
        if (how != 3)
            lks_test_write(in_scratch("out/metrics.jsonl"), how == 2 ? long_metrics : metrics,
                           how == 0   ? strlen(metrics) / 2
                           : how == 1 ? strlen(metrics)
                           : how == 2 ? sizeof long_metrics
                                      : line + 36);
        assert_int_equal(lks__outdir_back(out, 20, moved), LKS_OK);
        assert_true(opens_as(out, 20, 0));
        assert_false(lks_test_exists(in_scratch("out/ckpt-00000030")));
        assert_int_equal(lks_test_exists(in_scratch("out/earlier-1/ckpt-00000030")), how > 0);
    }
}

/* A new run that dies while it moves the earlier one: the earlier one is whole, or a resume is
 * refused until the next new run has moved the rest into the same folder. */
TEST(start_killed)
{
    static const scenario start = {"start", prepare_run, 30, 0, 0, -2, 0};
    char moved[LKS__SYS_PATH];
    int torn = 0, laters = 0;
    for (int k = 1, done = 0; !done; k++) {
        const char *out = prepared(&start);
        const char *fault = lks_test_text("any:%d:%s", k, k % 2 == 0 ? "die" : "die-after");
        done = !WIFSIGNALED(run(&start, out, fault));
        if (lks__outdir_check(out) == LKS_ERR_CONFIG) {
            torn++;
            assert_fails(LKS_ERR_CONFIG, lks__outdir_back(out, 30, moved),
                         "/earlier.new: move them back");
        }
        /* What is written meanwhile under a name that has moved isn't mixed with the earlier run.
         */
        const bool later = lks_test_exists(in_scratch("out/earlier.new/train.log"));
        if (later)
            lks_test_write(in_scratch("out/train.log"), "later\n", 6);
        assert_int_equal(lks__outdir_start(out, NULL, moved), LKS_OK);
        assert_true(opens_as(in_scratch("out/earlier-1"), 30, 0));
        has_text("out/earlier-1/metrics.jsonl", metrics);
        has_text("out/earlier-1/train.log", "lines\n");
        assert_true(lks_test_exists(in_scratch("out/earlier-1/best")));
        assert_true(lks_test_exists(in_scratch("out/earlier-1/ckpt-00000010")));
        assert_int_equal(lks_test_exists(in_scratch("out/earlier-2")), later);
        if (later)
            has_text("out/earlier-2/train.log", "later\n");
        laters += later;
        assert_false(lks_test_exists(in_scratch("out/latest")));
    }
    assert_true(laters > 0);
    assert_in_range(torn, 7, 40);
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--save") == 0) {
        char moved[LKS__SYS_PATH];
        uint64_t iter = strtoull(argv[3], NULL, 10);
        /* -1: back to the checkpoint, -2: a new run starts, -3: it is the best one, -4: a rollback
         * to it, -5: it is saved as the best one */
        int variant = atoi(argv[4]);
        lks__best best = {.found = false};
        bool best_moved;
        lks_status st = variant == -3   ? lks__best_final(argv[2], iter, 1.0, &best, &best_moved)
                        : variant == -2 ? lks__outdir_start(argv[2], NULL, moved)
                        : variant == -1 ? lks__outdir_back(argv[2], iter, moved)
                        : variant == -4 ? lks__ckpt_went_back(argv[2], iter)
                        : variant == -5 ? save_best(argv[2], iter, 0, 0)
                                        : save_content(argv[2], iter, variant, atoi(argv[5]));
        if (st != LKS_OK)
            puts(lks_last_error());
        return st == LKS_OK ? 0 : 1;
    }
    const bool disk = argc == 2 && strcmp(argv[1], "disk") == 0;
    if (disk)
        lks_test_only("killed_sometimes", "synced");
    else
        lks_test_part(false, "killed_sometimes");
    return lks_test_run_all(disk ? scratch_open : scratch_open_in_memory, NULL);
}
