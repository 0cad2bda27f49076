/* lockstep run: starts the ranks of any program, as torchrun does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tool.h"
#include "comm/store/address.h"
#include "comm/store/store.h"
#include "run.h"

/* --- several hosts with one command ----------------------------------------------------------- */

static lks_status read_hosts(struct run *r)
{
    const char *list = r->given[OPT_hosts], *file = r->given[OPT_hostfile];
    if (list != NULL && file != NULL)
        return lks__fail(LKS_ERR_CONFIG, "give either --hosts or --hostfile, not both");
    if (list == NULL && file == NULL && r->given[OPT_rsh] != NULL &&
        r->given[OPT_rsh] != getenv("PET_RSH"))
        return lks__fail(LKS_ERR_CONFIG, "--rsh needs --hosts or --hostfile");
    if ((list != NULL || file != NULL) &&
        (r->given[OPT_nnodes] != NULL || r->given[OPT_node_rank] != NULL))
        return lks__fail(LKS_ERR_CONFIG, "--hosts and --hostfile set the number of nodes; "
                                         "leave out --nnodes and --node-rank");
    if (list != NULL)
        return lks__hosts_parse(list, r->launch.nproc, r->hosts, &r->n_hosts);
    return file != NULL ? lks__hosts_read(file, r->launch.nproc, r->hosts, &r->n_hosts) : LKS_OK;
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* The first host as other hosts reach it: ssh's USER@HOST without the user. */
static const char *first_host(const struct run *r)
{
    const char *name = r->hosts[0].name, *at = strrchr(name, '@');
    return at != NULL ? at + 1 : name;
}

/* The first host serves the others. They must not reach themselves at its name, and it must not
 * listen at an address that only it can reach. */
static lks_status check_first_host(const struct run *r)
{
    const char *first = first_host(r);
    char number[LKS__NUMBER_BYTES], advice[LKS__NUMBER_BYTES];
    int other = 1;
    if (r->given[OPT_master_addr] != NULL || r->given[OPT_rdzv_endpoint] != NULL)
        return LKS_OK;
    while (other < r->n_hosts &&
           (is_loopback(r->hosts[other].name) || strcmp(r->hosts[other].name, first) == 0))
        other++;
    if (other >= r->n_hosts || !(is_loopback(first) || lks__host_is_here(first)) ||
        !lks__address_is_loopback(first, number))
        return LKS_OK;
    lks__address_advice(advice);
    if (is_loopback(first))
        return lks__fail(LKS_ERR_CONFIG,
                         "the first host is %s, at which host %s would reach itself: use the name "
                         "that this host has in the network, or give its address, such as "
                         "--master-addr=%s",
                         first, r->hosts[other].name, advice);
    return lks__fail(LKS_ERR_CONFIG,
                     "the first host is %s, and its address here is %s (see /etc/hosts), which "
                     "host %s can't reach: give this machine's address in the network, such as "
                     "--master-addr=%s",
                     first, number, r->hosts[other].name, advice);
}

/* Start a launcher on each host, with the options that were given. */
static lks_status launch_hosts(struct run *r, int *code_p)
{
    static const bool own[N_OPTIONS] = {
        [OPT_hosts] = true,  [OPT_hostfile] = true,       [OPT_rsh] = true,
        [OPT_nnodes] = true, [OPT_nproc_per_node] = true, [OPT_standalone] = true,
        [OPT_ranks] = true,  [OPT_module] = true /* use_python() has replaced it */};
    char *words[N_OPTIONS + 3] = {NULL};
    const char *link_s = getenv(LKS__LINK_ENV); /* LKS__LINK_ENV also holds the option's value */
    int n = 0;
    if (link_s != NULL && *link_s != '\0')
        r->given[OPT_link_timeout] = link_s;
    bool made = asprintf(&words[n++], "--nnodes=%d", r->n_hosts) >= 0;
    if (r->given[OPT_master_addr] == NULL && r->given[OPT_rdzv_endpoint] == NULL)
        made = made && asprintf(&words[n++], "--master-addr=%s", first_host(r)) >= 0;
    for (int i = 0; i < N_OPTIONS && made; i++) {
        bool bare = !run_takes_value((enum option)i);
        if (r->given[i] != NULL && !own[i])
            made = asprintf(&words[n++], bare ? "--%s" : "--%s=%s", run_names[i], r->given[i]) >= 0;
    }
    lks_status st = LKS_OK;
    lks__hosts_options o = {r->launch.self,    r->hosts, r->n_hosts,
                            r->given[OPT_rsh], words,    r->launch.argv};
    if (!made) {
        words[n - 1] = NULL;
        st = lks__no_memory("for a command");
    } else {
        unsetenv("PET_HOSTS"); /* this host's launcher would read them */
        unsetenv("PET_HOSTFILE");
        unsetenv("PET_RSH");
        st = lks__hosts_launch(&o, code_p);
    }
    for (int i = 0; i < n; i++)
        free(words[i]);
    return st;
}

/* Read the connection to the launcher on another host that started this one, if any. */
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

/* torchrun accepts a Python script as PROGRAM, or with -m the name of a module. */
static lks_status use_python(struct run *r)
{
    char *const *given = r->launch.argv;
    const char *program = given[0], *dot = strrchr(program, '.');
    const bool module = r->given[OPT_module] != NULL;
    int argc = 0;
    if (!module && (dot == NULL || strcmp(dot, ".py") != 0 || access(program, F_OK) != 0 ||
                    (strchr(program, '/') != NULL && access(program, X_OK) == 0)))
        return LKS_OK;
    while (given[argc] != NULL)
        argc++;
    char **words = calloc((size_t)argc + 4, sizeof *words); /* never freed */
    LKS__MEMORY(words, "for %d arguments", argc);
    words[0] = "python3";
    words[1] = "-u";
    if (module)
        words[2] = "-m";
    memcpy(words + 2 + module, given, (size_t)argc * sizeof *words);
    r->launch.argv = words;
    if (!r->launch.quiet)
        fprintf(stderr, "lockstep run: %s is run by python3 -u%s\n", lks__shown(program, 200),
                module ? " -m" : "");
    return LKS_OK;
}

static lks_status read_all(struct run *r)
{
    LKS__TRY(run_read_values(r));
    LKS__TRY(read_lifeline(r));
    LKS__TRY(read_hosts(r));
    LKS__TRY(run_read_nodes(r));
    LKS__TRY(check_first_host(r));
    if (r->launch.argv == NULL || r->launch.argv[0] == NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "there is no PROGRAM to run; `lockstep run --help` shows the syntax");
    return use_python(r);
}

int tool_run(int argc, char **argv)
{
    static struct run run;
    int code = TOOL_FAILED;
    run.launch.self = "lockstep run";
    lks_status st = run_read_options(&run, argc, argv);
    if (st == LKS_OK && run.given[OPT_help] != NULL) {
        run_print_usage();
        return TOOL_OK;
    }
    LKS__THEN(st, read_all(&run));
    LKS__THEN(st, run.n_hosts > 0 ? launch_hosts(&run, &code) : lks__launch(&run.launch, &code));
    if (st != LKS_OK)
        return tool_fail("run", st);
    return run.launch.lifeline ? lks__lifeline_code(code) : code;
}
