/* lockstep watch: shows runs in a browser or a terminal, during or after training. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../runs.h"
#include "../tool.h"
#include "base/system/sys.h"
#include "report/live/feed.h"
#include "report/live/screen.h"
#include "report/live/serve.h"

static const char usage[] =
    "Usage: lockstep watch [--port=N] [--address=A] RUN…\n"
    "       lockstep watch --tty RUN…\n"
    "       lockstep watch --html=FILE RUN…\n"
    "\n"
    "Serves a page that shows runs, during and after training, to browsers on this\n"
    "host. RUN is a run's folder, a folder of runs, or NAME=FOLDER. Runs that begin\n"
    "later in a folder are added. These folders are only read. --address lets other\n"
    "hosts see the page. --tty shows the runs in the terminal instead, until you\n"
    "press q. Up and Down scroll. --html writes the current page to a file and ends.\n"
    "Ctrl-C ends the command.\n"
    "\n"
    "  lockstep watch out\n";

static volatile sig_atomic_t stop_signal;

static void on_signal(int signo)
{
    stop_signal = 1;
}

static bool stop_requested(void)
{
    return stop_signal != 0;
}

static void print_url(const char *url)
{
    printf("%s\n", url);
    fflush(stdout);
}

static lks_status write_page(const tool_runs *runs, const char *path)
{
    size_t bytes;
    const char *dot = strrchr(path, '.');
    if (dot == NULL || dot == path || strcmp(dot, ".html") != 0) /* it could be a run's record */
        return lks__fail(LKS_ERR_CONFIG, "--html=%s: the name must end in .html",
                         lks__shown(path, 4 * LKS__SETTING_STR));
    char *page = lks__feed_page(runs, &bytes);
    LKS__MEMORY(page, "for the page");
    lks_status st = lks__sys_write_file(path, page, bytes);
    free(page);
    if (st == LKS_OK)
        tool_wrote("watch", path);
    return st;
}

static lks_status watch(const lks__settings *s, tool_runs *runs)
{
    const struct sigaction act = {.sa_handler = on_signal};
    if (s->html[0] != '\0' && (s->tty || s->from[LKS__SETTING_port] == LKS__FROM_ARG ||
                               s->from[LKS__SETTING_address] == LKS__FROM_ARG))
        return lks__fail(LKS_ERR_CONFIG,
                         "--html writes a file and serves nothing: leave --port, --address and "
                         "--tty out");
    if (s->html[0] != '\0')
        return write_page(runs, s->html);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    return s->tty ? lks__screen_show(runs, tool_utf8(), stop_requested)
                  : lks__serve(runs, s->address, (int)s->port, print_url, stop_requested);
}

int tool_watch(int argc, char **argv)
{
    return tool_runs_main("watch", LKS__CMD_WATCH, usage, argc, argv, watch);
}
