/* Output: JSON lines, log lines, the progress line, the last lines of a run. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/jsonw.h"
#include "train/loop/report/report.h"
#include "train/procedure/golf.h"

static void write_sample(lks__jsonw *w)
{
    lks__jsonw_object(w, NULL);
    lks__jsonw_str(w, "kind", "train");
    lks__jsonw_int(w, "iter", INT64_MIN);
    lks__jsonw_u64(w, "tokens", UINT64_MAX);
    lks__jsonw_float(w, "loss", 1.0 / 3);
    lks__jsonw_double(w, "lr", 0.1);
    lks__jsonw_double(w, "nan", NAN);
    lks__jsonw_float(w, "inf", -INFINITY);
    lks__jsonw_bool(w, "on", true);
    lks__jsonw_str(w, "none", NULL);
    lks__jsonw_array(w, "list");
    lks__jsonw_int(w, NULL, 1);
    lks__jsonw_object(w, NULL);
    lks__jsonw_end(w);
    lks__jsonw_array(w, NULL);
    lks__jsonw_end(w);
    lks__jsonw_bool(w, NULL, false);
    lks__jsonw_end(w);
    lks__jsonw_int(w, "last", 0);
    lks__jsonw_end(w);
}

static const char sample[] =
    "{\"kind\":\"train\",\"iter\":-9223372036854775808,\"tokens\":18446744073709551615,"
    "\"loss\":0.333333333,\"lr\":0.10000000000000001,\"nan\":null,\"inf\":null,\"on\":true,"
    "\"none\":null,\"list\":[1,{},[],false],\"last\":0}\n";

TEST(test_json)
{
    lks__jsonw w;
    char buf[1024];
    size_t n;
    lks__jsonw_open(&w, buf, sizeof buf);
    write_sample(&w);
    assert_ok(lks__jsonw_close(&w, &n));
    assert_string_equal(buf, sample);
    assert_int_equal(n, strlen(sample));
}

/* Every too small buffer is detected, and nothing is written beyond it. */
TEST(test_json_overflow)
{
    lks__jsonw w;
    size_t n = 7;
    for (size_t size = 0; size <= sizeof sample; size++) {
        /* The sanitizer watches its end, and so does this test: */
        char *buf = malloc(size ? size : 1);
        char guarded[sizeof sample + 8];
        memset(guarded, '?', sizeof guarded);
        lks__jsonw_open(&w, guarded, size);
        write_sample(&w);
        if (size == sizeof sample)
            assert_ok(lks__jsonw_close(&w, &n));
        else
            assert_fails(LKS_ERR_NOMEM, lks__jsonw_close(&w, &n), "buffer");
        for (size_t i = size; i < sizeof guarded; i++)
            assert_int_equal(guarded[i], '?');
        lks__jsonw_open(&w, buf, size);
        write_sample(&w);
        free(buf);
    }
    assert_int_equal(n, sizeof sample - 1);
}

TEST(test_json_strings)
{
    static const struct {
        const char *value, *json;
    } cases[] = {
        {"a\"b\\c/", "\"a\\\"b\\\\c/\"\n"},
        {"\n\t\x1b\x7f", "\"\\n\\u0009\\u001b\\u007f\"\n"},
        {"\xc3\xa9\xf0\x9f\x98\x80", "\"\xc3\xa9\xf0\x9f\x98\x80\"\n"},
        {"\xff|\xc3", "\"\\ufffd|\\ufffd\"\n"},
        {"", "\"\"\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks__jsonw w;
        char buf[64];
        size_t n;
        lks__jsonw_open(&w, buf, sizeof buf);
        lks__jsonw_str(&w, NULL, cases[i].value);
        assert_ok(lks__jsonw_close(&w, &n));
        assert_string_equal(buf, cases[i].json);
        json_t *json = json_loads(buf, JSON_DECODE_ANY, NULL); /* another reader agrees */
        assert_non_null(json);
        json_decref(json);
    }
}

/* An object may stand where an array stood, and the other way round. */
TEST(test_json_groups)
{
    lks__jsonw w;
    char buf[64];
    size_t n;
    lks__jsonw_open(&w, buf, sizeof buf);
    lks__jsonw_object(&w, NULL);
    lks__jsonw_array(&w, "a");
    lks__jsonw_int(&w, NULL, 1);
    lks__jsonw_end(&w);
    lks__jsonw_object(&w, "b");
    lks__jsonw_int(&w, "c", 2);
    lks__jsonw_end(&w);
    lks__jsonw_array(&w, "d");
    lks__jsonw_end(&w);
    lks__jsonw_end(&w);
    assert_ok(lks__jsonw_close(&w, &n));
    assert_string_equal(buf, "{\"a\":[1],\"b\":{\"c\":2},\"d\":[]}\n");
}

/* JSON has no number for NaN and infinity. */
TEST(test_json_real)
{
    const double odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        assert_true(json_is_null(lks__json_real(odd[i])));
    json_t *real = lks__json_real(-1.5);
    assert_true(json_real_value(real) == -1.5);
    json_decref(real);
}

TEST(test_json_line)
{
    static const char *const others[] = {"", "x", "[1]", "1", "{\"a\":1", "{\"a\":1}}"};
    json_t *o;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_ok(lks__json_line(others[i], strlen(others[i]), 0, &o));
        assert_null(o);
    }
    assert_ok(lks__json_line("{\"a\":1\0}", 8, 0, &o));
    assert_null(o);
    assert_ok(lks__json_line("{\"a\":1}", 7, 0, &o));
    assert_int_equal(lks__json_int(o, "a"), 1);
    json_decref(o);
}

