/* `lockstep watch --tty`: what is on the screen, at any width. watch_terminal looks at it in tmux.
 */
#include "fake.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/live/screen.h"

static const char *screen_from(lks__series *runs, size_t n, size_t first, int rows, int columns,
                               bool utf8)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    lks__screen(out, &(lks__runs){.all = runs, .n = n}, first, rows, columns, utf8);
    fclose(out);
    const char *kept = lks_test_text("%s", text);
    free(text);
    return kept;
}

static const char *screen_of(lks__series *runs, size_t n, int rows, int columns, bool utf8)
{
    return screen_from(runs, n, 0, rows, columns, utf8);
}

TEST(test_facts)
{
    lks__series s[2];
    const char *one = fake_run("one", 1, 64, 1.5, "\"n_layer\":2");
    fake_ranks(one, "{'iter':10,'compute_ms':[1,1],'wait_ms':[9,9],'memory_bytes':[1,1]}\n"
                    "{'iter':64,'compute_ms':[90,75],'wait_ms':[10,25],"
                    "'memory_bytes':[5000000,7000000]}\n");
    assert_ok(lks__series_open(one, &s[0]));
    assert_ok(lks__series_open(fake_run("two\033[31m", 1, 32, 1.0, "\"n_layer\":2"), &s[1]));
    const char *wide = screen_of(s, 2, 24, 200, false);
    assert_contains(wide,
                    "one  complete  iter 63  loss 1.5000  val 1.5000  best 1.5000 at iteration 64  "
                    "10000 tok/s  mfu 50.0%  wait 2.0%  2 ranks  123.5 kB",
                    "\nrank 0: wait 10.0% 5.0 MB  rank 1: wait 25.0% 7.0 MB\n");
    /* without the time of computation there is no share */
    fake_ranks(one, "{'iter':64,'wait_ms':[10,25],'memory_bytes':[5000000,7000000]}\n");
    assert_ok(lks__series_read(&s[0]));
    assert_contains(screen_of(s, 2, 24, 200, false), "\nrank 0: 5.0 MB  rank 1: 7.0 MB\n");
    /* The loss falls in a line, by an eighth of a character at each of 64 steps. The scale has the
     * highest and the lowest loss, and the first and the last iteration. */
    assert_contains(wide, "\n    2.484 |#*+=-,._ ",
                    lks_test_text("\n      1.5 |%s*+=-,._\n           0%63s\n",
                                  "#########################################################",
                                  "63"));
    /* with little room: one line without a scale */
    assert_contains(screen_of(s, 1, 5, 200, false), "\n#####****", "..._____\n");
    assert_null(strstr(screen_of(s, 1, 5, 200, false), "2.484 |"));
    assert_null(strstr(screen_of(s, 1, 24, 30, false), "2.484 |"));
    assert_null(strchr(wide, '\033'));
    assert_contains(screen_of(s, 1, 24, 80, true), "\xe2\x96\x88", "\xe2\x96\x81\n");
    lks__series_close(&s[0]);
    lks__series_close(&s[1]);
    /* a name of other letters, a run that goes on after it was stopped, one rank alone */
    const char *again = fake_run("caf\xc3\xa9", 1, 32, 1.0, "\"n_layer\":2");
    fake_append(again, "{'kind':'host'}\n{'kind':'skip','iter':32}\n"
                       "{'kind':'recheck','iter':32,'wrong':[{'host':'c'}]}\n");
    fake_ranks(again, "{'iter':10,'compute_ms':[1],'wait_ms':[9],'memory_bytes':[1]}\n");
    assert_ok(lks__series_open(again, &s[0]));
    wide = screen_of(s, 1, 24, 200, true);
    assert_memory_equal(wide, "caf\xc3\xa9  stopped  iter 31  ", 25);
    assert_memory_equal(screen_of(s, 1, 24, 200, false), "caf??  stopped  ", 16);
    assert_memory_equal(screen_of(s, 1, 24, 4, true), "caf\xc3\xa9\nstop\n", 11);
    assert_contains(wide, "  1 resume  1 not finite  1 wrong gradient\n    1.969 |\xe2");
    lks__series_close(&s[0]);
}

/* No line is wider than the terminal, and no more lines than it has. */
TEST(test_sizes)
{
    lks__series s[3] = {{.offset = 0}};
    assert_ok(
        lks__series_open(fake_run("a-run-with-quite-a-long-name", 1, 70, 1.5, "\"x\":1"), &s[0]));
    assert_ok(lks__series_open(fake_run("b", 1, 3, 1.0, "\"x\":1"), &s[1]));
    for (int columns = 1; columns < 210; columns += columns < 90 ? 1 : 30)
        for (int rows = 1; rows < 40; rows += 6) {
            const char *text = screen_of(s, 3, rows, columns, false);
            int n = 0, lines = 0;
            for (; *text != '\0'; text++) {
                n = *text == '\n' ? 0 : n + 1;
                lines += *text == '\n';
                assert_true(n <= columns);
            }
            assert_true(lines + (n > 0) <= rows);
        }
    lks__series_close(&s[0]);
    lks__series_close(&s[1]);
}

/* If not all runs fit, the last line names those that do, from the chosen one on. */
TEST(test_some)
{
    enum { RUNS = 6 };
    lks__series s[RUNS];
    for (int i = 0; i < RUNS; i++)
        assert_ok(
            lks__series_open(fake_run(lks_test_text("run-%d", i), 1, 8, 1.0, "\"x\":1"), &s[i]));
    assert_null(strstr(screen_of(s, RUNS, 24, 200, false), "runs 1 to"));
    const char *text = screen_of(s, RUNS, 10, 200, false);
    assert_contains(text, "\nruns 1 to 3 of 6", "run-2  complete");
    text = screen_from(s, RUNS, 2, 10, 200, false);
    assert_memory_equal(text, "run-2  complete", 15);
    assert_contains(text, "\nruns 3 to 5 of 6");
    assert_contains(screen_from(s, RUNS, 5, 10, 200, false), "\nruns 6 to 6 of 6");
    assert_string_equal(screen_of(s, RUNS, 1, 12, false), "runs 1 to 1 ");
    assert_string_equal(screen_of(s, 0, 24, 80, false), "no run yet");
    for (int i = 0; i < RUNS; i++)
        lks__series_close(&s[i]);
}

TEST(test_no_terminal)
{
    assert_exits(2, lks_test_tool("watch", "--tty", fake_run("a", 1, 3, 1.0, "\"x\":1")),
                 "--tty needs a terminal; `lockstep plot` works without one");
}

int main(void)
{
    setlocale(LC_CTYPE, "C.UTF-8"); /* as the terminal's module does */
    return lks_test_run_all(NULL, NULL);
}
