
#include "support.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "ckpt/content.h"
#include "ckpt/scratch.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};

static const char *fresh(void)
{
    const char *out = in_scratch("out");
    remove_tree(out);
    return out;
}

static const char *inside(const char *out, const char *name)
{
    return lks_test_text("%s/%s", out, name);
}

static void latest_is(const char *out, const char *expected)
{
    char target[256];
    ssize_t n = readlink(inside(out, "latest"), target, sizeof target - 1);
    assert_true(n > 0);
    target[n] = '\0';
    assert_string_equal(target, expected);
}

/* Check that it is refused with `st`, and that the sentence contains each of the texts (NULL:
 * fewer). */
static void refused(const char *out, lks_status st, const char *a, const char *b, const char *c)
{
    const char *words[3] = {a, b, c};
    lks__ckpt ckpt;
    lks_status got = lks__ckpt_open(out, 1, &ckpt);
    if (got != st)
        print_error("%s: %s\n", lks_status_text(got), lks_last_error());
    assert_int_equal(got, st);
    for (int i = 0; i < 3; i++)
        if (words[i] && !strstr(lks_last_error(), words[i]))
            fail_msg("\"%s\" is not in: %s", words[i], lks_last_error());
}

TEST(save_and_open)
{
    const char *out = fresh();
    const lks__ckpt_content nothing = {.iter = 1};
    char name[32], hash[17];
    lks__ckpt ckpt;
    /* A folder that has been moved away isn't made again. */
    assert_fails(LKS_ERR_IO, lks__ckpt_save(out, &nothing, 0, name, hash),
                 "checkpoint ckpt-00000001 is not saved", out, "No such file or directory");
    assert_false(lks_test_exists(out));
    assert_int_equal(save_content(inside(out, "made/too"), 0, 0, 0), LKS_OK);
    assert_true(opens_as(inside(out, "made/too"), 0, 0));

    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    assert_int_equal(save_content(out, 300, 1, 0), LKS_OK);
    latest_is(out, "ckpt-00000300");
    assert_int_equal(lks__ckpt_open(inside(out, "//"), 1, &ckpt), LKS_OK);
    assert_string_equal(ckpt.name, "ckpt-00000300");
    assert_string_equal(ckpt.path, inside(out, "ckpt-00000300"));
    assert_false(ckpt.itself);
    assert_true(has_content(&ckpt, 300, 1));
    assert_false(has_content(&ckpt, 300, 2));
    lks__ckpt_close(&ckpt);
    lks__ckpt_close(&ckpt); /* closing zeroes it, and it may be closed again */

    /* Open a checkpoint's own folder, with and without its parent's files. */
    assert_true(opens_as(inside(out, "ckpt-00000010"), 10, 0));
    assert_true(opens_as(inside(out, "ckpt-00000010/"), 10, 0));
    assert_int_equal(rename(inside(out, "ckpt-00000010"), inside(out, "best")), 0);
    assert_true(opens_as(inside(out, "best"), 10, 0));
    assert_int_equal(lks__ckpt_open(inside(out, "best"), 1, &ckpt), LKS_OK);
    assert_true(ckpt.itself);
    lks__ckpt_close(&ckpt);
    assert_int_equal(rename(inside(out, "best/state.json"), inside(out, "state")), 0);
    refused(inside(out, "best"), LKS_ERR_FORMAT, "torn: it has no state.json", NULL, NULL);
    assert_int_equal(rename(inside(out, "state"), inside(out, "best/state.json")), 0);
    assert_int_equal(unlink(inside(out, "best/model.safetensors")), 0);
    refused(inside(out, "best"), LKS_ERR_FORMAT, "torn: it has no model.safetensors", NULL, NULL);
    /* A run's folder that has such a file is still a run's. */
    lks_test_write_text(inside(out, "model.safetensors"), "exported");
    assert_true(opens_as(out, 300, 1));
    /* A folder that only its name makes a checkpoint is a torn one. */
    assert_int_equal(mkdir(inside(out, "ckpt-00000050"), 0777), 0);
    refused(inside(out, "ckpt-00000050"), LKS_ERR_FORMAT, "torn: it has no state.json",
            "the newest good checkpoint is ckpt-00000300", NULL);
    assert_int_equal(rmdir(inside(out, "ckpt-00000050")), 0);

    /* Only the model: the optimizer's file isn't read, and may be missing. */
    assert_int_equal(unlink(inside(out, "ckpt-00000300/optimizer.safetensors")), 0);
    assert_int_equal(lks__ckpt_open(out, 0, &ckpt), LKS_OK);
    assert_null(ckpt.optimizer);
    assert_int_equal(lks__st_count(ckpt.model), 3);
    lks__ckpt_close(&ckpt);
    refused(out, LKS_ERR_FORMAT, "torn: it has no optimizer.safetensors", "ckpt-00000300",
            "no other good checkpoint");
}

/* Another program saves into the folder at the same time. */
TEST(saved_by_two)
{
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    const int fd = open(inside(out, ".lock"), O_RDWR);
    assert_int_equal(lks__sys_lock(fd, LKS__LOCK_SAVE), 0);
    const int open_files = lks_test_count_files("/proc/self/fd");
    assert_fails(LKS_ERR_CONFIG, save_content(out, 20, 0, 0),
                 "another program is saving a checkpoint into");
    assert_int_equal(lks_test_count_files("/proc/self/fd"), open_files);
    close(fd);
    assert_true(opens_as(out, 10, 0));
    assert_int_equal(save_content(out, 20, 0, 0), LKS_OK);
}