TEST(test_json_misuse)
{
    lks__jsonw w;
    char buf[256];
    size_t n;
    lks__jsonw_open(&w, buf, sizeof buf);
    lks__jsonw_object(&w, NULL);
    assert_fails(LKS_ERR_ARG, lks__jsonw_close(&w, &n), "1 objects still open");
    lks__jsonw_open(&w, buf, sizeof buf);
    lks__jsonw_object(&w, NULL);
    lks__jsonw_int(&w, NULL, 1); /* a member without a name */
    lks__jsonw_end(&w);
    assert_fails(LKS_ERR_NOMEM, lks__jsonw_close(&w, &n), "malformed");
    lks__jsonw_open(&w, buf, sizeof buf);
    lks__jsonw_int(&w, NULL, 1);
    lks__jsonw_end(&w);
    assert_fails(LKS_ERR_NOMEM, lks__jsonw_close(&w, &n), "malformed");
    lks__jsonw_open(&w, buf, sizeof buf);
    lks__jsonw_int(&w, NULL, 1);
    lks__jsonw_int(&w, NULL, 2); /* a second value behind the whole */
    assert_fails(LKS_ERR_NOMEM, lks__jsonw_close(&w, &n), "malformed");
    lks__jsonw_open(&w, buf, sizeof buf);
    for (int i = 0; i < 40; i++)
        lks__jsonw_array(&w, NULL);
    for (int i = 0; i < 40; i++)
        lks__jsonw_end(&w);
    assert_fails(LKS_ERR_NOMEM, lks__jsonw_close(&w, &n), "malformed");
}

TEST(test_log_without_terminal)
{
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/train.log", dir);
    FILE *out = fopen(lks_test_text("%s/out", dir), "w");
    FILE *err = fopen(lks_test_text("%s/err", dir), "w");
    lks__log log;
    lks__log_open(&log, "lockstep train", out, err);
    assert_ok(lks__log_to_file(&log, path));
    lks__log_live(&log, true); /* a file can't be live */
    lks__log_line(&log, "iter %d", 1);
    lks__log_progress(&log, "iter 2", "live 2");
    lks__log_progress(&log, NULL, "live 3");
    lks__log_message(&log, "careful: %s", "x");
    assert_ok(lks__log_check(&log));
    lks__log_close(&log);
    fclose(out);
    fclose(err);
    assert_string_equal(lks_test_read(lks_test_text("%s/out", dir), NULL), "iter 1\niter 2\n");
    assert_string_equal(lks_test_read(lks_test_text("%s/err", dir), NULL),
                        "lockstep train: careful: x\n");
    assert_string_equal(lks_test_read(path, NULL), "iter 1\niter 2\nlockstep train: careful: x\n");

    /* Lines are appended, and lines of any length end. */
    char *huge = malloc(10001);
    memset(huge, 'x', 10000);
    huge[10000] = '\0';
    out = fopen("/dev/null", "w");
    lks__log_open(&log, "t", out, out);
    assert_ok(lks__log_to_file(&log, path));
    lks__log_line(&log, "%s", huge);
    lks__log_progress(&log, huge, huge);
    lks__log_close(&log);
    fclose(out);
    free(huge);
    const char *text = lks_test_read(path, NULL) + 41;
    assert_int_equal(strchr(text, '\n') - text, 4094);
    text += 4095;
    assert_int_equal(strchr(text, '\n') - text, 4094);
    assert_int_equal(strlen(text), 4095);
}

