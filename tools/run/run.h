/* tools/run/run.h - `lockstep run`: from the command line to a launch. */
#pragma once

#include "comm/store/store.h"
#include "launch/launch.h"
#include "launch/nodes/hosts.h"

enum { RUN_MAX_RANKS = 1024 };

/* name, short name, default or meaning of the value ("" takes none), help */
#define OPTIONS(X)                                                                                 \
    X(standalone, "", "", "all ranks are on this machine (the default)")                           \
    X(nproc_per_node, "", "1", "number of ranks to start; cpu, gpu or auto: one per core or GPU")  \
    X(ranks, "", "1", "the same as --nproc-per-node, on one host")                                 \
    X(nnodes, "", "1", "nodes that run this command: N, or MIN:MAX")                               \
    X(node_rank, "", "N", "this node's number; by default nodes are numbered as they join")        \
    X(hosts, "", "HOST:N,...", "start this on these hosts through ssh, with N ranks on each")      \
    X(hostfile, "", "FILE", "as --hosts, from a file with one host per line")                      \
    X(rsh, "", "COMMAND", "use COMMAND instead of ssh; it gets a host and a command line")         \
    X(master_addr, "", "127.0.0.1", "address of the first node")                                   \
    X(master_port, "", "29500", "port of the first node; with one node, MASTER_PORT of the ranks") \
    X(rdzv_endpoint, "", "HOST:PORT", "--master-addr and --master-port in one option")             \
    X(rdzv_backend, "", "static", "static or c10d: nodes meet in the same way with both")          \
    X(local_addr, "", "ADDR", "address at which other nodes reach this node")                      \
    X(virtual_ranks, "", "V", "start the most ranks that divide V evenly (with --nnodes=MIN:MAX)") \
    X(allow_uneven, "", "", "with --virtual-ranks: any number of ranks up to V")                   \
    X(max_restarts, "", "0", "times to restart all ranks after one has failed")                    \
    X(rdzv_id, "", "ID", "name of the job, TORCHELASTIC_RUN_ID of the ranks")                      \
    X(module, "m", "", "PROGRAM is the name of a Python module: python3 -u -m PROGRAM")            \
    X(role, "", "default", "ROLE_NAME of the ranks")                                               \
    X(log_dir, "", "DIR", "write both streams of each rank to files in a new folder of DIR")       \
    X(redirects, "r", "WHICH",                                                                     \
      "streams that go only to files: 0 none, 1 stdout, 2 stderr, "                                \
      "3 both, or RANK:N,... by local rank")                                                       \
    X(tee, "t", "WHICH", "streams that go to the console and to files; WHICH as above")            \
    X(local_ranks_filter, "", "RANKS", "show only the streams of these local ranks: 0,1,...")      \
    X(signals_to_handle, "", "LIST",                                                               \
      "signals to pass on to the ranks: SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2")            \
    X(shutdown_timeout, "", "30",                                                                  \
      "seconds from a signal, or the last heartbeat after it, to SIGKILL")                         \
    X(link_timeout, "", "5",                                                                       \
      "seconds without a packet after which a node counts as lost; give the "                      \
      "same value on all nodes")                                                                   \
    X(help, "h", "", "this text")

enum option {
#define X(name, letter, value, help) OPT_##name,
    OPTIONS(X)
#undef X
        N_OPTIONS
};

/* The options' values, and the arrays that the launch borrows. */
struct run {
    lks__launch_options launch;
    const char *given[N_OPTIONS]; /* NULL: not given */
    unsigned tee[RUN_MAX_RANKS], redirect[RUN_MAX_RANKS];
    bool shown[RUN_MAX_RANKS];
    char endpoint[256];
    char token[LKS__TOKEN_BYTES];
    struct lks__host hosts[LKS__MAX_HOSTS];
    int n_hosts;
};

extern const char *const run_names[N_OPTIONS]; /* written with _ */
bool run_takes_value(enum option option);
/* Print "--nproc-per-node" for nproc_per_node. Returns the length. */
size_t run_write_name(enum option option, char *out, size_t bytes);
void run_print_usage(void);
/* True if "--nnodes=2" or the like is an option of `lockstep run`. */
bool run_has_option(const char *arg);

/* Read the command line and PET_ variables into `given` and launch.argv. */
lks_status run_read_options(struct run *r, int argc, char **argv);
/* Convert `given` into the launch. */
lks_status run_read_values(struct run *r);
lks_status run_read_nodes(struct run *r); /* after the hosts, if any */