/* Equal content gives equal files: no time, place or host is in them. */
TEST(same_bytes)
{
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 3, 0), LKS_OK);
    assert_int_equal(save_content(inside(out, "b"), 10, 3, 0), LKS_OK);
    for (size_t f = 0; f < COUNT(files); f++) {
        const char *a = lks_test_text("%s/ckpt-00000010/%s", out, files[f]);
        const char *b = lks_test_text("%s/b/ckpt-00000010/%s", out, files[f]);
        size_t a_bytes, b_bytes;
        char *x = lks_test_read(a, &a_bytes), *y = lks_test_read(b, &b_bytes);
        assert_int_equal(a_bytes, b_bytes);
        assert_memory_equal(x, y, a_bytes);
    }
}

/* Small parts of the interface: what follows a newer version's word, and the root's child. */
TEST(parts)
{
    char parent[LKS__CKPT_PATH];
    json_t *newer = json_pack("{s:s}", "asked", "a later version's word");
    assert_int_equal(lks__asked_of(newer), LKS__ASKED_SIGNAL);
    json_decref(newer);
    lks__ckpt_parent("/ckpt-00000010", parent);
    assert_string_equal(parent, "/");
}

TEST(params_hash)
{
    char hash[17];
    lks__ckpt_params_hash(NULL, 0, hash);
    assert_string_equal(hash, "2d06800538d394c2"); /* XXH3-64 of nothing */
}

/* Numbers of the state come back bit for bit. */
TEST(numbers)
{
    static const double values[] = {0.1, 1.0 / 3, 1e300 / 7, -5e-324, 3};
    const char *out = fresh();
    assert_ok(lks__sys_make_dirs(out));
    for (size_t i = 0; i < COUNT(values); i++) {
        json_t *s = json_pack("{s:f}", "best_val_loss", values[i]);
        const lks__ckpt_content content = {.iter = i, .state = s};
        char name[32], hash[17];
        lks__ckpt ckpt;
        assert_int_equal(lks__ckpt_save(out, &content, 0, name, hash), LKS_OK);
        json_decref(s);
        assert_int_equal(lks__ckpt_open(out, LKS__CKPT_ONLY_STATE, &ckpt), LKS_OK);
        assert_int_equal(ckpt.iter, i);
        assert_true(json_number_value(json_object_get(ckpt.state, "best_val_loss")) == values[i]);
        lks__ckpt_close(&ckpt);
    }
}

/* A text may contain U+0000. One that no reader would accept isn't written. */
TEST(texts)
{
    enum { TOO_MANY = LKS__CKPT_JSON_LIMIT };
    static char long_text[TOO_MANY];
    const char *out = fresh();
    char name[32], hash[17];
    lks__ckpt ckpt;
    assert_ok(lks__sys_make_dirs(out));
    json_t *s = json_pack("{s:s%}", "text", "a\0b", (size_t)3);
    assert_ok(lks__ckpt_save(out, &(lks__ckpt_content){.iter = 10, .state = s}, 0, name, hash));
    assert_ok(lks__ckpt_open(out, LKS__CKPT_ONLY_STATE, &ckpt));
    assert_true(json_equal(json_object_get(ckpt.state, "text"), json_object_get(s, "text")));
    lks__ckpt_close(&ckpt);
    json_decref(s);
    memset(long_text, 'x', sizeof long_text);
    s = json_pack("{s:s%}", "text", long_text, sizeof long_text);
    const lks__ckpt_content content = {.iter = 20, .state = s};
    assert_fails(LKS_ERR_ARG, lks__ckpt_save(out, &content, 0, name, hash), "is too large");
    json_decref(s);
}

TEST(keeps)
{
    const char *out = fresh();
    for (int i = 1; i <= 5; i++)
        assert_int_equal(save_content(out, (uint64_t)i * 10, 0, 3), LKS_OK);
    assert_false(lks_test_exists(inside(out, "ckpt-00000010")));
    assert_false(lks_test_exists(inside(out, "ckpt-00000020")));
    for (int i = 3; i <= 5; i++)
        assert_true(opens_as(lks_test_text("%s/ckpt-%08d", out, i * 10), (uint64_t)i * 10, 0));
    /* Back to an earlier state: newer ones are not deleted, and don't count. */
    assert_int_equal(save_content(out, 35, 1, 2), LKS_OK);
    latest_is(out, "ckpt-00000035");
    assert_true(lks_test_exists(inside(out, "ckpt-00000050")));
    assert_true(lks_test_exists(inside(out, "ckpt-00000040")));
    assert_true(lks_test_exists(inside(out, "ckpt-00000030")));
    /* A folder with a foreign file stays, and so does a folder that is no checkpoint. */
    lks_test_write(inside(out, "ckpt-00000030/notes"), "x", 1);
    assert_int_equal(mkdir(inside(out, "ckpt-1"), 0777), 0);
    assert_int_equal(symlink("..", inside(out, "ckpt-00000001")), 0);
    assert_int_equal(save_content(out, 60, 0, 1), LKS_OK);
    assert_true(opens_as(inside(out, "ckpt-00000030"), 30, 0));
    assert_true(lks_test_exists(inside(out, "ckpt-1")));
    assert_true(lks_test_exists(inside(out, "ckpt-00000001")));
    assert_false(lks_test_exists(inside(out, "ckpt-00000050")));
    assert_false(lks_test_exists(inside(out, "ckpt-00000035")));
    assert_true(opens_as(out, 60, 0));
}

