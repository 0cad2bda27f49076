/* The options of `lockstep run`, and their syntax. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../table.h"
#include "../tool.h"
#include "base/text/nearest.h"
#include "run.h"

const char *const run_names[N_OPTIONS] = {
#define X(name, letter, value, help) #name,
    OPTIONS(X)
#undef X
};

static const struct {
    const char *letter, *value, *help;
} options[N_OPTIONS] = {
#define X(name, letter, value, help) {letter, value, help},
    OPTIONS(X)
#undef X
};

/* Options of torchrun that have no effect here; docs/reference/launch.md gives the reasons. */
static const struct {
    const char *name;
    bool bare;
} foreign[] = {
    {"monitor_interval", false},
    {"start_method", false},
    {"event_log_handler", false},
    {"logs_specs", false},
    {"numa_binding", false},
    {"rdzv_conf", false},
    {"no_python", true},
    {"virtual_local_rank", true},
    {"log_line_prefix_template", false},
    {"duplicate_stdout_filters", false},
    {"duplicate_stderr_filters", false},
};

bool run_takes_value(enum option option)
{
    return *options[option].value != '\0';
}

static const char usage[] =
    "Usage: lockstep run [OPTIONS] [--] PROGRAM [ARGS]\n"
    "\n"
    "Starts ranks (processes) of PROGRAM with torchrun's environment (RANK,\n"
    "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...). If a rank fails, the other ranks are\n"
    "ended, and this command exits with that rank's code. PROGRAM is searched in\n"
    "PATH. A Python script (train.py) is run by python3.\n"
    "\n"
    "  lockstep run --nproc-per-node=2 train.py --my_option=3\n"
    "  lockstep run --hosts=a:2,b:2 lockstep train quickstart --out_dir=out/two\n";
static const char usage_end[] =
    "\n"
    "Options may be written with - or _, and their values after = or as the next\n"
    "word. An option that isn't given is read from PET_OPTION in the environment, as\n"
    "torchrun does.\n";

size_t run_write_name(enum option option, char *out, size_t bytes)
{
    size_t n = (size_t)snprintf(out, bytes, "--%s", run_names[option]);
    for (char *c = strchr(out, '_'); c != NULL; c = strchr(c, '_'))
        *c = '-';
    return n;
}

static void print_table(void)
{
    table_usage("run", usage);
    table_usage("run", usage_end);
    for (int i = 0; i < N_OPTIONS; i++) {
        char name[64];
        const char *value = options[i].value;
        const bool is_path = strcmp(value, "FILE") == 0 || strcmp(value, "DIR") == 0;
        run_write_name(i, name, sizeof name);
        table_option("run", name,
                     *value == '\0' ? "flag"
                     : is_path      ? "path"
                                    : "value",
                     value, options[i].help);
    }
}

void run_print_usage(void)
{
    if (table_asked) {
        print_table();
        return;
    }
    printf("%s\n", usage);
    for (int i = 0; i < N_OPTIONS; i++) {
        char name[64] = "";
        const char *value = options[i].value;
        size_t n = 0;
        if (*options[i].letter != '\0')
            n = (size_t)snprintf(name, sizeof name, "-%s, ", options[i].letter);
        n += run_write_name(i, name + n, sizeof name - n);
        if (*value != '\0' && n < sizeof name)
            snprintf(name + n, sizeof name - n, "=%s", value);
        lks__help_row(stdout, name, options[i].help);
    }
    fputs(usage_end, stdout);
}

/* --- the command line ------------------------------------------------------------------------- */

static bool is_foreign(const char *name, bool *bare_p)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (strcmp(name, foreign[i].name) == 0) {
            *bare_p = foreign[i].bare;
            return true;
        }
    return false;
}

/* The option `name`, written with _; -1 if there is none. */
static int find_option(const char *name)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (strcmp(name, run_names[i]) == 0)
            return i;
    return -1;
}

