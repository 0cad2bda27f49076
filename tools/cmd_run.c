/* lockstep run: torchrun's part, for any program. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/nearest.h"
#include "launch/hosts.h"
#include "launch/launch.h"
#include "net/address.h"
#include "net/store.h"
#include "tool.h"

enum { MAX_RANKS = 1024 };

#define INDENT "                              "

/* name, short name, default or meaning of the value ("" takes none), help */
#define OPTIONS(X)                                                                                 \
    X(standalone, "", "", "all ranks are on this machine (as they are without it)")                \
    X(nproc_per_node, "", "1", "ranks to start: a number; cpu, gpu or auto for one on each")       \
    X(nnodes, "", "1", "nodes that run this same command: N, or MIN:MAX")                          \
    X(node_rank, "", "N", "this node's number; without it, in the order in which they come")       \
    X(hosts, "", "HOST:N,...", "start this on these hosts, N ranks on each, through ssh")          \
    X(hostfile, "", "FILE", "... named in a file, one a line")                                     \
    X(rsh, "", "COMMAND", "... through this command, which takes a host and a command line")       \
    X(master_addr, "", "127.0.0.1", "address of the first node")                                   \
    X(master_port, "", "29500", "... and port, where nodes meet; with one node, the ranks'")       \
    X(rdzv_endpoint, "", "HOST:PORT", "both of these in one")                                      \
    X(rdzv_backend, "", "static", "static or c10d: nodes meet in the same way")                    \
    X(local_addr, "", "ADDR", "this node's address, as others reach it")                           \
    X(virtual_ranks, "", "V", "start the most ranks that divide V evenly (with --nnodes=MIN:MAX)") \
    X(allow_uneven, "", "", "... or any number up to V")                                           \
    X(max_restarts, "", "0", "new starts of all ranks after one has failed")                       \
    X(rdzv_id, "", "ID", "the job's name, as ranks see it in TORCHELASTIC_RUN_ID")                 \
    X(role, "", "default", "ROLE_NAME of the ranks")                                               \
    X(log_dir, "", "DIR", "write both streams of each rank to files in a new folder of DIR")       \
    X(redirects, "r", "WHICH",                                                                     \
      "streams that go to files only: 0 none, 1 stdout, 2 stderr,\n" INDENT                        \
      "3 both, or RANK:N,... by local rank")                                                       \
    X(tee, "t", "WHICH", "streams that go to the console and to files; WHICH as above")            \
    X(local_ranks_filter, "", "RANKS", "show these local ranks' streams only: 0,1,...")            \
    X(signals_to_handle, "", "LIST",                                                               \
      "signals that are passed on to the ranks:\n" INDENT                                          \
      "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2")                                             \
    X(shutdown_timeout, "", "30", "seconds from such a signal until SIGKILL")                      \
    X(help, "h", "", "this text")

enum option {
#define X(name, letter, value, help) OPT_##name,
    OPTIONS(X)
#undef X
        N_OPTIONS
};

static const char *const names[N_OPTIONS] = {
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

/* torchrun's without a meaning here; docs/launch.md says why. `bare`: takes no value there. */
static const struct {
    const char *name;
    bool bare;
} foreign[] = {
    {"monitor_interval", false}, {"start_method", false},      {"event_log_handler", false},
    {"logs_specs", false},       {"numa_binding", false},      {"rdzv_conf", false},
    {"no_python", true},         {"virtual_local_rank", true},
};

/* What the options say, with room for the tables that the launch borrows. */
struct run {
    lks__launch_options launch;
    const char *given[N_OPTIONS]; /* values; NULL: not given */
    unsigned tee[MAX_RANKS], redirect[MAX_RANKS];
    bool shown[MAX_RANKS];
    char endpoint[256];
    char token[LKS__TOKEN_BYTES];
    struct lks__host hosts[LKS__MAX_HOSTS];
    int n_hosts;
};

static void print_usage(void)
{
    fputs("Usage: lockstep run [OPTIONS] [--] PROGRAM [ARGS]\n"
          "\n"
          "Starts ranks of PROGRAM with torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE,\n"
          "MASTER_ADDR, ...). When a rank dies, the others are ended, and its exit code is this\n"
          "command's. PROGRAM is looked for in PATH.\n"
          "\n",
          stdout);
    for (int i = 0; i < N_OPTIONS; i++) {
        char name[64];
        const char *value = options[i].value;
        size_t n = (size_t)snprintf(name, sizeof name, "%s%s%s--%s", *options[i].letter ? "-" : "",
                                    options[i].letter, *options[i].letter ? ", " : "", names[i]);
        for (char *c = strchr(name, '_'); c != NULL; c = strchr(c, '_'))
            *c = '-';
        if (*value != '\0' && n < sizeof name)
            snprintf(name + n, sizeof name - n, "=%s", value);
        printf("  %-28s%s%s\n", name, strlen(name) > 27 ? "\n                              " : "",
               options[i].help);
    }
    fputs(
        "\n"
        "Options may be written with - or _, and their values behind = or as the next word. What\n"
        "isn't given here is taken from the environment, if it has PET_OPTION, as torchrun's.\n",
        stdout);
}

/* --- the command line --------------------------------------------------------------------- */

static bool is_foreign(const char *name, bool *bare_p)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (strcmp(name, foreign[i].name) == 0) {
            *bare_p = foreign[i].bare;
            return true;
        }
    return false;
}