/* The owner is bound by the mode, also as root without capabilities. */
TEST(read_only_stays)
{
    const char *out = fresh();
    for (int i = 1; i <= 2; i++)
        assert_int_equal(save_content(out, (uint64_t)i * 10, 0, 2), LKS_OK);
    assert_int_equal(chmod(inside(out, "ckpt-00000010"), 0555), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
        const struct __user_cap_data_struct none[2] = {{0}};
        _exit(syscall(SYS_capset, &header, none) != 0 || save_content(out, 30, 0, 1) != LKS_OK);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(opens_as(inside(out, "ckpt-00000010"), 10, 0));
    assert_false(lks_test_exists(inside(out, "ckpt-00000020")));
    assert_int_equal(chmod(inside(out, "ckpt-00000010"), 0755), 0);
}

static void opens_best(const char *out, uint64_t iter)
{
    lks__ckpt ckpt;
    lks_status st = lks__ckpt_open_best(out, LKS__CKPT_ALL, &ckpt);
    if (st != LKS_OK)
        fail_msg("%s", lks_last_error());
    assert_int_equal(ckpt.iter, iter);
    assert_true(has_content(&ckpt, iter, 0));
    lks__ckpt_close(&ckpt);
}

/* `best` keeps its place while others come and go, and its checkpoint is not deleted. */
TEST(best_stays)
{
    const char *out = fresh();
    lks__ckpt ckpt;
    assert_int_equal(save_content(out, 10, 0, 2), LKS_OK);
    assert_fails(LKS_ERR_CONFIG, lks__ckpt_open_best(out, LKS__CKPT_ALL, &ckpt),
                 "has no best checkpoint");
    assert_int_equal(save_best(out, 20, 0, 2), LKS_OK);
    for (int i = 3; i <= 6; i++) {
        assert_int_equal(save_content(out, (uint64_t)i * 10, 0, 2), LKS_OK);
        opens_best(out, 20);
        assert_true(opens_as(out, (uint64_t)i * 10, 0));
    }
    assert_false(lks_test_exists(inside(out, "ckpt-00000010")));
    assert_false(lks_test_exists(inside(out, "ckpt-00000030")));
    assert_false(lks_test_exists(inside(out, "ckpt-00000040")));
    assert_int_equal(lks__ckpt_open_iter(out, 20, LKS__CKPT_ALL, &ckpt), LKS_OK);
    assert_true(has_content(&ckpt, 20, 0));
    lks__ckpt_close(&ckpt);
    assert_fails(LKS_ERR_CONFIG, lks__ckpt_open_iter(out, 30, LKS__CKPT_ALL, &ckpt),
                 "no checkpoint ckpt-00000030");
    assert_non_null(
        strstr(lks_last_error(), "; it has ckpt-00000060, ckpt-00000050, ckpt-00000020"));
    /* Another best one: the old one isn't kept any more. */
    assert_int_equal(save_best(out, 70, 0, 1), LKS_OK);
    opens_best(out, 70);
    assert_false(lks_test_exists(inside(out, "ckpt-00000020")));
    /* The one that `best` names is replaced, and the save dies between its two renames. */
    assert_int_equal(rename(inside(out, "ckpt-00000070"), inside(out, "ckpt-00000070.old")), 0);
    opens_best(out, 70);
    assert_int_equal(rename(inside(out, "ckpt-00000070.old"), inside(out, "elsewhere")), 0);
    assert_int_equal(lks__ckpt_open_best(out, LKS__CKPT_ALL, &ckpt), LKS_ERR_CONFIG);
    /* It is read like `latest`. */
    assert_int_equal(unlink(inside(out, "best")), 0);
    assert_int_equal(symlink("../out/elsewhere", inside(out, "best")), 0);
    assert_fails(LKS_ERR_FORMAT, lks__ckpt_open_best(out, LKS__CKPT_ALL, &ckpt), "best names");
}

/* The linker's --wrap redirects calls of these functions to here. The first one of the chosen
 * function saves checkpoint 20 into `grows` and deletes 10, as a run in progress may do. */
static const char *grows;
static bool in_state;
static void save_meanwhile(bool at_state)
{
    const char *out = grows;
    if (out == NULL || at_state != in_state)
        return;
    grows = NULL;
    assert_int_equal(save_best(out, 20, 0, 1), LKS_OK);
    assert_false(lks_test_exists(inside(out, "ckpt-00000010")));
}

__typeof__(lks__name_read) __real_lks__name_read, __wrap_lks__name_read;
lks_status __wrap_lks__name_read(const char *out, const char *name, lks__entry *e)
{
    lks_status st = __real_lks__name_read(out, name, e);
    save_meanwhile(false);
    return st;
}

__typeof__(lks__sys_read_file) __real_lks__sys_read_file, __wrap_lks__sys_read_file;
lks_status __wrap_lks__sys_read_file(const char *path, size_t limit, char **data, size_t *bytes)
{
    save_meanwhile(true);
    return __real_lks__sys_read_file(path, limit, data, bytes);
}

/* The checkpoint of a name is deleted after the name was read, and while it is opened. */
TEST(deleted_meanwhile)
{
    for (int i = 0; i < 4; i++) {
        const char *out = fresh();
        assert_int_equal(save_best(out, 10, 0, 1), LKS_OK);
        grows = out;
        in_state = i % 2 == 1;
        if (i < 2)
            opens_best(out, 20);
        else
            assert_true(opens_as(out, 20, 0));
        assert_null(grows);
    }
}

static void save_asked(const char *out, uint64_t iter, lks__asked asked, int keep)
{
    const char *word = lks__asked_word(asked);
    char name[32], hash[17];
    json_t *s = word != NULL ? json_pack("{s:s}", "asked", word) : json_object();
    const lks__ckpt_content content = {.iter = iter, .state = s};
    assert_ok(lks__sys_make_dirs(out));
    assert_int_equal(lks__ckpt_save(out, &content, keep, name, hash), LKS_OK);
    json_decref(s);
}

/* The checkpoints of the folder, such as "10 30 ". */
static const char *all_of(const char *out)
{
    const char *text = "";
    for (int i = 10; i <= 90; i += 10)
        if (lks_test_exists(lks_test_text("%s/ckpt-%08d", out, i)))
            text = lks_test_text("%s%d ", text, i);
    return text;
}

TEST(keeps_multiples)
{
    const char *out = fresh();
    char name[32], hash[17];
    json_t *s = json_object();
    assert_ok(lks__sys_make_dirs(out));
    for (uint64_t i = 10; i <= 70; i += 10) {
        const lks__ckpt_content content = {.iter = i, .state = s, .keep_every = 20};
        assert_int_equal(lks__ckpt_save(out, &content, 1, name, hash), LKS_OK);
    }
    json_decref(s);
    assert_string_equal(all_of(out), "20 40 60 70 ");
    lks__ckpt ckpt;
    assert_int_equal(save_content(out, 80, 0, 0), LKS_OK);
    assert_int_equal(mkdir(inside(out, "ckpt-00000090.tmp"), 0777), 0);
    assert_fails(LKS_ERR_CONFIG, lks__ckpt_open_iter(out, 30, LKS__CKPT_ALL, &ckpt),
                 "; it has ckpt-00000080, ckpt-00000070, ckpt-00000060, ckpt-00000040 and 1 older");
}

/* Where a rollback from there leads; 0: nowhere. */
static int target_of(const char *out, uint64_t iter)
{
    lks__ckpt ckpt;
    if (lks__ckpt_open_target(out, iter, LKS__CKPT_ONLY_STATE, &ckpt) != LKS_OK)
        return 0;
    const int found = (int)ckpt.iter;
    lks__ckpt_close(&ckpt);
    return found;
}

/* Those that were asked for displace no other one, and are no targets. */
TEST(asked_for)
{
    const char *out = fresh();
    save_asked(out, 10, LKS__ASKED_STOP, 2);
    assert_int_equal(target_of(out, 90), 0);
    assert_non_null(strstr(lks_last_error(), "no checkpoint up to iteration 90 that was on the "
                                             "schedule"));
    save_asked(out, 20, LKS__ASKED_NOT, 2);
    /* Nor is one whose save died, or one that was replaced by such a one. */
    save_asked(out, 40, LKS__ASKED_NOT, 0);
    assert_int_equal(rename(inside(out, "ckpt-00000040"), inside(out, "ckpt-00000040.tmp")), 0);
    assert_int_equal(target_of(out, 40), 20);
    assert_int_equal(rename(inside(out, "ckpt-00000040.tmp"), inside(out, "replaced")), 0);
    save_asked(out, 40, LKS__ASKED_STOP, 0);
    assert_int_equal(rename(inside(out, "replaced"), inside(out, "ckpt-00000040.old")), 0);
    assert_int_equal(target_of(out, 40), 20);
    save_asked(out, 30, LKS__ASKED_SIGNAL, 2);
    save_asked(out, 40, LKS__ASKED_STOP, 2);
    assert_string_equal(all_of(out), "20 30 40 "); /* 10 was older than two others */
    assert_int_equal(target_of(out, 40), 20);
    assert_int_equal(target_of(out, 19), 0);
    save_asked(out, 50, LKS__ASKED_CLOCK, 2);
    save_asked(out, 60, LKS__ASKED_CLOCK, 2);
    assert_string_equal(all_of(out), "20 30 40 60 ");
    save_asked(out, 70, LKS__ASKED_NOT, 2);
    assert_string_equal(all_of(out), "20 40 70 ");
    assert_int_equal(target_of(out, 69), 20);
    assert_int_equal(target_of(out, 70), 70);
    save_asked(out, 80, LKS__ASKED_END, 2);
    save_asked(out, 90, LKS__ASKED_NOT, 2);
    assert_string_equal(all_of(out), "70 80 90 ");

    /* Whether a damaged one is the target can't be known: the message says what to do. */
    lks_test_write_text(inside(out, "ckpt-00000080/state.json"), "");
    assert_int_equal(target_of(out, 89), 0);
    assert_non_null(strstr(lks_last_error(), "ckpt-00000080/state.json"));
    assert_non_null(strstr(lks_last_error(), "move ckpt-00000080 out of the folder, then resume"));

    out = fresh(); /* a damaged one isn't one of those that are kept */
    save_asked(out, 10, LKS__ASKED_NOT, 2);
    save_asked(out, 20, LKS__ASKED_NOT, 2);
    lks_test_write_text(inside(out, "ckpt-00000020/state.json"), "");
    save_asked(out, 30, LKS__ASKED_NOT, 2);
    assert_string_equal(all_of(out), "10 20 30 ");

    out = fresh(); /* all are kept, except the clock's */
    save_asked(out, 10, LKS__ASKED_NOT, 0);
    save_asked(out, 20, LKS__ASKED_CLOCK, 0);
    save_asked(out, 30, LKS__ASKED_NOT, 0);
    save_asked(out, 40, LKS__ASKED_SIGNAL, 0);
    save_asked(out, 50, LKS__ASKED_CLOCK, 0);
    assert_string_equal(all_of(out), "10 30 40 50 ");

    /* Back to 10: `latest` follows, those in between that were asked for are gone, but the best. */
    assert_ok(lks__name_set(out, "best", "ckpt-00000040"));
    assert_int_equal(lks__ckpt_went_back(out, 10), LKS_OK);
    assert_string_equal(all_of(out), "10 30 40 ");
    lks__ckpt ckpt;
    assert_int_equal(lks__ckpt_open(out, LKS__CKPT_ONLY_STATE, &ckpt), LKS_OK);
    assert_int_equal(ckpt.iter, 10);
    lks__ckpt_close(&ckpt);
}

TEST(stale_folders)
{
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    assert_int_equal(mkdir(inside(out, "ckpt-00000007.tmp"), 0777), 0);
    lks_test_write(inside(out, "ckpt-00000007.tmp/model.safetensors"), "torn", 4);
    assert_int_equal(mkdir(inside(out, "ckpt-00000020.tmp"), 0777), 0);
    /* If a link has the name of a temporary folder, it is removed, and its target is left alone. */
    lks_test_write(inside(out, "precious"), "x", 1);
    assert_int_equal(symlink("precious", inside(out, "ckpt-00000008.tmp")), 0);
    assert_int_equal(symlink("precious", inside(out, "latest.tmp")), 0);
    assert_int_equal(mkdir(inside(out, "aside"), 0777), 0);
    lks_test_write(inside(out, "aside/model.safetensors"), "x", 1);
    assert_int_equal(symlink("aside", inside(out, "ckpt-00000009.tmp")), 0);
    assert_true(opens_as(out, 10, 0));
    assert_int_equal(save_content(out, 20, 0, 0), LKS_OK);
    assert_false(any_name_ends(out, ".tmp"));
    assert_true(lks_test_exists(inside(out, "precious")));
    assert_true(lks_test_exists(inside(out, "aside/model.safetensors")));
    assert_true(opens_as(out, 20, 0));
    /* A temporary folder with foreign files is not emptied. */
    assert_int_equal(mkdir(inside(out, "ckpt-00000030.tmp"), 0777), 0);
    lks_test_write(inside(out, "ckpt-00000030.tmp/thesis"), "x", 1);
    lks_test_write(inside(out, "ckpt-00000030.tmp/state.json"), "x", 1);
    assert_fails(LKS_ERR_IO, save_content(out, 30, 0, 0), "ckpt-00000030.tmp: File exists");
    assert_true(lks_test_exists(inside(out, "ckpt-00000030.tmp/thesis")));
    assert_true(lks_test_exists(inside(out, "ckpt-00000030.tmp/state.json")));
    assert_true(opens_as(out, 20, 0));
}

/* A save that died before its first rename isn't a checkpoint, even if its files are complete. */
TEST(unnamed)
{
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    assert_int_equal(save_content(out, 20, 0, 0), LKS_OK);
    assert_int_equal(unlink(inside(out, "latest")), 0);
    assert_int_equal(rename(inside(out, "ckpt-00000020"), inside(out, "ckpt-00000020.tmp")), 0);
    assert_true(opens_as(out, 10, 0));
    assert_int_equal(symlink("nowhere", inside(out, "latest")), 0);
    refused(out, LKS_ERR_FORMAT, "the newest good checkpoint is ckpt-00000010:", NULL, NULL);
    assert_int_equal(unlink(inside(out, "latest")), 0);
    assert_int_equal(rename(inside(out, "ckpt-00000010"), inside(out, "ckpt-00000010.tmp")), 0);
    refused(out, LKS_ERR_IO, "there is no checkpoint in", NULL, NULL);
}

TEST(same_iter)
{
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 2), LKS_OK);
    assert_int_equal(save_content(out, 20, 0, 2), LKS_OK);
    assert_int_equal(save_content(out, 20, 1, 2), LKS_OK);
    assert_true(opens_as(out, 20, 1));
    assert_true(opens_as(inside(out, "ckpt-00000010"), 10, 0));
    assert_false(any_name_ends(out, ".old"));

    /* Killed between its two renames: the old one is found, and gets its name back. */
    assert_int_equal(rename(inside(out, "ckpt-00000020"), inside(out, "ckpt-00000020.old")), 0);
    assert_true(opens_as(out, 20, 1));
    assert_int_equal(save_content(out, 30, 0, 2), LKS_OK);
    assert_true(opens_as(inside(out, "ckpt-00000020"), 20, 1));
    /* The same with a newer one there, as after a return to an older state. */
    assert_int_equal(rename(inside(out, "ckpt-00000020"), inside(out, "ckpt-00000020.old")), 0);
    assert_int_equal(save_content(out, 25, 0, 9), LKS_OK);
    assert_true(opens_as(inside(out, "ckpt-00000020"), 20, 1));
    assert_true(opens_as(inside(out, "ckpt-00000030"), 30, 0));
    assert_false(any_name_ends(out, ".old"));
    assert_int_equal(save_content(out, 30, 0, 9), LKS_OK);
    /* Killed after them: the new one counts. */
    lks_test_do("cp", "-a", inside(out, "ckpt-00000020"), inside(out, "ckpt-00000030.old"));
    assert_true(opens_as(out, 30, 0));
    assert_int_equal(save_content(out, 30, 2, 2), LKS_OK);
    assert_true(opens_as(out, 30, 2));
    assert_false(any_name_ends(out, ".old"));
}

