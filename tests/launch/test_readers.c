/* The launcher's side of ranks' output, without ranks. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "launch/output/output.h"
#include "launch/output/writer.h"
#include "launch/ranks/supervisor.h"

/* Write until the launcher has no room left: `end` takes nothing for a second. */
static void fill(lks__output *o, int end)
{
    char line[1000];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    double since = lks__sys_now();
    while (lks__sys_now() - since < 1.0) {
        struct pollfd p[3];
        if (write(end, line, sizeof line) > 0)
            since = lks__sys_now();
        else
            assert_int_equal(errno, EAGAIN);
        const int n = lks__output_fill(o, p);
        poll(p, (nfds_t)n, 10);
        lks__output_step(o, p, n);
    }
}

/* The reader of our output leaves while there is no room for what a rank has written, and the rank
 * has ended: what is left in its pipe is read, and nothing is waited for. */
TEST(test_reader_leaves)
{
    const struct lks__output_plan plan = {.inherit = LKS__STD_ERR, .console = LKS__STD_OUT};
    lks__consoles *consoles;
    lks__output *o;
    int kept, ends[2];
    const int reader = lks_test_pipe_begin(STDOUT_FILENO, &kept);
    assert_int_equal(lks__consoles_open(&consoles), LKS_OK);
    assert_int_equal(lks__output_open(&plan, 1, 0, "host", NULL, consoles, &o), LKS_OK);
    lks__output_ends(o, 0, ends);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fill(o, ends[0]);
    lks__output_started(o, 0); /* closes the rank's end */
    close(reader);
    lks_test_until(lks__output_drain(o, true));
    lks__output_close(o);
    lks__consoles_close(consoles, -1);
    lks_test_pipe_end(STDOUT_FILENO, kept);
}

/* The disk of a rank's log file is full: that is said once, and at the end how many bytes are
 * missing. */
TEST(test_full_disk)
{
    const struct lks__output_plan plans[2] = {{.file = LKS__STD_BOTH}, {.file = LKS__STD_BOTH}};
    const char *folder = lks_test_folder();
    char *const folders[] = {(char *)(uintptr_t)lks_test_folder(), (char *)(uintptr_t)folder};
    lks__consoles *consoles;
    lks__output *o;
    int kept, ends[2];
    char text[4096];
    assert_int_equal(symlink("/dev/full", lks_test_text("%s/stderr.log", folder)), 0);
    const int reader = lks_test_pipe_begin(STDERR_FILENO, &kept);
    assert_int_equal(lks__consoles_open(&consoles), LKS_OK);
    assert_int_equal(lks__output_open(plans, 2, 0, "host", folders, consoles, &o), LKS_OK);
    lks__output_ends(o, 1, ends);
    for (int i = 0; i < 20; i++) {
        struct pollfd p[5];
        (void)!write(ends[i % 2], "12345\n", 6);
        for (int k = 0; k < 5; k++) {
            const int n = lks__output_fill(o, p);
            poll(p, (nfds_t)n, 5);
            lks__output_step(o, p, n);
        }
    }
    lks__output_started(o, 0);
    lks__output_started(o, 1);
    lks_test_until(lks__output_drain(o, true));
    lks__output_close(o);
    lks__consoles_close(consoles, -1);
    lks_test_pipe_end(STDERR_FILENO, kept);
    const ssize_t n = read(reader, text, sizeof text - 1);
    close(reader);
    assert_true(n > 0);
    text[n] = '\0';
    static const char said[] = ".log can't be written any more: No space left on device\n";
    const char *first = lks_test_find(text, said);
    assert_contains(text, lks_test_text("lockstep: %s/stderr.log can't", folder));
    assert_null(strstr(first + 1, said));
    assert_contains(text, "log files couldn't be written: 60 bytes are missing\n");
}