/* Which option `name` (written with _) is, or -1. */
static int find_option(const char *name)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static lks_status unknown(const char *arg, const char *name)
{
    char shown[80];
    lks__escape(shown, sizeof shown, arg, strlen(arg));
    const char *near = lks__nearest(name, names, N_OPTIONS);
    return lks__fail(LKS_ERR_CONFIG,
                     near ? "%s: there is no such option; did you mean --%s? What belongs to "
                            "PROGRAM stands behind it"
                          : "%s: there is no such option; `lockstep run --help` lists all%s",
                     shown, near ? near : "");
}

static int letter_option(const char *arg)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (arg[0] == '-' && arg[1] != '-' && options[i].letter[0] != '\0' &&
            arg[1] == options[i].letter[0] && (arg[2] == '\0' || arg[2] == '='))
            return i;
    return -1;
}

/* argv[*i_p] and, where its value is the next word, that. */
static lks_status read_option(struct run *r, char **argv, int argc, int *i_p)
{
    const char *arg = argv[*i_p], *value = strchr(arg, '=');
    char name[64];
    bool bare = false, nothing = false;
    size_t n = strcspn(arg, "=");
    snprintf(name, sizeof name, "%.*s", n > 2 && n - 2 < sizeof name ? (int)n - 2 : 0, arg + 2);
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : *c;
    int option = letter_option(arg);
    if (option < 0 && strncmp(arg, "--", 2) == 0)
        option = find_option(name);
    if (option >= 0)
        bare = *options[option].value == '\0';
    else if (strncmp(arg, "--", 2) != 0 || !(nothing = is_foreign(name, &bare)))
        return unknown(arg, arg[0] == '-' && arg[1] == '-' ? name : arg + 1);
    if (bare && value != NULL)
        return lks__fail(LKS_ERR_CONFIG, "--%s takes no value", name);
    value = value != NULL ? value + 1 : NULL;
    if (!bare && value == NULL) {
        if (*i_p + 1 >= argc)
            return lks__fail(LKS_ERR_CONFIG, "--%s needs a value", name);
        value = argv[++*i_p];
    }
    if (nothing)
        fprintf(stderr, "lockstep run: not used here: --%s\n", name);
    else
        r->given[option] = bare ? "" : value;
    return LKS_OK;
}

static lks_status read_command_line(struct run *r, int argc, char **argv)
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
    /* torchrun's way: what isn't given may be in the environment. */
    for (int i = 0; i < N_OPTIONS; i++) {
        char name[64] = "PET_";
        for (size_t c = 0; names[i][c] != '\0'; c++)
            name[c + 4] = (char)(names[i][c] == '_' ? '_' : names[i][c] - 'a' + 'A');
        if (r->given[i] == NULL && *options[i].value != '\0')
            r->given[i] = getenv(name);
    }
    return LKS_OK;
}

/* --- values ------------------------------------------------------------------------------- */

static lks_status wrong(enum option option, const char *text, const char *must_be)
{
    char shown[80], name[64];
    snprintf(name, sizeof name, "%s", names[option]);
    for (char *c = strchr(name, '_'); c != NULL; c = strchr(c, '_'))
        *c = '-';
    return lks__fail(LKS_ERR_CONFIG, "--%s must be %s, not \"%s\"", name, must_be,
                     lks__escape(shown, sizeof shown, text, strlen(text)));
}