TEST(latest_link)
{
    const char *out = fresh();
    lks__ckpt ckpt;
    refused(out, LKS_ERR_IO, "there is no checkpoint", "No such file", NULL);
    refused(lks_test_text("%05000d", 0), LKS_ERR_IO, "the folder's path is too long", NULL, NULL);
    assert_int_equal(mkdir(out, 0777), 0);
    refused(out, LKS_ERR_IO, "there is no checkpoint in", out, NULL);
    assert_int_equal(symlink("ckpt-00000010", inside(out, "latest")), 0);
    refused(out, LKS_ERR_IO, "there is no checkpoint in", NULL, NULL);

    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    assert_int_equal(save_content(out, 20, 0, 0), LKS_OK);
    assert_int_equal(unlink(inside(out, "latest")), 0);
    assert_true(opens_as(out, 20, 0)); /* missing */
    assert_int_equal(symlink("ckpt-00000030", inside(out, "latest")), 0);
    assert_true(opens_as(out, 20, 0)); /* dangling */

    /* A link to anything but a checkpoint's name in this folder is not followed, even to a good
     * checkpoint. */
    const char *const targets[] = {
        "./ckpt-00000010",
        "../out/ckpt-00000010",
        "ckpt-00000010/",
        "ckpt-10",
        "ckpt-+0000010",
        "ckpt- 0000010",
        "ckpt-00000010.old",
        "ckpt-00000010.tmp",
        "ckpt-000000010",
        "ckpt-99999999999999999999999",
        "/",
        "ckpt-00000010\x1b[2J",
        "ckpt-00000010aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < COUNT(targets); i++) {
        assert_int_equal(unlink(inside(out, "latest")), 0);
        assert_int_equal(symlink(targets[i], inside(out, "latest")), 0);
        refused(out, LKS_ERR_FORMAT, "latest names", "give its folder, ", "/ckpt-00000020");
        assert_null(strchr(lks_last_error(), '\x1b'));
        assert_int_equal(lks__ckpt_open(out, LKS__CKPT_ALL_ALONE, &ckpt), LKS_ERR_FORMAT);
        assert_null(strstr(lks_last_error(), "give its folder"));
    }
    /* Nor is a link with the name of a checkpoint. */
    assert_int_equal(unlink(inside(out, "latest")), 0);
    assert_int_equal(rename(inside(out, "ckpt-00000020"), inside(out, "elsewhere")), 0);
    assert_int_equal(symlink("elsewhere", inside(out, "ckpt-00000020")), 0);
    assert_int_equal(symlink("ckpt-00000020", inside(out, "latest")), 0);
    assert_true(opens_as(out, 10, 0));
    /* A save replaces the link by a right one. */
    assert_int_equal(save_content(out, 40, 0, 0), LKS_OK);
    latest_is(out, "ckpt-00000040");

    /* A small file instead, as on file systems without links. */
    static const struct {
        const char *text;
        size_t bytes;
        bool good;
    } names[] = {
        {"ckpt-00000010\n", 14, true},
        {"ckpt-00000010", 13, true},
        {"", 0, false},
        {"\n", 1, false},
        {"ckpt-00000010\n\n", 15, false},
        {"ckpt-00000010\0", 14, false},
        {"ckpt-00000010\r\n", 15, false},
        {"../ckpt-00000010\n", 17, false},
        {" ckpt-00000010\n", 15, false},
        {"ckpt-00000010\nckpt-00000040\n", 28, false},
    };
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(unlink(inside(out, "latest")), 0);
        lks_test_write(inside(out, "latest"), names[i].text, names[i].bytes);
        if (names[i].good)
            assert_true(opens_as(out, 10, 0));
        else
            refused(out, LKS_ERR_FORMAT, "latest names", "give its folder, ", "/ckpt-00000040");
    }
    for (size_t i = 0; i < COUNT(targets); i++) {
        lks_test_write(inside(out, "latest"), targets[i], strlen(targets[i]));
        refused(out, LKS_ERR_FORMAT, "latest names", "give its folder, ", "/ckpt-00000040");
    }
    assert_int_equal(truncate(inside(out, "latest"), 1 << 30), 0);
    refused(out, LKS_ERR_FORMAT, "latest names", NULL, NULL);
    /* Neither a link nor a file. */
    assert_int_equal(unlink(inside(out, "latest")), 0);
    assert_int_equal(mkfifo(inside(out, "latest"), 0666), 0);
    refused(out, LKS_ERR_FORMAT, "neither a symbolic link nor a small file", NULL, NULL);
    assert_int_equal(unlink(inside(out, "latest")), 0);
    assert_int_equal(mkdir(inside(out, "latest"), 0777), 0);
    refused(out, LKS_ERR_FORMAT, "neither a symbolic link nor a small file", "give its folder, ",
            "/ckpt-00000040");
    assert_fails(LKS_ERR_IO, save_content(out, 50, 0, 0), "checkpoint ckpt-00000050 is not saved",
                 "latest: ");
    assert_false(lks_test_exists(inside(out, "ckpt-00000050")));
    assert_false(any_name_ends(out, ".tmp"));
}