/* Print node_rank for "--node-rank=1". */
static void read_name(const char *arg, char name[64])
{
    snprintf(name, 64, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : *c;
}

bool run_has_option(const char *arg)
{
    char name[64];
    if (strncmp(arg, "--", 2) != 0)
        return false;
    read_name(arg, name);
    return find_option(name) >= 0;
}

/* Names of the options in mpirun, srun and other launchers. */
static const struct {
    const char *name;
    enum option option;
} other_names[] = {
    {"n", OPT_nproc_per_node},
    {"np", OPT_nproc_per_node},
    {"nproc", OPT_nproc_per_node},
    {"nprocs", OPT_nproc_per_node},
    {"ntasks_per_node", OPT_nproc_per_node},
    {"ppn", OPT_nproc_per_node},
    {"N", OPT_nnodes},
    {"nodes", OPT_nnodes},
    {"H", OPT_hosts},
    {"host", OPT_hosts},
    {"hosts_file", OPT_hostfile},
    {"machinefile", OPT_hostfile},
};

static lks_status unknown(const char *arg, const char *name)
{
    char as_listed[64];
    const char *shown = lks__shown(arg, 80);
    const char *near = NULL;
    const size_t n = strcspn(name, "=");
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0] && near == NULL; i++)
        near = strncmp(name, other_names[i].name, n) == 0 && other_names[i].name[n] == '\0'
                   ? run_names[other_names[i].option]
                   : NULL;
    near = near != NULL ? near : lks__nearest(name, run_names, N_OPTIONS);
    if (near != NULL)
        run_write_name(find_option(near), as_listed, sizeof as_listed);
    return lks__fail(LKS_ERR_CONFIG,
                     near ? "%s: there is no such option; did you mean %s? Write PROGRAM's own "
                            "arguments after it"
                          : "%s: there is no such option; `lockstep run --help` lists all%s",
                     shown, near ? as_listed : "");
}

static int letter_option(const char *arg)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (arg[0] == '-' && arg[1] != '-' && options[i].letter[0] != '\0' &&
            arg[1] == options[i].letter[0] && (arg[2] == '\0' || arg[2] == '='))
            return i;
    return -1;
}

/* Read argv[*i_p], and the next word if that is its value. */
static lks_status read_option(struct run *r, char **argv, int argc, int *i_p)
{
    const char *arg = argv[*i_p], *value = strchr(arg, '=');
    char name[64] = "", shown[72];
    bool bare = false, is_ignored = false;
    int option = letter_option(arg);
    if (arg[1] == '-')
        read_name(arg, name);
    if (option < 0 && strncmp(arg, "--", 2) == 0)
        option = find_option(name);
    if (option >= 0)
        bare = *options[option].value == '\0';
    else if (strncmp(arg, "--", 2) != 0 || !(is_ignored = is_foreign(name, &bare)))
        return unknown(arg, arg[0] == '-' && arg[1] == '-' ? name : arg + 1);
    snprintf(shown, sizeof shown, "--%s", name);
    if (option >= 0) /* the option may have been given by its letter */
        run_write_name(option, shown, sizeof shown);
    const bool all_help = option == OPT_help && value != NULL && strcmp(value, "=all") == 0;
    if (bare && value != NULL && !all_help)
        return lks__fail(LKS_ERR_CONFIG, "%s takes no value", shown);
    value = value != NULL ? value + 1 : NULL;
    if (!bare && value == NULL) {
        if (*i_p + 1 >= argc)
            return lks__fail(LKS_ERR_CONFIG, "%s needs a value", shown);
        value = argv[++*i_p];
    }
    if (is_ignored)
        fprintf(stderr, "lockstep run: not used here: --%s\n", name);
    else
        r->given[option] = bare ? "" : value;
    return LKS_OK;
}

/* --ranks is --nproc-per-node. */
static lks_status merge_ranks(struct run *r)
{
    const char *a = r->given[OPT_ranks], *b = r->given[OPT_nproc_per_node];
    if (a != NULL && b != NULL && strcmp(a, b) != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "--ranks=%s and --nproc-per-node=%s are one option by two names: give "
                         "one of them",
                         lks__shown(a, 32), lks__shown(b, 32));
    if (a != NULL)
        r->given[OPT_nproc_per_node] = a;
    return LKS_OK;
}

lks_status run_read_options(struct run *r, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-' || strcmp(argv[i], "--") == 0) {
            r->launch.argv = argv + i + (argv[i][0] == '-');
            break;
        }
        LKS__TRY(read_option(r, argv, argc, &i));
        if (r->given[OPT_help] != NULL)
            return LKS_OK;
    }
    LKS__TRY(merge_ranks(r));
    /* As in torchrun, a missing option may be in the environment. */
    for (int i = 0; i < N_OPTIONS; i++) {
        char name[64] = "PET_";
        for (size_t c = 0; run_names[i][c] != '\0'; c++)
            name[c + 4] = (char)(run_names[i][c] == '_' ? '_' : run_names[i][c] - 'a' + 'A');
        if (r->given[i] == NULL && *options[i].value != '\0' && i != OPT_ranks)
            r->given[i] = getenv(name);
    }
    return LKS_OK;
}