static int64_t count_gpus(void)
{
    char path[32];
    int64_t n = 0;
    for (;; n++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", (int)n);
        if (access(path, F_OK) != 0)
            return n;
    }
}

static lks_status read_nproc(const char *text, int *nproc_p)
{
    int64_t n;
    bool is_auto = strcmp(text, "auto") == 0;
    if (strcmp(text, "gpu") == 0 || (is_auto && count_gpus() > 0))
        n = count_gpus();
    else if (is_auto || strcmp(text, "cpu") == 0)
        n = lks__cpu_count();
    else if (!lks__parse_int(text, &n) || n < 1 || n > MAX_RANKS)
        return wrong(OPT_nproc_per_node, text, "auto, cpu, gpu or a whole number from 1 to 1024");
    if (n == 0)
        return lks__fail(LKS_ERR_CONFIG, "--nproc-per-node=gpu: there is no /dev/nvidia0 here");
    *nproc_p = (int)n;
    return LKS_OK;
}

/* "3", or "0:1,2:3" by local rank. */
static lks_status read_streams(enum option option, const char *text, int nproc, unsigned *bits)
{
    static const char must_be[] = "0, 1, 2, 3, or RANK:N,... with local ranks and N one of these";
    int64_t all;
    if (lks__parse_int(text, &all) && all >= 0 && all <= 3) {
        for (int r = 0; r < nproc; r++)
            bits[r] = (unsigned)all;
        return LKS_OK;
    }
    for (const char *at = text; *at != '\0';) {
        char *colon, *end;
        long rank = strtol(at, &colon, 10);
        if (colon == at || *colon != ':' || rank < 0 || rank >= nproc || colon[1] < '0' ||
            colon[1] > '3')
            return wrong(option, text, must_be);
        bits[rank] = (unsigned)(colon[1] - '0');
        end = colon + 2;
        if (*end != '\0' && (*end != ',' || end[1] == '\0'))
            return wrong(option, text, must_be);
        at = end + (*end == ',');
    }
    return *text == '\0' ? wrong(option, text, must_be) : LKS_OK;
}

static lks_status read_shown(const char *text, int nproc, bool *shown)
{
    for (const char *at = text;; at++) {
        char *end;
        long rank = strtol(at, &end, 10);
        if (end == at || rank < 0 || rank >= nproc || (*end != '\0' && *end != ','))
            return wrong(OPT_local_ranks_filter, text, "local ranks, as in 0,1");
        shown[rank] = true;
        if (*end == '\0')
            return LKS_OK;
        at = end;
    }
}

static lks_status read_signals(const char *text, uint64_t *signals_p)
{
    uint64_t bits = 0;
    for (const char *at = text; *at != '\0';) {
        size_t n = strcspn(at, ",");
        int sig = 1;
        for (; sig < 32; sig++) {
            const char *name = sigabbrev_np(sig);
            if (n > 3 && strncmp(at, "SIG", 3) == 0 && name != NULL && strlen(name) == n - 3 &&
                strncmp(at + 3, name, n - 3) == 0)
                break;
        }
        if (sig == 32 || sig == SIGKILL || sig == SIGSTOP || sig == SIGCHLD || sig == SIGTSTP)
            return wrong(OPT_signals_to_handle, text, "names of signals, as in SIGTERM,SIGINT");
        bits |= (uint64_t)1 << sig;
        at += n + (at[n] == ',');
    }
    *signals_p = bits;
    return bits != 0 ? LKS_OK
                     : wrong(OPT_signals_to_handle, text, "names of signals, as in SIGTERM,SIGINT");
}

static lks_status read_number(const struct run *r, enum option option, int least, int most,
                              int *value_p)
{
    int64_t n;
    char must_be[64];
    const char *text = r->given[option];
    if (text == NULL)
        return LKS_OK;
    snprintf(must_be, sizeof must_be, "a whole number from %d to %d", least, most);
    if (!lks__parse_int(text, &n) || n < least || n > most)
        return wrong(option, text, must_be);
    *value_p = (int)n;
    return LKS_OK;
}

