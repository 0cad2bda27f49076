/* Where a resume cuts metrics.jsonl: it reads from the end, whatever size and content the file
 * has. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "report/record/metrics/metrics.h"

/* Lines as a run writes them, one letter for each kind, followed by the iteration. */
static void put_line(FILE *f, char kind, unsigned iter)
{
    static const struct {
        char letter;
        const char *kind;
    } kinds[] = {{'t', "train"}, {'s', "skip"},        {'r', "rollback"},
                 {'e', "eval"},  {'c', "checkpoint"},  {'a', "artifact"},
                 {'f', "final"}, {'x', "of tomorrow"}, {'w', "recheck"}};
    if (kind == 'h' || kind == 'g')
        fprintf(f, "{\"kind\":\"%s\",\"iters\":%u}\n", kind == 'h' ? "host" : "config", iter);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].letter == kind)
            fprintf(f, "{\"kind\":\"%s\",\"iter\":%u,\"loss\":1}\n", kinds[i].kind, iter);
}

/* "g t0 t1 c2": a file with these lines; returns its size. */
static size_t put_lines(FILE *f, const char *lines)
{
    long before = ftell(f);
    for (const char *at = lines; *at != '\0'; at += *at == ' ') {
        char kind = *at++;
        put_line(f, kind, (unsigned)strtoul(at, (char **)&at, 10));
    }
    return (size_t)(ftell(f) - before);
}

static const char *file_of(const char *dir)
{
    return lks_test_text("%s/metrics.jsonl", dir);
}

/* The size to which it is cut. */
static size_t resume(const char *dir, const lks__metrics_cut *cut, bool *has_line_p)
{
    lks__metrics *m;
    struct stat info;
    bool empty;
    assert_ok(lks__metrics_resume(dir, cut, &empty, has_line_p, &m));
    assert_int_equal(stat(file_of(dir), &info), 0);
    assert_int_equal(empty, info.st_size == 0);
    assert_ok(lks__metrics_close(m));
    return (size_t)info.st_size;
}

static const struct {
    const char *name, *kept, *cut; /* lines before and after the place of the cut */
    lks__metrics_cut at;
    bool has_line;
} cases[] = {
    {"after its own line", "g h t0 e1 t1 e2 c2", "t2 e3 t3 h", {2, true, true, NULL}, true},
    {"nothing after it", "g h t0 t1 c2", "", {2, false, true, NULL}, true},
    {"of two lines of its own, the newer",
     "g t0 t1 c2 t2 t3 r3 c2",
     "t2 c4",
     {2, false, true, NULL},
     true},
    {"a host line after its own goes", "g h t0 t1 c2", "h t2", {2, true, true, NULL}, true},
    {"the end of a run stays", "g t0 t1 c2 f2 a2", "h", {2, false, true, NULL}, true},
    {"steps after it", "g t0 t1 c2 f2", "h t2 t3 c4 f4 h", {2, false, true, NULL}, true},
    {"an earlier end", "g t0 t1 c2 f2 h t2 t3 c4", "t4 c5 f5", {4, false, true, NULL}, true},
    {"a later end", "g t0 t1 c2", "t2 t3 c4 f4 h", {2, false, true, NULL}, true},
    {"an end without its checkpoint's line", "g t0 t1", "f2 a2 h", {2, false, true, NULL}, false},
    {"kinds not known yet", "g t0 t1 c2", "x2 x1 x0", {2, false, true, NULL}, true},
    {"died before its line", "g h t0 e1 t1 e2", "", {2, true, true, NULL}, false},
    {"an evaluation that the checkpoint has", "g t0 t1 e2", "c2 t2", {2, true, false, NULL}, false},
    {"an evaluation that it doesn't have", "g t0 t1", "e2 t2", {2, false, true, NULL}, false},
    {"the same, with a line that is written again",
     "g t0 t1",
     "c2 h e2",
     {2, false, false, NULL},
     false},
    {"later ones alone", "g h", "t0 e1 t1", {0, false, false, NULL}, false},
    {"later ones between host lines", "g h", "t0 h t0 h", {0, false, false, NULL}, false},
    {"a host line before what goes stays", "g t0 t1 h", "t2 h t2", {2, false, true, NULL}, false},
    {"stopped before the first update", "g h", "e0 c0 h", {0, false, true, NULL}, false},
    {"skips", "g t0 s1", "s2 t3", {2, false, true, NULL}, false},
    {"steps made again", "g t0 w1", "w2 w2 t2", {2, false, true, NULL}, false},
    {"rollbacks before it",
     "g t0 t1 c2 t2 t3 r4 t2 t3 c4",
     "t4 r5 t4",
     {4, false, true, NULL},
     true},
    {"rollbacks to it", "g t0 t1 c2", "t2 r3 t2 r3 t2 c4 h", {2, false, true, NULL}, true},
    {"a rollback after a checkpoint that was damaged",
     "g t0 t1 c2 t2 t3 c4 t4 r5 t2 t3 c4",
     "t4",
     {4, false, true, NULL},
     true},
    {"the same, died before its line",
     "g t0 t1 c2 t2 t3 r4 t2 t3",
     "t4",
     {4, false, true, NULL},
     false},
    {"a rollback and nothing after it", "g t0 t1 c2 t2 r3", "t4", {4, false, true, NULL}, false},
    {"nothing", "", "", {0, false, false, NULL}, false},
    {"nothing that stays", "", "t1 t2", {0, false, false, NULL}, false},
};