/* What is left for one reader doesn't include what is being written for another. */
TEST(test_left)
{
    static char large[8192];
    const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lks__writer *w;
    int a[2], b[2], ready = 0;
    size_t bytes, lines;
    assert_ok(lks__writer_open(1 << 16, 4096, event, &w));
    assert_true(pipe2(a, O_CLOEXEC) == 0 && pipe2(b, O_CLOEXEC) == 0);
    assert_int_equal(fcntl(a[1], F_SETPIPE_SZ, 4096), 4096);
    const int sink_a = lks__writer_sink(w, a[1]), sink_b = lks__writer_sink(w, b[1]);
    memset(large, '\n', sizeof large);
    assert_true(lks__writer_add(w, sink_a, "", 0, large, sizeof large, 0));
    lks_test_until(ioctl(a[0], FIONREAD, &ready) == 0 && ready == 4096);
    /* and for the rest it waits */
    assert_true(lks__writer_add(w, sink_b, "head", 4, " one\ntwo\n", 9, 0));
    lks__writer_left(w, sink_b, &bytes, &lines);
    assert_int_equal(bytes, 13);
    assert_int_equal(lines, 2);
    lks__writer_left(w, sink_a, &bytes, &lines);
    assert_int_equal(bytes, sizeof large);
    assert_int_equal(lines, sizeof large);
    for (size_t got = 0; got < sizeof large;)
        got += (size_t)read(a[0], large, sizeof large);
    lks_test_until(lks__writer_waits_s(w) < 0);
    lks__writer_left(w, sink_b, &bytes, &lines);
    assert_int_equal(bytes + lines, 0);
    assert_int_equal(read(b[0], large, sizeof large), 13);
    assert_memory_equal(large, "head one\ntwo\n", 13);
    assert_true(lks__writer_close(w));
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
    close(event);
}

/* The reader pauses until output is dropped, because the ranks are to end. The ranks of a restart
 * lose nothing, also if it still pauses when they start. It is told what was dropped. */
TEST(test_pause_over_restart)
{
    static const struct lks__output_plan plan = {.inherit = LKS__STD_ERR, .console = LKS__STD_OUT};
    static char large[150 << 10], text[400 << 10];
    struct lks__job job = {.signals = -1};
    struct lks__attempt a = {.job = &job, .nproc = 1};
    struct lks__supervisor sup;
    int readers[2], kept[2], ends[2];
    for (int i = 0; i < 2; i++) {
        readers[i] = lks_test_pipe_begin(1 + i, &kept[i]);
        fcntl(readers[i], F_SETFL, O_NONBLOCK);
    }
    assert_ok(lks__consoles_open(&job.consoles));
    assert_ok(lks__output_open(&plan, 1, 0, "host", NULL, job.consoles, &job.output));
    lks__output_ends(job.output, 0, ends);
    /* The writer waits with the first of two records, and the second one fills the queue. */
    const struct console *k = &job.consoles->at[0];
    for (int n = 0; n < 2;)
        n += lks__writer_add(k->writer, k->sink, "", 0, large, sizeof large, 0);
    lks__consoles_hurry(job.consoles, 0);
    lks__consoles_look(job.consoles);
    (void)!write(ends[0], "first\n", 6);
    lks__output_drain(job.output, false);
    const size_t dropped = k->dropped;
    assert_ok(lks__supervisor_begin(&sup, &a, NULL));
    (void)!write(ends[0], "second\n", 7);
    lks__output_drain(job.output, false);
    lks__output_started(job.output, 0);
    size_t n_text = 0;
    for (int i = 0; i < lks_test_tries(20000) && !lks__consoles_idle(job.consoles); i++) {
        const ssize_t n = read(readers[0], text + n_text, sizeof text - 1 - n_text);
        n_text += n > 0 ? (size_t)n : 0;
        lks__output_drain(job.output, true);
        usleep(n > 0 ? 0 : 1000);
    }
    const ssize_t n_last = read(readers[0], text + n_text, sizeof text - 1 - n_text);
    n_text += n_last > 0 ? (size_t)n_last : 0;
    lks__consoles_look(job.consoles); /* all is written: it reports the loss */
    const size_t left = k->dropped;
    lks__output_close(job.output);
    lks__consoles_close(job.consoles, -1);
    for (int i = 0; i < 2; i++)
        lks_test_pipe_end(1 + i, kept[i]);
    char said[1000] = "";
    assert_true(read(readers[1], said, sizeof said - 1) > 0);
    assert_contains(said, "lockstep: 15 bytes (1 lines) for the standard output were dropped");
    assert_int_equal(dropped, 15);
    assert_int_equal(left, 0);
    assert_int_equal(n_text, 2 * sizeof large + 16);
    assert_string_equal(text + 2 * sizeof large, "[host:0] second\n");
    for (int i = 0; i < 2; i++)
        close(readers[i]);
    free(sup.polls);
}