static lks_status read_nnodes(const char *text, lks__launch_options *l)
{
    char *end;
    long min = strtol(text, &end, 10), max = min;
    if (end != text && *end == ':')
        max = strtol(text = end + 1, &end, 10);
    if (end == text || *end != '\0' || min < 1 || max < min || max > MAX_RANKS)
        return wrong(OPT_nnodes, text, "a whole number, or MIN:MAX");
    l->min_nodes = (int)min;
    l->max_nodes = (int)max;
    return LKS_OK;
}

static lks_status read_nodes(struct run *r)
{
    lks__launch_options *l = &r->launch;
    const char *text = r->given[OPT_nnodes], *backend = r->given[OPT_rdzv_backend];
    l->min_nodes = l->max_nodes = 1;
    if (text != NULL)
        LKS__TRY(read_nnodes(text, l));
    bool several = l->max_nodes > 1;
    if (several && r->given[OPT_standalone] != NULL)
        return lks__fail(LKS_ERR_CONFIG, "--standalone is for one node, and --nnodes is %s", text);
    if (backend != NULL && strcmp(backend, "static") != 0 && strcmp(backend, "c10d") != 0)
        return wrong(OPT_rdzv_backend, backend, "static or c10d");
    l->node_rank = -1;
    LKS__TRY(read_number(r, OPT_node_rank, 0, l->max_nodes - 1, &l->node_rank));
    LKS__TRY(read_number(r, OPT_virtual_ranks, 1, 1 << 20, &l->virtual_ranks));
    l->allow_uneven = r->given[OPT_allow_uneven] != NULL;
    l->local_addr = r->given[OPT_local_addr];
    l->endpoint_host = r->given[OPT_master_addr];
    l->endpoint_port = several ? 29500 : 0;
    LKS__TRY(read_number(r, OPT_master_port, 0, 65535, &l->endpoint_port));
    if ((text = r->given[OPT_rdzv_endpoint]) != NULL && several) {
        l->endpoint_port = 29400;
        LKS__TRY(lks__address_parse("--rdzv-endpoint", text, r->endpoint, sizeof r->endpoint,
                                    &l->endpoint_port));
        l->endpoint_host = r->endpoint;
    }
    if (r->n_hosts > 0)
        return LKS_OK;
    l->token = r->token[0] != '\0' ? r->token : getenv(LKS__TOKEN_ENV);
    if (several && (l->token == NULL || strlen(l->token) < 16 || strlen(l->token) > 128))
        return lks__fail(LKS_ERR_CONFIG,
                         "with several nodes, %s must hold the job's secret in the environment of "
                         "each: 16 to 128 characters, the same on all (openssl rand -hex 16 makes "
                         "one)",
                         LKS__TOKEN_ENV);
    return LKS_OK;
}

static lks_status read_values(struct run *r)
{
    lks__launch_options *l = &r->launch;
    const char *text = r->given[OPT_nproc_per_node];
    LKS__TRY(read_nproc(text != NULL ? text : "1", &l->nproc));
    LKS__TRY(read_number(r, OPT_max_restarts, 0, 1000000, &l->max_restarts));
    if ((text = r->given[OPT_shutdown_timeout]) != NULL) {
        char *end;
        l->shutdown_timeout_s = strtod(text, &end);
        if (end == text || *end != '\0' || !(l->shutdown_timeout_s > 0) ||
            l->shutdown_timeout_s > 1e6)
            return wrong(OPT_shutdown_timeout, text, "seconds, more than 0");
    }
    if ((text = r->given[OPT_signals_to_handle]) != NULL)
        LKS__TRY(read_signals(text, &l->signals));
    if ((text = r->given[OPT_tee]) != NULL) {
        LKS__TRY(read_streams(OPT_tee, text, l->nproc, r->tee));
        l->tee = r->tee;
    }
    if ((text = r->given[OPT_redirects]) != NULL) {
        LKS__TRY(read_streams(OPT_redirects, text, l->nproc, r->redirect));
        l->redirect = r->redirect;
    }
    if ((text = r->given[OPT_local_ranks_filter]) != NULL) {
        LKS__TRY(read_shown(text, l->nproc, r->shown));
        l->shown = r->shown;
    }
    l->log_dir = r->given[OPT_log_dir];
    l->run_id = r->given[OPT_rdzv_id];
    l->role = r->given[OPT_role];
    return LKS_OK;
}