TEST(test_cases)
{
    static const char *const torn[] = {"", "{\"kind\":\"train\",\"it",
                                       "{\"kind\":\"train\",\"iter\":0}"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < sizeof torn / sizeof torn[0]; k++) {
            const char *dir = lks_test_folder();
            FILE *f = fopen(file_of(dir), "w");
            size_t kept = put_lines(f, cases[i].kept);
            put_lines(f, cases[i].cut);
            fputs(torn[k], f);
            fclose(f);
            bool has_line;
            size_t got = resume(dir, &cases[i].at, &has_line);
            if (got != kept || has_line != cases[i].has_line)
                fail_msg("%s: %zu bytes instead of %zu, has_line %d", cases[i].name, got, kept,
                         has_line);
        }
}

/* Lines cross every border of the pieces that are read; the cut may be megabytes away. */
TEST(test_pieces)
{
    const lks__metrics_cut at = {100, true, true, NULL};
    for (int shift = 0; shift < 40; shift++) {
        const char *dir = lks_test_folder();
        FILE *f = fopen(file_of(dir), "w");
        size_t kept = put_lines(f, "g h t99 e100 c100");
        for (unsigned i = 0; i < 8000; i++)
            put_line(f, 't', 100 + i);
        fprintf(f, "%*s", shift * 7919, "{"); /* incomplete: no line feed */
        fclose(f);
        bool has_line;
        assert_int_equal(resume(dir, &at, &has_line), kept);
        assert_true(has_line);
    }
}

/* 5 GiB, all but the end a hole: reading that would take seconds and gigabytes. */
TEST(test_huge)
{
    const lks__metrics_cut at = {7, false, true, NULL};
    const char *dir = lks_test_folder();
    FILE *f = fopen(file_of(dir), "w");
    const off_t hole = (off_t)5 << 30;
    bool has_line;
    if (ftruncate(fileno(f), hole) != 0)
        lks_test_lacks("large-files", "no file of 5 GiB, all of it a hole, can be made");
    fseeko(f, hole, SEEK_SET);
    fputc('\n', f);
    size_t kept = put_lines(f, "t6 c7");
    put_lines(f, "t7 t8");
    fclose(f);
    double t0 = lks__sys_now();
    assert_int_equal(resume(dir, &at, &has_line), (size_t)hole + 1 + kept);
    assert_true(has_line);
    assert_true(lks__sys_now() - t0 < 1.0 * lks_test_patience());
    unlink(file_of(dir));
}

/* `tail` after good lines; it ends at an offset that the message names. */
static void refused(const char *tail, size_t bytes, const char *why)
{
    const lks__metrics_cut at = {2, false, true, NULL};
    const char *dir = lks_test_folder();
    lks__metrics *m;
    bool empty, has_line;
    FILE *f = fopen(file_of(dir), "w");
    size_t n = put_lines(f, "g t0 c2") + bytes;
    assert_int_equal(fwrite(tail, 1, bytes, f), bytes);
    put_lines(f, "t2 t3");
    size_t all = (size_t)ftell(f);
    fclose(f);
    assert_fails(LKS_ERR_FORMAT, lks__metrics_resume(dir, &at, &empty, &has_line, &m),
                 "metrics.jsonl", lks_test_text("ends at offset %zu ", n), why);
    struct stat info;
    assert_int_equal(stat(file_of(dir), &info), 0);
    assert_int_equal(info.st_size, all); /* nothing was lost */
}

TEST(test_hostile)
{
    static const char *const lines[] = {"not ours\n",
                                        "\n",
                                        "{}\n",
                                        "[1]\n",
                                        "{\"kind\":7,\"iter\":1}\n",
                                        "{\"kind\":\"train\",\"kind\":\"train\",\"iter\":1}\n",
                                        "{\"kind\":\"train\",\"iter\":99999999999999999999}\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        refused(lines[i], strlen(lines[i]), "is not a JSON object with a \"kind\"");
    static const size_t sizes[] = {(64 << 10) + 1, 256 << 10, (256 << 10) + 1, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *line = malloc(sizes[i]);
        memset(line, ' ', sizes[i]);
        memcpy(line, "{\"kind\":\"host\"}", 15);
        line[sizes[i] - 1] = '\n';
        refused(line, sizes[i], "is too long");
        free(line);
    }
}

