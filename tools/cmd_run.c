/* lockstep run: torchrun's part, for any program. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/nearest.h"
#include "launch/launch.h"
#include "tool.h"

static const char usage[] =
    "Usage: lockstep run [--standalone] [--nproc-per-node=N] [--] PROGRAM [ARGS]\n"
    "\n"
    "Starts N ranks of PROGRAM on this machine with torchrun's environment (RANK, LOCAL_RANK,\n"
    "WORLD_SIZE, MASTER_ADDR, ...). When a rank dies, the others are ended, and its exit code is\n"
    "this command's. PROGRAM is looked for in PATH.\n"
    "\n"
    "  --standalone          all ranks are on this machine (as they are without it)\n"
    "  --nproc-per-node=1    ranks to start: a number, or auto or cpu for one on each core\n"
    "\n"
    "Options may be written with - or _, and their values behind = or as the next word.\n";

enum { MAX_RANKS = 1024 };

static const char *const options[] = {"standalone", "nproc_per_node", "help"};
enum { STANDALONE, NPROC_PER_NODE, HELP, N_OPTIONS };

/* Which option `arg` is; its value, or NULL where there is no '='. -1: none, and the error. */
static int find_option(const char *arg, const char **value_p)
{
    char name[64], shown[80];
    size_t n = strcspn(arg, "=");
    *value_p = arg[n] ? arg + n + 1 : NULL;
    lks__escape(shown, sizeof shown, arg, strlen(arg));
    if (strcmp(arg, "-h") == 0)
        return HELP;
    snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, arg);
    for (char *c = name; *c; c++)
        *c = *c == '-' && c - name >= 2 ? '_' : *c;
    for (int i = 0; i < N_OPTIONS; i++)
        if (strncmp(name, "--", 2) == 0 && strcmp(name + 2, options[i]) == 0)
            return i;
    const char *near = lks__nearest(arg + strspn(arg, "-"), options, N_OPTIONS);
    lks__fail(LKS_ERR_CONFIG,
              near ? "%s: there is no such option; did you mean --%s? What belongs to PROGRAM "
                     "stands behind it"
                   : "%s: there is no such option; `lockstep run --help` lists all%s",
              shown, near ? near : "");
    return -1;
}

static lks_status read_nproc(const char *text, int *nproc_p)
{
    int64_t n;
    char shown[80];
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0)
        n = lks__cpu_count();
    else if (!lks__parse_int(text, &n) || n < 1 || n > MAX_RANKS)
        return lks__fail(LKS_ERR_CONFIG,
                         "--nproc-per-node must be auto, cpu or a whole number from 1 to %d, not "
                         "\"%s\"",
                         MAX_RANKS, lks__escape(shown, sizeof shown, text, strlen(text)));
    *nproc_p = (int)n;
    return LKS_OK;
}

static lks_status read_options(int argc, char **argv, lks__launch_options *launch, bool *help_p)
{
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (argv[i][0] != '-' || strcmp(argv[i], "--") == 0) {
            i += argv[i][0] == '-';
            launch->argv = argv + i;
            break;
        }
        int option = find_option(argv[i], &value);
        if (option < 0)
            return LKS_ERR_CONFIG;
        if (option != NPROC_PER_NODE && value)
            return lks__fail(LKS_ERR_CONFIG, "--%s takes no value", options[option]);
        if (option == HELP) {
            *help_p = true;
            return LKS_OK;
        }
        if (option == NPROC_PER_NODE) {
            if (!value && i + 1 < argc)
                value = argv[++i];
            LKS__TRY(read_nproc(value ? value : "", &launch->nproc));
        }
    }
    if (!launch->argv || !launch->argv[0])
        return lks__fail(LKS_ERR_CONFIG, "there is no PROGRAM to run; `lockstep run --help` shows "
                                         "how to write it");
    return LKS_OK;
}

int tool_run(int argc, char **argv)
{
    lks__launch_options launch = {.nproc = 1, .self = "lockstep run"};
    bool help = false;
    int code = TOOL_FAILED;
    lks_status st = read_options(argc, argv, &launch, &help);
    if (st == LKS_OK && help) {
        fputs(usage, stdout);
        return TOOL_OK;
    }
    if (st == LKS_OK)
        st = lks__launch(&launch, &code);
    return st == LKS_OK ? code : tool_fail("run", st);
}