/* --- several hosts by one command --------------------------------------------------------- */

static lks_status read_hosts(struct run *r)
{
    const char *list = r->given[OPT_hosts], *file = r->given[OPT_hostfile];
    if (list != NULL && file != NULL)
        return lks__fail(LKS_ERR_CONFIG, "either --hosts or --hostfile, not both");
    if (list == NULL && file == NULL && r->given[OPT_rsh] != NULL)
        return lks__fail(LKS_ERR_CONFIG, "--rsh is for --hosts and --hostfile");
    if ((list != NULL || file != NULL) &&
        (r->given[OPT_nnodes] != NULL || r->given[OPT_node_rank] != NULL))
        return lks__fail(LKS_ERR_CONFIG, "--hosts and --hostfile say themselves how many nodes "
                                         "there are; leave out --nnodes and --node-rank");
    if (list != NULL)
        return lks__hosts_parse(list, r->launch.nproc, r->hosts, &r->n_hosts);
    return file != NULL ? lks__hosts_read(file, r->launch.nproc, r->hosts, &r->n_hosts) : LKS_OK;
}

/* What was given, as every node's launcher gets it. */
static lks_status launch_hosts(const struct run *r, int *code_p)
{
    static const bool own[N_OPTIONS] = {
        [OPT_hosts] = true,  [OPT_hostfile] = true,       [OPT_rsh] = true,
        [OPT_nnodes] = true, [OPT_nproc_per_node] = true, [OPT_standalone] = true};
    char *words[N_OPTIONS + 3] = {NULL};
    int n = 0;
    bool made = asprintf(&words[n++], "--nnodes=%d", r->n_hosts) >= 0;
    if (r->given[OPT_master_addr] == NULL && r->given[OPT_rdzv_endpoint] == NULL)
        made = made && asprintf(&words[n++], "--master-addr=%s", r->hosts[0].name) >= 0;
    for (int i = 0; i < N_OPTIONS && made; i++) {
        bool bare = *options[i].value == '\0';
        if (r->given[i] != NULL && !own[i])
            made = asprintf(&words[n++], bare ? "--%s" : "--%s=%s", names[i], r->given[i]) >= 0;
    }
    lks_status st = LKS_OK;
    lks__hosts_options o = {r->launch.self,    r->hosts, r->n_hosts,
                            r->given[OPT_rsh], words,    r->launch.argv};
    if (!made) {
        words[n - 1] = NULL;
        st = lks__fail(LKS_ERR_NOMEM, "no memory for a command");
    } else {
        st = lks__hosts_launch(&o, code_p);
    }
    for (int i = 0; i < n; i++)
        free(words[i]);
    return st;
}

/* Were we started by another host's launcher? */
static lks_status read_lifeline(struct run *r)
{
    const char *role = getenv(LKS__LIFELINE_ENV);
    if (role == NULL)
        return LKS_OK;
    r->launch.lifeline = true;
    r->launch.quiet = strcmp(role, "first") != 0;
    unsetenv(LKS__LIFELINE_ENV);
    return lks__lifeline_token(r->token, sizeof r->token);
}

int tool_run(int argc, char **argv)
{
    static struct run run;
    int code = TOOL_FAILED;
    run.launch.self = "lockstep run";
    lks_status st = read_command_line(&run, argc, argv);
    if (st == LKS_OK && run.given[OPT_help] != NULL) {
        print_usage();
        return TOOL_OK;
    }
    if (st == LKS_OK)
        st = read_values(&run);
    if (st == LKS_OK)
        st = read_lifeline(&run);
    if (st == LKS_OK)
        st = read_hosts(&run);
    if (st == LKS_OK)
        st = read_nodes(&run);
    if (st == LKS_OK && (run.launch.argv == NULL || run.launch.argv[0] == NULL))
        st = lks__fail(LKS_ERR_CONFIG, "there is no PROGRAM to run; `lockstep run --help` shows "
                                       "how to write it");
    if (st == LKS_OK)
        st = run.n_hosts > 0 ? launch_hosts(&run, &code) : lks__launch(&run.launch, &code);
    return st == LKS_OK ? code : tool_fail("run", st);
}
