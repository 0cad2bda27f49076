/* The line of tools/progress.h: only on a terminal, only of work that takes a while, erased at its
 * end. */
#include "support.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "progress.h"

static int master, kept;
static char text[8192];
static size_t n_text;

/* From here on stderr is a terminal of 30 columns. */
static void open_terminal(void)
{
    master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        lks_test_lacks("terminals", "no pseudo terminal can be opened");
    const struct winsize size = {.ws_row = 5, .ws_col = 30};
    const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_int_equal(ioctl(master, TIOCSWINSZ, &size), 0);
    kept = dup(STDERR_FILENO);
    assert_int_equal(dup2(terminal, STDERR_FILENO), STDERR_FILENO);
    close(terminal);
    n_text = 0;
    text[0] = '\0';
}

static void close_terminal(void)
{
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(master);
}

/* What has arrived; waits for at most `ms` until `part` is in it. */
static bool arrives(const char *part, int ms)
{
    struct pollfd p = {.fd = master, .events = POLLIN};
    while (strstr(text, part) == NULL && poll(&p, 1, ms) > 0) {
        const ssize_t got = read(master, text + n_text, sizeof text - 1 - n_text);
        if (got <= 0)
            break;
        n_text += (size_t)got;
        text[n_text] = '\0';
    }
    return strstr(text, part) != NULL;
}

TEST(test_terminal)
{
    assert_int_equal(setenv("TERM", "xterm", 1), 0);
    open_terminal();
    const double began = lks__sys_now();
    progress_begin("lockstep x", "one");
    const bool early = arrives("one", 300);            /* short work shows nothing */
    const bool in_time = lks__sys_now() - began < 0.9; /* false if the machine is busy */
    progress_text("step %d", 2);
    const bool shown = arrives("\rlockstep x: step 2, ", 30000) && arrives(" s\033[K", 30000);
    progress_hide();
    const bool hidden = arrives("\033[K\r\033[K", 30000);
    progress_text("a text that is wider than this terminal");
    const bool cut = arrives("\rlockstep x: a text that is wi\033[K", 30000);
    progress_end();
    n_text = 0;
    text[0] = '\0';
    progress_end(); /* again: nothing happens */
    progress_text("late");
    fputs("END", stderr);
    const bool ended = arrives("END", 30000);
    close_terminal();
    assert_false(early && in_time);
    assert_true(shown && hidden && cut && ended);
    assert_memory_equal(text + n_text - 7, "\r\033[KEND", 7); /* erased, and nothing since */
}

/* A pipe or file, a dumb terminal, and other ranks get nothing. */
TEST(test_nobody_looks)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(setenv("TERM", i == 0 ? "dumb" : "xterm", 1), 0);
        if (i == 1)
            assert_int_equal(setenv("RANK", "1", 1), 0);
        open_terminal();
        progress_begin("lockstep x", "one");
        const bool any = arrives("one", 1500);
        progress_end();
        close_terminal();
        assert_false(any || n_text > 0);
    }
    unsetenv("RANK");
}