/* Any changed bit of any file is refused with the file's name, and the newest good checkpoint is
 * offered. */
TEST(flipped_bits)
{
    const char *out = fresh();
    uint64_t random = 42;
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    assert_int_equal(save_content(out, 20, 0, 0), LKS_OK);
    for (size_t f = 0; f < COUNT(files); f++) {
        const char *path = lks_test_text("%s/ckpt-00000020/%s", out, files[f]);
        size_t bytes;
        char *data = lks_test_read(path, &bytes);
        assert_true(bytes > 300);
        for (size_t at = 0; at < bytes; at++) {
            const char bit = (char)(1 << (next_random(&random) % 8));
            data[at] ^= bit;
            lks_test_write(path, data, bytes);
            refused(out, LKS_ERR_FORMAT, "ckpt-00000020", "give its folder, ", "/ckpt-00000010");
            if (!strstr(lks_last_error(), files[f]))
                fail_msg("%s at %zu: %s", files[f], at, lks_last_error());
            data[at] ^= bit;
        }
        lks_test_write(path, data, bytes);
        for (size_t n = 0; n < bytes; n += 7) { /* truncated */
            assert_int_equal(truncate(path, (off_t)(bytes - 1 - n)), 0);
            refused(out, LKS_ERR_FORMAT, files[f], "/ckpt-00000010", NULL);
            lks_test_write(path, data, bytes);
        }
        data[bytes] = '\n'; /* one byte longer: lks_test_read() ends with a zero */
        lks_test_write(path, data, bytes + 1);
        refused(out, LKS_ERR_FORMAT, files[f], "/ckpt-00000010", NULL);
        assert_int_equal(unlink(path), 0);
        refused(out, LKS_ERR_FORMAT, "torn", files[f], "/ckpt-00000010");
        lks_test_write(path, data, bytes);
        assert_true(opens_as(out, 20, 0));
    }
}

