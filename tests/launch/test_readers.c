/* The launcher's side of ranks' output, without ranks. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "launch/output.h"

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
static void test_reader_leaves(void **state)
{
    const struct lks__output_plan plan = {.inherit = LKS__STD_ERR, .console = LKS__STD_OUT};
    lks__consoles *consoles;
    lks__output *o;
    int fds[2], ends[2];
    bool done = false;
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) >= 4096);
    assert_int_equal(dup2(fds[1], STDOUT_FILENO), STDOUT_FILENO);
    close(fds[1]);
    assert_int_equal(lks__consoles_open(&consoles), LKS_OK);
    assert_int_equal(lks__output_open(&plan, 1, 0, "host", NULL, consoles, &o), LKS_OK);
    lks__output_ends(o, 0, ends);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fill(o, ends[0]);
    lks__output_started(o, 0); /* closes the rank's end */
    close(fds[0]);
    for (int i = 0; i < lks_test_tries(200) && !done; i++) {
        done = lks__output_drain(o, true);
        usleep(50000);
    }
    lks__output_close(o);
    lks__consoles_close(consoles, -1);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reader_leaves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
