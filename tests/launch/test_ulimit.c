/* What a shell's ulimit leaves: a small stack is enough, and few descriptors are raised. */
#include "support.h"

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/system/sys.h"
#include "launch/nodes/hosts.h"

static lks_test_result limited(const char *limit, const char *words)
{
    const char *command = lks_test_text("%s; exec '%s' %s", limit, LKS_TEST_TOOL, words);
    return lks_test_shell(command);
}

/* 256 KiB, for one rank and for two, with threads. */
TEST(test_stack)
{
    const char *data = lks_test_folder(), *text = "";
    for (int i = 0; i < 40; i++)
        text = lks_test_text("%sline %d of a text\n", text, i * i);
    lks_test_write(lks_test_text("%s/t", data), text, strlen(text));
    lks_test_result r =
        limited("ulimit -s 256", lks_test_text("prep char '--input=%s/t' '--out=%s'", data, data));
    assert_string_equal(r.err, lks_test_text("lockstep prep: wrote the tokens to %s\n", data));
    assert_int_equal(r.exit_code, 0);
    for (int ranks = 1; ranks <= 2; ranks++) {
        r = limited("ulimit -s 256",
                    lks_test_text("train '--dataset=%s' '--out_dir=%s/run%d' --nproc_per_node=%d "
                                  "--n_layer=1 --n_head=1 --n_embd=16 --block_size=8 "
                                  "--batch_size=2 --gradient_accumulation_steps=2 --max_iters=2 "
                                  "--eval_iters=1 --threads=2",
                                  data, data, ranks, ranks));
        if (r.exit_code != 0) /* stderr may have the warning that oneDNN is missing */
            fail_msg("%d ranks: exit code %d: %s", ranks, r.exit_code, r.err);
    }
    assert_exits(0,
                 limited("ulimit -s 256", lks_test_text("sample '--out_dir=%s/run1' --start=line "
                                                        "--num_samples=1 --max_new_tokens=4",
                                                        data)));
    r = assert_exits(1, limited("ulimit -s 255", "--version"));
    assert_string_equal(r.err, "lockstep: the limit on the stack is 255 KiB: at least 256 are "
                               "needed; raise `ulimit -s`\n");
}

/* The soft limit is raised to the hard one, as far as a job can need. */
TEST(test_descriptors)
{
    lks_test_result r = assert_exits(
        0, limited("ulimit -Sn 40; ulimit -Hn 500", "run --no-python sh -c 'ulimit -Sn'"));
    assert_string_equal(r.out, "500\n");
}

/* With too few even then, the message names the limit, whatever could not be opened. */
TEST(test_too_few)
{
    /* Each number fails at another call, whatever this program has inherited from its own parent.
     */
    for (int limit = 4; limit <= 24; limit++) {
        assert_exits(
            1,
            limited(lks_test_text("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -n %d", limit),
                    "run --standalone --nproc-per-node=8 true"),
            lks_test_text("this process may open %d files; raise `ulimit -n`", limit));
    }
}

/* The kernel kills a rank that has used its CPU time by SIGKILL. */
TEST(test_cpu_time)
{
    assert_exits(128 + SIGKILL, limited("ulimit -t 600", "run --no-python sh -c 'kill -9 $$'"),
                 "(SIGKILL); the limit on its CPU time (ulimit -t) is 600 seconds");
}

/* A launch on hosts that can't watch for signals starts nothing: it could wait for ever. */
TEST(test_hosts)
{
    static const struct lks__host here = {.name = "localhost", .slots = 1};
    static char *const no_options[] = {NULL}, *const argv[] = {(char *)(uintptr_t) "true", NULL};
    const lks__hosts_options o = {"lockstep run", &here, 1, NULL, no_options, argv};
    struct rlimit before, none;
    int code;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const lks_status st = lks__hosts_launch(&o, &code);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_fails(LKS_ERR_IO, st, "can't watch for signals: no file descriptor is left");
}

/* More nodes than the first one has descriptors for: it says so while it waits. */
TEST(test_many_nodes)
{
    enum { NODES = 12 };
    const char *port = lks_test_text("--master-port=%d", lks_test_free_port());
    const char *nodes = lks_test_text("--nnodes=%d", NODES);
    lks_test_child node[NODES];
    for (int i = 0; i < NODES; i++) {
        const char *command =
            lks_test_text("%s exec '%s' run %s --node-rank=%d --master-addr=127.0.0.1 %s true",
                          i == 0 ? "ulimit -n 24;" : "", LKS_TEST_TOOL, nodes, i, port);
        node[i] = lks_test_start(
            (const char *const[]){"sh", "-c", command, NULL},
            (const char *const[]){"LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef", NULL});
    }
    static const char expected[] =
        "a node can't connect: no file descriptor is left: this process may "
        "open 24 files";
    const char *said = "";
    for (double end = lks__sys_now() + 60 * lks_test_patience();
         strstr(said, expected) == NULL && lks__sys_now() < end; poll(NULL, 0, 50))
        if (lks_test_exists(node[0].err_path))
            said = lks_test_read(node[0].err_path, NULL);
    assert_contains(said, expected);
    for (int i = 0; i < NODES; i++)
        kill(node[i].pid, SIGTERM);
    for (int i = 0; i < NODES; i++)
        lks_test_wait(&node[i], 60);
}

/* Programs that a launch on hosts starts here have signals as the shell had them. */
TEST(test_pipe_signal)
{
    const char *command = lks_test_text("exec '%s' run --hosts=localhost:1 sh -c "
                                        "'grep SigIgn /proc/self/status'",
                                        LKS_TEST_TOOL);
    const lks_test_result r = assert_exits(0, lks_test_shell(command));
    const char *mask = lks_test_find(r.out, "SigIgn:");
    assert_int_equal(strtoull(mask + 7, NULL, 16) >> (SIGPIPE - 1) & 1, 0);
}