/* Good files that don't belong together. */
TEST(swapped_files)
{
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    assert_int_equal(save_content(out, 20, 0, 0), LKS_OK);
    for (size_t f = 0; f < 2; f++) {
        const char *a = lks_test_text("%s/ckpt-00000010/%s", out, files[f]);
        const char *b = lks_test_text("%s/ckpt-00000020/%s", out, files[f]);
        size_t bytes;
        char *own = lks_test_read(b, &bytes);
        lks_test_do("cp", a, b);
        refused(out, LKS_ERR_FORMAT, files[f], "its header has changed since it was written",
                "/ckpt-00000010");
        lks_test_write(b, own, bytes);
    }
    assert_true(opens_as(out, 20, 0));
    /* If all are bad, the newest is named. */
    lks__ckpt ckpt;
    lks_test_write_text(inside(out, "ckpt-00000010/state.json"), "");
    assert_int_equal(rename(inside(out, "ckpt-00000020"), inside(out, "ckpt-00000030")), 0);
    assert_fails(LKS_ERR_FORMAT, lks__ckpt_open_newest(out, NULL, LKS__CKPT_ALL, &ckpt),
                 "ckpt-00000030/state.json", "no other checkpoint in");
    assert_int_equal(rename(inside(out, "ckpt-00000030"), inside(out, "ckpt-00000020")), 0);
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    /* A complete checkpoint under another's name. */
    assert_int_equal(rename(inside(out, "ckpt-00000020"), inside(out, "ckpt-00000030")), 0);
    refused(inside(out, "ckpt-00000030"), LKS_ERR_FORMAT, "folder's name", "/ckpt-00000010", NULL);
}