/* Of long work: to stderr alone, after a while, and rarely. */
TEST(test_log_status)
{
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/train.log", dir);
    FILE *out = fopen(lks_test_text("%s/out", dir), "w");
    FILE *err = fopen(lks_test_text("%s/err", dir), "w");
    lks__log log;
    lks__log_open(&log, "lockstep train", out, err);
    assert_ok(lks__log_to_file(&log, path));
    lks__log_work(&log);
    lks__log_status(&log, "too early");
    assert_true(log.status_at > 0);
    log.status_at = 0;
    lks__log_status(&log, "evaluation 0: 3 of 400 batches");
    usleep(300000); /* a terminal would show it by now */
    lks__log_status(&log, "too soon");
    lks__log_close(&log);
    fclose(out);
    fclose(err);
    assert_string_equal(lks_test_read(lks_test_text("%s/out", dir), NULL), "");
    assert_string_equal(lks_test_read(lks_test_text("%s/err", dir), NULL),
                        "lockstep train: evaluation 0: 3 of 400 batches\n");
    assert_string_equal(lks_test_read(path, NULL), "");
}

TEST(test_log_failures)
{
    FILE *full = fopen("/dev/full", "w");
    lks__log log;
    assert_non_null(full);
    lks__log_open(&log, "t", full, full);
    lks__log_message(&log, "stderr has nobody to tell");
    assert_ok(lks__log_check(&log));
    lks__log_line(&log, "x");
    assert_fails(LKS_ERR_IO, lks__log_check(&log), "standard output", "No space left");
    lks__log_close(&log);
    fclose(full);

    FILE *null = fopen("/dev/null", "w");
    lks__log_open(&log, "t", null, null);
    assert_fails(LKS_ERR_IO, lks__log_to_file(&log, "/nonexistent/train.log"), "nonexistent");
    assert_fails(LKS_ERR_IO, lks__log_to_file(&log, "/dev/full"), "not a regular file");
    const char *dir = lks_test_folder(), *link = lks_test_text("%s/link", dir);
    assert_int_equal(symlink("elsewhere", link), 0);
    assert_fails(LKS_ERR_IO, lks__log_to_file(&log, link), "link");
    assert_false(lks_test_exists(lks_test_text("%s/elsewhere", dir)));
    const char *fifo = lks_test_text("%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_fails(LKS_ERR_IO, lks__log_to_file(&log, fifo), "fifo is not a regular file");
    assert_ok(lks__log_to_file(&log, lks_test_text("%s/1", dir)));
    assert_ok(lks__log_to_file(&log, lks_test_text("%s/2", dir)));
    struct rlimit before, none = {0, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    lks__log_line(&log, "x");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(LKS_ERR_IO, lks__log_check(&log), lks_test_text("log file %s/1", dir),
                 "File too large");
    lks__log_close(&log);
    fclose(null);
}

/* A terminal of 20 columns: returns what arrives at its other end. */
static const char *on_terminal(const char *term)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        lks_test_lacks("terminals", "no pseudo terminal can be opened");
    FILE *out = fopen(ptsname(master), "w");
    assert_non_null(out);
    struct winsize size = {.ws_row = 5, .ws_col = 20};
    assert_int_equal(ioctl(master, TIOCSWINSZ, &size), 0);
    setenv("TERM", term, 1);
    lks__log log;
    lks__log_open(&log, "t", out, out);
    lks__log_progress(&log, "line 1", "a b\xc3\xa9 56789 123456789 12");
    lks__log_progress(&log, "line 2", "two");
    lks__log_line(&log, "step");
    lks__log_progress(&log, NULL, "three");
    lks__log_message(&log, "note");
    lks__log_progress(&log, NULL, "four");
    lks__log_live(&log, false); /* from now on it is like a file */
    lks__log_progress(&log, "line 5", "five");
    lks__log_close(&log);
    fputs("END", out);
    fflush(out);
    char text[512] = "";
    for (size_t n = 0; !strstr(text, "END");) { /* it arrives in pieces */
        ssize_t got = read(master, text + n, sizeof text - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        text[n] = '\0';
    }
    *strstr(text, "END") = '\0';
    fclose(out);
    close(master);
    return lks_test_text("%s", text);
}

TEST(test_log_on_terminal)
{
    assert_string_equal(on_terminal("xterm"), "a b\xc3\xa9 56789 12345678\033[K\r"
                                              "two\033[K\r"
                                              "\033[Kstep\r\n"
                                              "three\033[K\r"
                                              "\033[Kt: note\r\n"
                                              "four\033[K\r"
                                              "line 5\r\n"
                                              "\033[K");
    assert_string_equal(on_terminal("dumb"), "line 1\r\nline 2\r\nstep\r\nt: note\r\nline 5\r\n");
}

/* --- the last lines of a run ------------------------------------------------------------------ */

/* 60 steps up to iteration 70, in `seconds`. */
static const char *ended_in(double seconds, lks__report *r, lks__trainer *t, int signal,
                            const double *loss, const lks__eval_result *final)
{
    FILE *out = tmpfile();
    static char text[4096];
    assert_non_null(out);
    lks__log_open(&r->log, "t", out, out);
    r->on = true;
    r->n_steps = 60;
    r->started = lks__sys_now() - seconds;
    t->state.iter = 70;
    lks__report_end(r, t, signal, loss, final);
    lks__log_close(&r->log);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    return text;
}

/* In 62 minutes and 35 seconds. */
static const char *ended(lks__report *r, lks__trainer *t, int signal, const double *loss,
                         const lks__eval_result *final)
{
    return ended_in(3755.01, r, t, signal, loss, final);
}

TEST(test_end)
{
    static const char *const words[][2] = {{"out/a.b", "out/a.b"},
                                           {"a b", "'a b'"},
                                           {"it's", "'it'\\''s'"},
                                           {"", "''"},
                                           {"caf\xc3\xa9", "'caf\xc3\xa9'"},
                                           {"caf\xe9", "..."},
                                           {"\xc2\x9b", "..."},
                                           {"a\nb", "..."},
                                           {"--a=b", "--a=b"},
                                           {"--a=b c", "--a='b c'"}};
    const double loss = 1.5;
    const lks__eval_result final = {.val_loss = 2.0};
    uint32_t chars[1] = {'a'};
    lks__report *r = lks_test_calloc(1, sizeof *r);
    lks__trainer *t = lks_test_calloc(1, sizeof *t);
    strcpy(t->run.shown_out_dir, "here");
    r->best = (lks__best){.found = true, .iter = 40, .loss = 1.75};
    lks__report_above(r, 60, 1.9);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        snprintf(t->run.s.out_dir, sizeof t->run.s.out_dir, "%s", words[i][0]);
        assert_string_equal(
            ended(r, t, 0, &loss, &final),
            lks_test_text(
                "done: 60 steps in 62 min 35 s\n"
                "last loss 1.5000, last validation loss 2.0000, best validation loss 1.7500 at "
                "iteration 40\n"
                "the last two validation losses are over 5 %% above the lowest, 1.7500 at "
                "iteration 40; sample and eval use the best checkpoint, as "
                "always_save_checkpoint=false\n"
                "to compare them over the whole validation text: lockstep eval %s "
                "--checkpoint=latest, "
                "and --checkpoint=best\n"
                "in here: metrics.jsonl, train.log; latest is ckpt-00000070, best is "
                "ckpt-00000040\n"
                "next: lockstep eval %s\n",
                words[i][1], words[i][1]));
    }
    assert_contains(ended(r, t, 15, NULL, NULL),
                    "stopped by signal 15 before iteration 70, after 62 min 35 s\n"
                    "best validation loss 1.7500 at iteration 40\n",
                    "to continue: lockstep resume --a='b c'\n");
    assert_int_equal(r->stop_signal, 15);
    assert_contains(ended_in(60.0, r, t, 0, NULL, NULL), "done: 60 steps in 60."); /* "60.0 s" */
    t->ses.world = (lks_world){.world_size = 4, .local_world_size = 2}; /* on two hosts */
    assert_contains(ended(r, t, 15, NULL, NULL),
                    "to continue: start the ranks as before, with lockstep train --out_dir=--a='b "
                    "c' --init_from=resume; on one host: lockstep resume --a='b c'\n");
    t->ses.world.local_world_size = 4;
    assert_contains(ended(r, t, 15, NULL, NULL), "to continue: lockstep resume --a='b c'\n");
    /* one evaluation that is higher is chance, also if it is made twice */
    lks__report_above(r, 60, 1.8);
    assert_null(strstr(ended(r, t, 0, &loss, &final), "over 5 %"));
    assert_null(strstr(ended(r, t, 0, &loss, &final), "over 5 %"));
    /* and so are 5 % */
    r->best.loss = 2.0 / 1.049;
    lks__report_above(r, 60, 2.5);
    assert_null(strstr(ended(r, t, 0, &loss, &final), "over 5 %"));
    r->best.loss = 2.0 / 1.051;
    lks__report_above(r, 60, 2.5);
    assert_contains(ended(r, t, 0, &loss, &final), "over 5 %");
    t->run.meta.is_sentencepiece = true;
    assert_contains(ended(r, t, 0, &loss, &final), "next: lockstep sample ");
    t->run.meta.is_sentencepiece = false;
    t->run.meta.chars = chars;
    assert_contains(ended(r, t, 0, &loss, &final), "next: lockstep sample ");
    /* the program as the user started it: `lockstep` may not be in the path */
    char *name = program_invocation_name;
    program_invocation_name = (char[]){"build/tools/lockstep"};
    assert_contains(ended(r, t, 0, &loss, &final), "\nnext: build/tools/lockstep sample ");
    assert_contains(ended(r, t, 15, NULL, NULL), "\nto continue: build/tools/lockstep resume ");
    program_invocation_name = (char[]){"/a b/lockstep"};
    assert_contains(ended(r, t, 0, &loss, &final), "\nnext: '/a b/lockstep' sample ");
    program_invocation_name = name;
    lks_test_free(r, t);
}

/* The contest's ten minutes: training that its limit has ended is within it, though the last step
 * ended later. */
TEST(test_limits)
{
    static const struct {
        double limit, train, eval;
        const char *says; /* NULL: no warning */
    } rows[] = {
        {600, 600.5, 599, NULL},
        {0, 599, 600, NULL},
        {0, 600.5, 1, "t: TOO SLOW: training took 600 s, over the contest's limit of 600 s\n"},
        {900, 900.5, 1, "TOO SLOW: training took 900 s"},
        {600, 600.5, 601,
         "TOO SLOW: the evaluation of the artifact took 601 s, over the contest's"},
    };
    static struct lks__golf_run golf;
    static lks__trainer t = {.run.golf = &golf, .checks.out_of_time = true};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        t.state.elapsed_s = rows[i].train;
        const lks__finish_result result = {.eval_seconds = rows[i].eval};
        FILE *out = tmpfile();
        char text[4096];
        lks__log log;
        assert_non_null(out);
        t.run.s.max_wallclock_seconds = rows[i].limit;
        t.run.s.iterations = (int64_t)i;
        lks__log_open(&log, "t", out, out);
        lks__golf_finish_lines(&t, &result, &log);
        lks__log_close(&log);
        rewind(out);
        text[fread(text, 1, sizeof text - 1, out)] = '\0';
        fclose(out);
        if (rows[i].says != NULL)
            assert_contains(text, rows[i].says);
        assert_true((strstr(text, "TOO SLOW") != NULL) == (rows[i].says != NULL));
        assert_true((strstr(text, "stopping_early") != NULL) == (i > 0)); /* after 0 steps */
    }
}

/* The first ten steps have a line, whose average is of the steps that were timed. */
TEST(test_golf_line)
{
    static lks__run run;
    lks__state at = {.iter = 10, .data_shift = 5, .elapsed_from = 5, .elapsed_s = 2.0};
    const lks__step_result step = {.loss = 1.5};
    char line[200];
    run.s.log_interval = 100;
    lks__golf_train_line(&run, &at, &step, 0, line);
    assert_string_equal(line, "step:10/0 train_loss:1.5000 train_time:2000ms step_avg:200.00ms");
    at.iter++;
    lks__golf_train_line(&run, &at, &step, 0, line);
    assert_string_equal(line, "");
}