/* A line without a usable iteration comes after the checkpoint; zeros come from a crash. */
TEST(test_odd)
{
    static const char odd[] = "{\"kind\":\"train\"}\n{\"kind\":\"train\",\"iter\":-1}\n"
                              "{\"kind\":\"train\",\"iter\":1.0}\n\0\0\0\0 {}\n\0\0\n\0\0\0";
    const lks__metrics_cut at = {2, false, true, NULL};
    const char *dir = lks_test_folder();
    FILE *f = fopen(file_of(dir), "w");
    size_t kept = put_lines(f, "g t0 c2");
    fwrite(odd, 1, sizeof odd - 1, f);
    fclose(f);
    bool has_line;
    assert_int_equal(resume(dir, &at, &has_line), kept);
    assert_true(has_line);
}

/* A new run begins an empty file, also where an earlier attempt has left lines. */
TEST(test_create)
{
    const char *dir = lks_test_folder();
    struct stat info;
    lks__metrics *m;
    FILE *f = fopen(file_of(dir), "w");
    assert_non_null(f);
    assert_true(put_lines(f, "h1 g2 t0 t1") > 0);
    fclose(f);
    assert_ok(lks__metrics_create(dir, &m));
    assert_ok(lks__metrics_close(m));
    assert_int_equal(stat(file_of(dir), &info), 0);
    assert_int_equal(info.st_size, 0);
}

/* The evaluation of an iteration: the newest line of it, and that of no other iteration. */
TEST(test_eval_at)
{
    const lks__metrics_cut cut = {2, true, true, NULL};
    const char *dir = lks_test_folder();
    FILE *f = fopen(file_of(dir), "w");
    lks__metrics *m;
    json_t *eval;
    bool empty, has_line;
    put_lines(f, "g h t0 e1 c2");
    fclose(f);
    assert_ok(lks__metrics_resume(dir, &cut, &empty, &has_line, &m));
    assert_ok(lks__metrics_eval_at(m, 2, &eval));
    assert_null(eval);
    assert_ok(lks__metrics_eval_at(m, 0, &eval));
    assert_null(eval);
    assert_ok(lks__metrics_eval_at(m, 1, &eval));
    assert_int_equal(lks_test_number(eval, "iter"), 1);
    json_decref(eval);
    assert_ok(lks__metrics_close(m));
}

/* The checkpoint's line shows whether the file is this run's. */
TEST(test_of_another_run)
{
    const char *dir = lks_test_folder();
    const char *lines =
        "{\"kind\":\"train\",\"iter\":1,\"loss\":3}\n"
        "{\"kind\":\"checkpoint\",\"iter\":2,\"params_hash\":\"0123456789abcdef\"}\n";
    const lks__metrics_cut own = {2, false, true, "0123456789abcdef"};
    const lks__metrics_cut other = {2, false, true, "0123456789abcdee"};
    const lks__metrics_cut *const cuts[] = {&own, &other};
    lks_test_write_text(file_of(dir), lines);
    for (int i = 0; i < 2; i++) {
        lks__metrics *m;
        bool empty, has_line;
        assert_ok(lks__metrics_resume(dir, cuts[i], &empty, &has_line, &m));
        assert_true(has_line);
        assert_int_equal(lks__metrics_is_other(m), i);
        assert_ok(lks__metrics_close(m));
    }
}

/* The run's end that stayed isn't written a second time, unless it has another loss. */
TEST(test_end_again)
{
    const lks__metrics_cut at = {2, false, true, NULL};
    const char *dir = lks_test_folder();
    lks__metrics *m;
    bool empty, has_line;
    FILE *f = fopen(file_of(dir), "w");
    put_lines(f, "g t0 t1 c2 f2 h");
    fclose(f);
    assert_ok(lks__metrics_resume(dir, &at, &empty, &has_line, &m));
    for (int loss = 1; loss <= 2; loss++) {
        lks__jsonw *w = lks__metrics_begin(m, "final");
        lks__jsonw_int(w, "iter", 2);
        lks__jsonw_int(w, "loss", loss);
        assert_ok(lks__metrics_end(m));
        assert_int_equal(json_array_size(lks_test_metrics(file_of(dir), "final")), loss);
    }
    assert_ok(lks__metrics_close(m));
}

/* A run notices before a checkpoint that its file, or its folder, has another place or another
 * file has taken it. */
TEST(test_moved)
{
    const char *dir = lks_test_text("%s/run", lks_test_folder());
    const char *moved = lks_test_text("%s-old", dir), *file = file_of(dir);
    lks__metrics *m, *other;
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_ok(lks__metrics_create(dir, &m));
    assert_ok(lks__metrics_sync(m));
    assert_int_equal(rename(dir, moved), 0);
    assert_fails(LKS_ERR_IO, lks__metrics_sync(m), "run/metrics.jsonl isn't this run's file any ");
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_ok(lks__metrics_create(dir, &other));
    assert_fails(LKS_ERR_IO, lks__metrics_sync(m), "moved, removed or replaced");
    assert_ok(lks__metrics_close(other));
    assert_int_equal(rename(file_of(moved), file), 0);
    assert_ok(lks__metrics_sync(m)); /* it is back */
    assert_ok(lks__metrics_close(m));
}
