/* lockstep doctor: finds problems before a run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../progress.h"
#include "../tool.h"
#include "base/text/memstream.h"
#include "launch/doctor/doctor.h"

static const char usage[] =
    "Usage: lockstep doctor [--out_dir=DIR] [HOST[:PORT] ...]\n"
    "       lockstep doctor --serve=ADDRESS[:PORT]\n"
    "\n"
    "Checks this host for problems that stop runs or slow them down, and prints how\n"
    "to fix each.\n"
    "\n"
    "To check the network, run `lockstep doctor --serve=ADDRESS` on one host. It\n"
    "waits, and prints the command for the other hosts, with the token that it needs.\n"
    "That command measures the network and compares the hosts. PORT is 29500 if you\n"
    "give none.\n"
    "\n"
    "The exit code is 1 if there is a problem, and 0 if there are only notes.\n";

static void check_host(lks__doctor *d, const char *unused)
{
    lks__doctor_host(d);
}

static void check_network(lks__doctor *d, const char *unused)
{
    lks__doctor_network(d);
}

/* Run a check that may take seconds. Its lines are printed together, after the progress line is
 * erased. */
static void run_check(lks__doctor *d, void (*check)(lks__doctor *d, const char *where),
                      const char *where, const char *doing)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = d->out, *lines = open_memstream(&text, &bytes);
    char line[160];
    fflush(out);
    if (lines != NULL)
        d->out = lines;
    snprintf(line, sizeof line, "%s%s", doing, lks__shown(where, 80));
    progress_begin("lockstep doctor", line);
    check(d, where);
    progress_end();
    d->out = out;
    if (lines != NULL && lks__memstream_end(lines, &text) != NULL)
        fputs(text, out);
    free(text);
}

int tool_doctor(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("doctor", LKS__CMD_DOCTOR, usage, argc, argv, LKS__ARGS_POSITIONAL, &s,
                       &args, &code))
        return code;
    lks__doctor d = {.out = stdout};
    run_check(&d, check_host, "", "checking this host");
    run_check(&d, check_network, "", "checking its network and its name");
    if (s.from[LKS__SETTING_out_dir] >= LKS__FROM_FILE)
        run_check(&d, lks__doctor_folder, s.out_dir, "checking the folder ");
    for (int i = 0; i < args.n_positional; i++)
        run_check(&d, lks__doctor_peer, args.positional[i], "measuring the network to ");
    if (s.serve[0] != '\0') {
        lks_status st = lks__doctor_serve(&d, s.serve);
        if (st != LKS_OK)
            return tool_fail("doctor", st);
    }
    lks__doctor_verdict(&d);
    return d.n_problems > 0 ? TOOL_FAILED : TOOL_OK;
}
