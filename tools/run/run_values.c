/* lockstep run: checks and converts the options' values. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tool.h"
#include "base/number/cpu.h"
#include "comm/store/address.h"
#include "run.h"

static lks_status wrong(enum option option, const char *text, const char *must_be)
{
    char name[64];
    run_write_name(option, name, sizeof name);
    return lks__fail(LKS_ERR_CONFIG, "%s must be %s, not \"%s\"", name, must_be,
                     lks__shown(text, 80));
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

static lks_status read_nproc(enum option option, const char *text, int *nproc_p)
{
    int64_t n;
    bool is_auto = strcmp(text, "auto") == 0;
    if (strcmp(text, "gpu") == 0 || (is_auto && count_gpus() > 0))
        n = count_gpus();
    else if (is_auto || strcmp(text, "cpu") == 0)
        n = lks__cpu_count();
    else if (!lks__parse_int(text, &n) || n < 1 || n > RUN_MAX_RANKS)
        return wrong(option, text, "auto, cpu, gpu or a whole number from 1 to 1024");
    if (n == 0)
        return lks__fail(LKS_ERR_CONFIG, "--%s=gpu: there is no /dev/nvidia0 here",
                         option == OPT_ranks ? "ranks" : "nproc-per-node");
    *nproc_p = (int)n;
    return LKS_OK;
}

/* Read "3", or "0:1,2:3" by local rank. */
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
    const char *number = text;
    char *end;
    long min = strtol(number, &end, 10), max = min;
    if (end != number && *end == ':')
        max = strtol(number = end + 1, &end, 10);
    if (end == number || *end != '\0' || min < 1 || max < min || max > RUN_MAX_RANKS)
        return wrong(OPT_nnodes, text, "a whole number, or MIN:MAX");
    l->min_nodes = (int)min;
    l->max_nodes = (int)max;
    return LKS_OK;
}

lks_status run_read_nodes(struct run *r)
{
    lks__launch_options *l = &r->launch;
    const char *text = r->given[OPT_nnodes], *backend = r->given[OPT_rdzv_backend];
    l->min_nodes = l->max_nodes = 1;
    if (text != NULL)
        LKS__TRY(read_nnodes(text, l));
    bool several = l->max_nodes > 1;
    if (r->given[OPT_ranks] != NULL && (several || r->n_hosts > 1))
        return lks__fail(LKS_ERR_CONFIG,
                         "--ranks is for one host; on several, --nproc-per-node=%d counts the "
                         "ranks of each",
                         l->nproc);
    if (several && r->given[OPT_standalone] != NULL)
        return lks__fail(LKS_ERR_CONFIG, "--standalone is for one node, but --nnodes is %s", text);
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
        l->endpoint_option = "--rdzv-endpoint";
    }
    if (l->endpoint_port == 0 && (several || (r->n_hosts > 1 && r->given[OPT_master_port] != NULL)))
        return lks__fail(LKS_ERR_CONFIG, "with several nodes, --master-port must be from 1 to "
                                         "65535, because all nodes must know it");
    if (r->n_hosts > 0)
        return LKS_OK;
    l->token = r->token[0] != '\0' ? r->token : getenv(LKS__TOKEN_ENV);
    if (several && (l->token == NULL || strlen(l->token) < 16 || strlen(l->token) > 128))
        return lks__fail(LKS_ERR_CONFIG,
                         "with several nodes, %s must be set on each node, to the same secret of "
                         "16 to 128 characters (for example from openssl rand -hex 16)",
                         LKS__TOKEN_ENV);
    return LKS_OK;
}

lks_status run_read_values(struct run *r)
{
    lks__launch_options *l = &r->launch;
    const char *text = r->given[OPT_nproc_per_node];
    LKS__TRY(read_nproc(r->given[OPT_ranks] != NULL ? OPT_ranks : OPT_nproc_per_node,
                        text != NULL ? text : "1", &l->nproc));
    /* With --hosts each host's launcher knows its number, and checks again. */
    const bool hosts = r->given[OPT_hosts] != NULL || r->given[OPT_hostfile] != NULL;
    const int most = hosts ? RUN_MAX_RANKS : l->nproc;
    LKS__TRY(read_number(r, OPT_max_restarts, 0, 1000000, &l->max_restarts));
    if ((text = r->given[OPT_shutdown_timeout]) != NULL) {
        char *end;
        l->shutdown_timeout_s = strtod(text, &end);
        if (end == text || *end != '\0' || !(l->shutdown_timeout_s > 0) ||
            l->shutdown_timeout_s > 1e6)
            return wrong(OPT_shutdown_timeout, text, "seconds, more than 0");
    }
    int link_s;
    LKS__TRY(read_number(r, OPT_link_timeout, LKS__LINK_LEAST_S, LKS__LINK_MOST_S, &link_s));
    if ((text = r->given[OPT_link_timeout]) != NULL && setenv(LKS__LINK_ENV, text, 1) != 0)
        return lks__no_memory("for %s", LKS__LINK_ENV);
    if ((text = r->given[OPT_signals_to_handle]) != NULL)
        LKS__TRY(read_signals(text, &l->signals));
    if ((text = r->given[OPT_tee]) != NULL) {
        LKS__TRY(read_streams(OPT_tee, text, most, r->tee));
        l->tee = r->tee;
    }
    if ((text = r->given[OPT_redirects]) != NULL) {
        LKS__TRY(read_streams(OPT_redirects, text, most, r->redirect));
        l->redirect = r->redirect;
    }
    if ((text = r->given[OPT_local_ranks_filter]) != NULL) {
        LKS__TRY(read_shown(text, most, r->shown));
        l->shown = r->shown;
    }
    l->log_dir = r->given[OPT_log_dir];
    if ((text = r->given[OPT_rdzv_id]) != NULL && strlen(text) > LKS__RUN_ID)
        return wrong(OPT_rdzv_id, text, "at most 255 bytes");
    l->run_id = text;
    l->role = r->given[OPT_role];
    return LKS_OK;
}