/* Replace a header by the largest allowed one, of what takes most memory when parsed. It must be
 * refused before that: a child opens it, and its memory is measured. */
TEST(huge_header)
{
    enum { LENGTH = 9900000, LIMIT_KB = 100000 };
    static char zeros[1 << 16];
    for (size_t i = 0; i < sizeof zeros; i++)
        zeros[i] = "0,"[i % 2];
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    for (size_t f = 0; f < 2; f++) {
        const char *path = lks_test_text("%s/ckpt-00000010/%s", out, files[f]);
        const uint64_t length = LENGTH;
        size_t bytes;
        char *own = lks_test_read(path, &bytes);
        FILE *file = fopen(path, "w"); /* not built in memory, which the child would inherit */
        fwrite(&length, sizeof length, 1, file);
        fputs("{\"x\":[", file);
        for (size_t left = LENGTH - 10, n; left > 0; left -= n) {
            n = left < sizeof zeros ? left : sizeof zeros;
            fwrite(zeros, 1, n, file);
        }
        fputs("0]} ", file);
        assert_int_equal(ftell(file), 8 + LENGTH);
        fclose(file);
        pid_t pid = fork();
        if (pid == 0) {
            lks__ckpt ckpt;
            bool ok = lks__ckpt_open(out, 1, &ckpt) == LKS_ERR_FORMAT &&
                      strstr(lks_last_error(), "its header has changed since it was written");
            _exit(ok ? 0 : 1);
        }
        int status;
        struct rusage use;
        assert_int_equal(wait4(pid, &status, 0, &use), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        if (use.ru_maxrss > LIMIT_KB)
            fail_msg("%ld kB for a header of 9.9 MB", use.ru_maxrss);
        lks_test_write(path, own, bytes);
    }
    assert_true(opens_as(out, 10, 0));
}

static int n_reads;

static bool stop_second(void)
{
    return n_reads++ > 0;
}

/* The newest good one is offered, even if it isn't the newest. */
TEST(offers)
{
    lks__ckpt ckpt;
    const char *out = fresh();
    for (int i = 1; i <= 4; i++)
        assert_int_equal(save_content(out, (uint64_t)i * 10, 0, 0), LKS_OK);
    assert_int_equal(truncate(inside(out, "ckpt-00000040/state.json"), 100), 0);
    assert_int_equal(truncate(inside(out, "ckpt-00000030/model.safetensors"), 600), 0);
    const int n_open = lks_test_count_files("/proc/self/fd");
    refused(out, LKS_ERR_FORMAT, "state.json", "checkpoint is ckpt-00000020", "/ckpt-00000020");
    /* The one that is offered was opened, and is closed again. */
    assert_int_equal(lks_test_count_files("/proc/self/fd"), n_open);
    refused(inside(out, "ckpt-00000030"), LKS_ERR_FORMAT, "model.safetensors", "/ckpt-00000020",
            NULL);
    /* After a stop while it reads the others, it doesn't call them bad. */
    lks__sys_stop_when(stop_second);
    assert_fails(LKS_ERR_STOPPED, lks__ckpt_open(out, LKS__CKPT_ALL, &ckpt), "ckpt-00000030");
    lks__sys_stop_when(NULL);
    /* The same without `latest`, and if it names a folder that is gone. */
    assert_int_equal(unlink(inside(out, "latest")), 0);
    refused(out, LKS_ERR_FORMAT, "40/state.json", "checkpoint is ckpt-00000020", "/ckpt-00000020");
    assert_int_equal(symlink("ckpt-00000050", inside(out, "latest")), 0);
    refused(out, LKS_ERR_FORMAT, "40/state.json", "checkpoint is ckpt-00000020", "/ckpt-00000020");
    /* Saves that died are no damage. */
    assert_int_equal(mkdir(inside(out, "ckpt-00000050.tmp"), 0777), 0);
    assert_int_equal(rename(inside(out, "ckpt-00000040"), inside(out, "ckpt-00000040.tmp")), 0);
    assert_int_equal(rename(inside(out, "ckpt-00000030"), inside(out, "ckpt-00000030.tmp")), 0);
    assert_true(opens_as(out, 20, 0));
    assert_int_equal(rename(inside(out, "ckpt-00000040.tmp"), inside(out, "ckpt-00000040")), 0);
    assert_int_equal(truncate(inside(out, "ckpt-00000020/state.json"), 0), 0);
    assert_int_equal(unlink(inside(out, "ckpt-00000010/state.json")), 0);
    refused(out, LKS_ERR_FORMAT, "ckpt-00000040/state.json", "no other good checkpoint", NULL);
    refused(inside(out, "ckpt-00000010"), LKS_ERR_FORMAT, "torn", "no other good checkpoint", NULL);
}

/* A state.json with the right hash of itself, but wrong contents. */
TEST(forged_states)
{
    static const struct {
        const char *from, *to, *why;
    } cases[] = {
        {"\"iter\": 10", "\"iter\": -1", "\"iter\" is not a count"},
        {"\"iter\": 10", "\"iter\": 1.", "not a sound checkpoint state"},
        {"\"iter\": 10", "\"iter\": 11", "folder's name"},
        {"checkpoint-1", "checkpoint-2", "its format is not"},
        {"\"best\"", "\"iter\"", "duplicate"},
        {"\"files\"", "\"filez\"", "state.json has no hash of its header"},
        {"\"params_hash\": \"", "\"params_hazh\": \"", "\"params_hash\" differs"},
        {"\n  \"state_hash\": \"", "\n  \"state_hush\": \"", "its own hash is missing"},
        {"\n  \"state_hash\": \"", "\n  \"state_hash\":\"1", "its own hash is missing"},
        /* NULL: a digit of the hash that follows */
        {"\"params_hash\": \"", NULL,
         "\"params_hash\" differs from the hash of the model's tensors"},
        {"\"model.safetensors\": \"", NULL, "its header has changed since it was written"},
        {"\"optimizer.safetensors\": \"", NULL, "its header has changed since it was written"},
    };
    const char *out = fresh();
    assert_int_equal(save_content(out, 10, 0, 0), LKS_OK);
    const char *path = inside(out, "ckpt-00000010/state.json");
    size_t bytes;
    char *data = lks_test_read(path, &bytes), *copy = malloc(bytes);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char digits[17];
        uint64_t hash;
        memcpy(copy, data, bytes);
        char *at = memmem(copy, bytes, cases[i].from, strlen(cases[i].from));
        assert_non_null(at);
        if (cases[i].to == NULL) {
            char *last = at + strlen(cases[i].from) + 15;
            *last = *last == '0' ? '1' : '0';
        } else {
            assert_int_equal(strlen(cases[i].from), strlen(cases[i].to));
            memcpy(at, cases[i].to, strlen(cases[i].to));
        }
        at = lks__state_hash(copy, bytes, &hash);
        if (at) {
            snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
            memcpy(at, digits, 16);
        }
        lks_test_write(path, copy, bytes);
        refused(out, LKS_ERR_FORMAT, "ckpt-00000010/", cases[i].why, "no other good checkpoint");
    }
    lks_test_write(path, data, bytes);
    assert_true(opens_as(out, 10, 0));
    free(copy);
}

TEST(unwritable)
{
    const char *out = fresh();
    lks_test_write(out, "a file", 6);
    assert_fails(LKS_ERR_IO, save_content(out, 10, 0, 0), out);
    assert_fails(LKS_ERR_IO, save_content(inside(out, "below"), 10, 0, 0), "out: Not a directory");
    refused(out, LKS_ERR_IO, "Not a directory", out, NULL);
    char path[5000];
    memset(path, 'a', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    assert_int_equal(save_content(path, 10, 0, 0), LKS_ERR_IO);
    refused(path, LKS_ERR_IO, "too long", NULL, NULL);
}

int main(void)
{
    return lks_test_run_all(scratch_open, NULL);
}
