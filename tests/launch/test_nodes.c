/* A job on several nodes, which are launchers on this machine: which nodes join, which are refused,
 * how one node's end ends all nodes, and how a launch goes on with the remaining ones. */
#include "laws/laws.h"
#include "laws/marked.h"
#include "support.h"

#include <glob.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/store/address.h"
#include "comm/store/store.h"
#include "launch/nodes/hosts.h"

static const char secret[] = "0123456789abcdef-secret";

struct node {
    lks_test_child child;
    const char *mark;
};

/* `lockstep run` of a shell script on a node of the job at `port`. */
static struct node start_node(int port, const char *token, const char *const options[],
                              const char *script)
{
    const char *argv[32] = {"lockstep", "run", lks_test_text("--master-port=%d", port)};
    int n = 3;
    for (int i = 0; options[i] != NULL; i++)
        argv[n++] = options[i];
    argv[n++] = "sh";
    argv[n++] = "-c";
    argv[n++] = script;
    argv[n] = NULL;
    struct node node = {.mark = marked_variable()};
    node.child = lks_test_start(
        argv, (const char *const[]){lks_test_text("LOCKSTEP_TOKEN=%s", token), node.mark, NULL});
    return node;
}
#define START(port, script, ...)                                                                   \
    start_node((port), secret, (const char *const[]){__VA_ARGS__, NULL}, (script))
/* Both nodes of a job of two. */
#define START_TWO(a, b, port, script, ...)                                                         \
    struct node a = START(port, script, "--nnodes=2", "--node-rank=0", ##__VA_ARGS__),             \
                b = START(port, script, "--nnodes=2", "--node-rank=1", ##__VA_ARGS__)

static lks_test_result end_of(const struct node *node)
{
    lks_test_result r = lks_test_wait(&node->child, 60);
    marked_assert_gone(node->mark, 2);
    return r;
}

/* Until the ranks have made `n` files in it. */
static void wait_for_files(const char *folder, int n)
{
    lks_test_until(lks_test_count_files(folder) >= n);
}

/* Until the job at the port has more than `n` connections; returns how many. */
static int wait_for_connections(int port, int n)
{
    const char *to = lks_test_text("0100007F:%04X 01 ", port); /* 127.0.0.1, established */
    int found = 0;
    for (int i = 0; i < lks_test_tries(2000) && found <= n; i++) {
        const char *at = lks_test_proc("/proc/net/tcp");
        for (found = 0; (at = strstr(at, to)) != NULL; at++)
            found++;
        usleep(10000);
    }
    assert_true(found > n);
    return found;
}

/* Any id of a job, up to 255 bytes; ranks get it whole. */
TEST(test_ids)
{
    char longest[256];
    memset(longest, 'x', 255);
    longest[255] = '\0';
    const char *const ids[] = {"say \"hello\" \\ 'you'", "caf\xe9 \xff\xfe", "\xc3\xa9 \t",
                               longest};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const int port = lks_test_free_port();
        static const char script[] = "printf '%s\\n' \"$TORCHELASTIC_RUN_ID\"";
        const char *id = lks_test_text("--rdzv-id=%s", ids[i]), *dir = lks_test_folder();
        const char *logs = lks_test_text("--log-dir=%s", dir);
        START_TWO(a, b, port, script, id, logs);
        lks_test_result r[2] = {end_of(&a), end_of(&b)};
        for (int n = 0; n < 2; n++) {
            assert_string_equal(r[n].err, "");
            assert_int_equal(r[n].exit_code, 0);
            assert_contains(r[n].out, ids[i]);
            glob_t logged;
            assert_int_equal(glob(lks_test_text("%s/*_node%d_*", dir, n), 0, NULL, &logged), 0);
            globfree(&logged);
        }
    }
    assert_exits(2, lks_test_tool("run", lks_test_text("--rdzv-id=%sy", longest), "true"),
                 "--rdzv-id must be at most 255 bytes");
}

/* --- together ----------------------------------------------------------------------------- */

/* ROLE_RANK counts the ranks of one role, as torchrun does. */
TEST(test_ranks)
{
    static const char script[] = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                                 "$GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "
                                 "$LOCKSTEP_STORE $LOCKSTEP_LOCAL_ADDR $LOCKSTEP_JOB; "
                                 "case $LOCAL_WORLD_SIZE in 1) r=3/4;; 2) r=$LOCAL_RANK/2;; "
                                 "3) r=$LOCAL_RANK/4; esac; [ $ROLE_RANK/$ROLE_WORLD_SIZE = $r ]";
    int port = lks_test_free_port();
    /* The last node starts first, and none is told that it is the first. */
    struct node c = START(port, script, "--nnodes=3", "--node-rank=2", "--nproc-per-node=1"),
                a = START(port, script, "--nnodes=3", "--nproc-per-node=2", "--role=other"),
                b = START(port, script, "--nnodes=3", "--nproc-per-node=3");
    lks_test_result r[3] = {end_of(&a), end_of(&b), end_of(&c)};
    const char *all = lks_test_text("%s%s%s", r[0].out, r[1].out, r[2].out);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(r[i].err, "");
        assert_int_equal(r[i].exit_code, 0);
    }
    assert_contains(all, lks_test_text("127.0.0.1:%d 127.0.0.1 ", port));
    const char *tail = lks_test_find(all, " 127.0.0.1 ");
    /* Either a or b is the first node; all ranks have the same port, which isn't the job's. */
    bool a_first = strstr(r[0].out, "] 0/6 0/2 0/3 ") != NULL;
    static const char *const a_b[] = {"] 0/6 0/2 0/3 ", "] 1/6 1/2 0/3 ", "] 2/6 0/3 1/3 ",
                                      "] 3/6 1/3 1/3 ", "] 4/6 2/3 1/3 ", "] 5/6 0/1 2/3 "},
                             *const b_a[] = {"] 0/6 0/3 0/3 ", "] 1/6 1/3 0/3 ", "] 2/6 2/3 0/3 ",
                                             "] 3/6 0/2 1/3 ", "] 4/6 1/2 1/3 ", "] 5/6 0/1 2/3 "};
    for (int i = 0; i < 6; i++)
        assert_contains(all, lks_test_text("%s%.*s", a_first ? a_b[i] : b_a[i],
                                           (int)strcspn(tail + 1, "\n"), tail + 1));
    assert_null(strstr(all, lks_test_text(" 127.0.0.1 %d ", port)));
}

/* The first failure is named on all nodes, with its last lines; its exit code is that of all. */
TEST(test_failure)
{
    int port = lks_test_free_port();
    static const char script[] =
        "[ $RANK = 2 ] || exec sleep 50; echo the reason >&2; kill -SEGV $$";
    struct node a = START(port, script, "--nnodes=2", "--nproc-per-node=2", "--node-rank=0"),
                b = START(port, script, "--nnodes=2", "--nproc-per-node=1", "--node-rank=1");
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) {
        assert_exits(128 + SIGSEGV, r[i], "lockstep run: rank 2 (pid ",
                     "was killed by signal 11 (SIGSEGV); its last lines on stderr:\n"
                     "    the reason\n");
        assert_true(r[i].seconds < 20 * lks_test_patience());
    }
}

/* Last lines that aren't all UTF-8 reach the other node: of 4096 kept bytes the first two are here
 * the end of a character of three, and one line has a byte of another encoding. */
TEST(test_failure_not_utf8)
{
    int port = lks_test_free_port();
    static const char script[] =
        "[ $RANK = 1 ] || exec sleep 50; "
        "{ printf '\\342\\202\\254'; head -c 4076 /dev/zero | tr '\\0' x; "
        "printf '\\nna\\357ve \\303\\251t\\303\\251\\nlast\\n'; } >&2; exit 7";
    START_TWO(a, b, port, script, "--nproc-per-node=1");
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) {
        assert_exits(7, r[i], "its last lines on stderr:\n    ??xxx",
                     "xxx\n    na?ve \u00e9t\u00e9\n    last\n");
    }
}

TEST(test_restart)
{
    int port = lks_test_free_port();
    static const char script[] = "echo n$TORCHELASTIC_RESTART_COUNT-$RANK; "
                                 "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; "
                                 "[ $RANK = $((2 * TORCHELASTIC_RESTART_COUNT)) ] && exit 5; "
                                 "exec sleep 50";
    struct node a = START(port, script, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=2"),
                b = START(port, script, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=2");
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) { /* one count for the job, whichever rank has failed */
        assert_int_equal(r[i].exit_code, 0);
        assert_contains(r[i].err, "restart 1 of 2", "restart 2 of 2");
        assert_contains(r[i].out, "] n2-");
    }
}

/* A signal to stop, to either launcher or to the only one, while the ranks are ended after a
 * failure. The rank of that node sends it. */
TEST(test_stop_after_failure)
{
    for (int i = 0; i < 3; i++) {
        const int port = lks_test_free_port(), node = i % 2, n = i == 2 ? 1 : 2;
        const char *folder = lks_test_folder();
        const char *script =
            lks_test_text("trap 'kill -TERM $PPID; exec sleep 9' TERM; cd \"%s\"; : >$RANK; "
                          "while [ $RANK = %d ] || [ ! -e %d ]; do sleep 0.05; done; exit 3",
                          folder, node, node);
        struct node nodes[2];
        for (int k = 0; k < n; k++)
            nodes[k] = START(port, script, "--max-restarts=1", lks_test_text("--nnodes=%d", n),
                             lks_test_text("--node-rank=%d", k),
                             lks_test_text("--nproc-per-node=%d", 3 - n));
        for (int k = 0; k < n; k++) {
            const lks_test_result r = end_of(&nodes[k]);
            assert_int_equal(r.exit_code, 3);
            assert_null(strstr(r.err, "restart 1"));
        }
    }
}

/* Ranks of two starts of a job find each other at their own start's addresses, and not at those of
 * the start before, which the job's store still has. */
TEST(test_restart_of_groups)
{
    const int port = lks_test_free_port();
    const char *out;
    law_args args = law_train("random", &out);
    law_add_line(&args, "--max_iters=1 --timeout=%g", 4 * lks_test_patience());
    const char *script = lks_test_text("%s --out_dir='%s'/$TORCHELASTIC_RESTART_COUNT || exit 4; "
                                       "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3",
                                       law_words(&args), out);
    START_TWO(a, b, port, script, "--max-restarts=1");
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) {
        assert_exits(0, r[i]);
        assert_null(strstr(r[i].err, "exited with code 4"));
    }
    assert_int_equal(law_count_checkpoints(lks_test_text("%s/1", out)), 1);
}

TEST(test_signal)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text(
        "trap 'echo term; exit 9' TERM; touch \"%s\"/$RANK; while :; do sleep 0.05; done", folder);
    struct node a = START(port, script, "--nnodes=2"), b = START(port, script, "--nnodes=2");
    wait_for_files(folder, 2);
    kill(b.child.pid, SIGTERM);
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].exit_code, 9);
        assert_contains(r[i].out, "term\n");
        assert_contains(r[i].err,
                        "passing signal 15 (SIGTERM) on to the ranks; ranks without a "
                        "heartbeat for 30 s are killed. A second signal kills all",
                        "lockstep run: rank 0 (pid "); /* whose code it is */
        assert_contains(r[i].err, ") exited with code 9\n");
        assert_null(strstr(r[i].err, "lockstep run: rank 1 "));
    }
}

/* A stop while a rank stands still: it is named on all nodes, and all have one exit code, whichever
 * rank it is. */
TEST(test_signal_stands_still)
{
    struct node nodes[2][2];
    pid_t stopped[2];
    const double limit_s = 2 * lks_test_patience();
    for (int late = 0; late < 2; late++) {
        const int port = lks_test_free_port();
        const char *out;
        law_args args = law_train("random", &out);
        law_add(&args, "--max_iters=1000000");
        for (int n = 0; n < 2; n++)
            nodes[late][n] = START(port, lks_test_text("exec %s", law_words(&args)), "--nnodes=2",
                                   lks_test_text("--node-rank=%d", n),
                                   lks_test_text("--shutdown-timeout=%g", limit_s));
        lks_test_until(law_count_checkpoints(out) > 0);
        stopped[late] = marked_rank(nodes[late][late].mark, late);
        assert_true(stopped[late] > 0 && kill(stopped[late], SIGSTOP) == 0);
        kill(nodes[late][0].child.pid, SIGTERM);
    }
    for (int late = 0; late < 2; late++)
        for (int n = 0; n < 2; n++) {
            lks_test_result r = assert_exits(
                128 + SIGKILL, end_of(&nodes[late][n]),
                lks_test_text("lockstep run: rank %d (pid %d, host ", late, stopped[late]),
                lks_test_text(") hasn't ended within %g s of its last heartbeat", limit_s),
                "the ranks were killed");
            assert_null(strstr(r.err, lks_test_text("lockstep run: rank %d", 1 - late)));
        }
}

/* All launchers get the same request, as from a batch system, and one of them gets it after another
 * has passed it on: that isn't a second one, however late it comes. */
TEST(test_signal_everywhere)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder(), *saved = lks_test_text("%s/saved", lks_test_folder());
    const char *script = lks_test_text("trap 'echo asked; while [ ! -e \"%s-$RANK\" ]; do sleep "
                                       "0.02; done; echo ended; exit 9' TERM; "
                                       "touch \"%s\"/$RANK; while :; do sleep 0.02; done",
                                       saved, folder);
    START_TWO(a, b, port, script);
    wait_for_files(folder, 2);
    kill(a.child.pid, SIGTERM);
    lks_test_wait_for_text(b.child.out_path, "asked");
    usleep(500000);
    kill(b.child.pid, SIGTERM);
    usleep(300000);
    lks_test_write(lks_test_text("%s-1", saved), "", 0);
    lks_test_wait_for_text(b.child.out_path, "ended");
    lks_test_write(lks_test_text("%s-0", saved), "", 0);
    end_of(&a);
    lks_test_result r = end_of(&b);
    assert_contains(r.out, "ended\n");
    assert_null(strstr(r.err, "the ranks were killed"));
}

/* A node whose ranks have ended waits for the others', and a second signal ends that. */
TEST(test_signal_twice)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text("[ $RANK = 1 ] && exit 0; trap 'echo asked' TERM; "
                                       "touch \"%s\"/$RANK; while :; do sleep 0.05; done",
                                       folder);
    START_TWO(a, b, port, script);
    wait_for_files(folder, 1);
    usleep(200000);
    kill(b.child.pid, SIGTERM);
    lks_test_wait_for_text(a.child.out_path, "asked");
    usleep((useconds_t)(1e6 * LKS__SAME_CAUSE_S) + 100000); /* so that it isn't the same one */
    kill(b.child.pid, SIGTERM);
    lks_test_result r = lks_test_wait(&b.child, 10 * lks_test_patience());
    kill(a.child.pid, SIGKILL);
    end_of(&a);
    assert_exits(1, r, "stopped by a signal while other nodes still ran");
}

/* A stop, and then another node ends, or is lost, while rank 0 still saves: it has its time for
 * that, and the job ends with the stop's code. */
TEST(test_stop_then_lost)
{
    struct node a[2], b[2];
    const char *folders[2];
    for (int lost = 0; lost < 2; lost++) {
        const int port = lks_test_free_port();
        folders[lost] = lks_test_folder();
        const char *script =
            lks_test_text("trap 'touch \"%s\"/asked-$RANK; while [ $RANK -le %d ] && [ ! -e "
                          "\"%s/save\" ]; do sleep "
                          "0.02; done; echo saved; exit 143' TERM; touch \"%s\"/$RANK; "
                          "while :; do sleep 0.02; done",
                          folders[lost], lost, folders[lost], folders[lost]);
        a[lost] = START(port, script, "--nnodes=2", "--node-rank=0");
        b[lost] = START(port, script, "--nnodes=2", "--node-rank=1");
        wait_for_files(folders[lost], 2);
        kill(a[lost].child.pid, SIGTERM);
        wait_for_files(folders[lost], 4);
        if (lost)
            kill(b[lost].child.pid, SIGKILL);
    }
    usleep(1700000); /* longer than ranks have after a failure */
    for (int lost = 0; lost < 2; lost++) {
        lks_test_write(lks_test_text("%s/save", folders[lost]), "", 0);
        lks_test_result r[2] = {end_of(&a[lost]), end_of(&b[lost])};
        assert_contains(r[0].out, "saved\n");
        assert_int_equal(r[0].exit_code, 143);
        if (lost)
            assert_contains(r[0].err, "node 1 (host ");
        else
            assert_int_equal(r[1].exit_code, 143);
    }
}

/* A launcher reads the user's signal together with the end of a node, which the same signal may
 * have ended: it is a stop. */
TEST(test_stop_and_lost)
{
    const int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text("touch \"%s\"/$RANK; exec sleep 50", folder);
    START_TWO(a, b, port, script);
    wait_for_files(folder, 2);
    const pid_t launcher = marked_child_of(b.child.pid);
    assert_true(launcher > 0 && kill(launcher, SIGSTOP) == 0);
    kill(a.child.pid, SIGKILL);
    end_of(&a);
    kill(launcher, SIGTERM);
    kill(launcher, SIGCONT);
    lks_test_result r = end_of(&b);
    assert_contains(r.err, "passing signal 15 (SIGTERM) on to the ranks");
    assert_int_equal(r.exit_code, 143);
}

/* A node that still waits for the first one can be stopped, too. */
TEST(test_signal_alone)
{
    struct node b = START(lks_test_free_port(), "true", "--nnodes=2", "--node-rank=1");
    usleep(500000);
    kill(b.child.pid, SIGTERM);
    lks_test_result r = end_of(&b);
    assert_int_equal(r.signal, SIGTERM);
    assert_true(r.seconds < 10 * lks_test_patience());
}

/* --- losses ------------------------------------------------------------------------------- */

/* A node that can't start its ranks, whichever it is, says why on the others, too. */
TEST(test_cannot_start)
{
    for (int node = 0; node < 2; node++) {
        const int port = lks_test_free_port();
        struct node nodes[2];
        for (int n = 0; n < 2; n++) {
            if (n == node)
                setenv("LOCKSTEP_FAULT", "memfd:1:ENOMEM", 1);
            nodes[n] = START(port, "exec sleep 50", "--nnodes=2", "--max-restarts=1",
                             lks_test_text("--node-rank=%d", n));
            unsetenv("LOCKSTEP_FAULT");
        }
        for (int n = 0; n < 2; n++) {
            const lks_test_result r = assert_exits(
                1, end_of(&nodes[n]), "can't make shared memory for 1 ranks (memfd_create): ");
            assert_int_equal(strstr(r.err, "can't start its ranks: ") != NULL, n != node);
            assert_null(strstr(r.err, "restart 1"));
        }
    }
}

/* The messages of a job's list from number *at_p on, until one contains `text`. */
static void wait_for_message(lks__store *store, int *at_p, const char *text)
{
    for (bool found = false; !found;) {
        void *data = NULL;
        size_t bytes;
        assert_ok(lks__store_get(store, lks_test_text("lockstep/launch/%d", (*at_p)++),
                                 20 * lks_test_patience(), &data, &bytes));
        found = strstr(data, text) != NULL;
        free(data);
    }
}

/* An elastic job restarts without a node that can't start its ranks, because that node says at once
 * that it leaves. */
TEST(test_cannot_start_elastic)
{
    const int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text("while [ ! -e \"%s/stop\" ]; do sleep 0.02; done", folder);
    lks__store *store;
    int at = 1;
    setenv("LOCKSTEP_FAULT", "memfd:1:ENOMEM", 1);
    struct node b = START(port, script, "--nnodes=1:2", "--max-restarts=1", "--node-rank=1");
    unsetenv("LOCKSTEP_FAULT");
    struct node a = START(port, script, "--nnodes=1:2", "--max-restarts=1", "--node-rank=0");
    assert_ok(lks__store_open("127.0.0.1", port, secret, 20 * lks_test_patience(), &store));
    wait_for_message(store, &at, "\"leaves\":true");
    lks__store_close(store);
    lks_test_write(lks_test_text("%s/stop", folder), "", 0);
    assert_exits(0, end_of(&a), "can't start its ranks: ", "restart 1 of 1");
    assert_int_equal(end_of(&b).exit_code, 1);
}

TEST(test_node_lost)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text("touch \"%s\"/$RANK; exec sleep 50", folder);
    START_TWO(a, b, port, script);
    wait_for_files(folder, 2);
    kill(b.child.pid, SIGKILL);
    lks_test_result r = end_of(&a);
    end_of(&b); /* its ranks have ended with it */
    assert_exits(1, r, "lockstep run: node 1 (host ", ", rank 1) is gone");
}

/* A rank that exits with code 0 too early is the cause, although only the other host's rank fails:
 * a shell whose child, which trains, is killed. */
static void check_left_early(const char *n_here, const char *left, const char *slow)
{
    const char *out, *folder = lks_test_folder();
    const int port = lks_test_free_port();
    law_args args = law_train("random", &out);
    law_add(&args, "--max_iters=1000000");
    const char *line = law_words(&args),
               *script = lks_test_text("case $RANK in %s) ;; %s) %s; r=$?; sleep 0.6; exit $r;; *) "
                                       "exec %s;; esac; %s & while [ ! -e \"%s/end\" ]; do sleep "
                                       "0.05; done; kill -9 $!",
                                       left, slow, line, line, line, folder);
    START_TWO(a, b, port, script, n_here);
    lks_test_until(law_count_checkpoints(out) > 0);
    lks_test_write(lks_test_text("%s/end", folder), "", 0);
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int n = 0; n < 2; n++) {
        assert_exits(
            1, r[n], lks_test_text("lockstep run: rank %s (host ", left),
            lks_test_text(") exited with code 0 while other ranks still waited for it: "
                          "rank %s (the first of host ",
                          left),
            lks_test_text(". All ranks must make the same calls: find out why rank %s ", left));
    }
}

TEST(test_left_early)
{
    check_left_early("--nproc-per-node=1", "1", "none");
    check_left_early("--nproc-per-node=2", "2", "3"); /* also if another rank there ends late */
}

/* A rank ends with code 0 before it has joined: the ranks of the other host don't wait for it. A
 * rank that isn't waiting goes on. */
static void check_never_joined(const char *n_here, const char *left, const char *busy)
{
    const char *out;
    const int port = lks_test_free_port();
    law_args args = law_train("random", &out);
    law_add(&args, "--timeout=600");
    const char *script = lks_test_text("case $RANK in %s) ;; %s) exec sleep 50;; *) exec %s;; esac",
                                       left, busy, law_words(&args));
    START_TWO(a, b, port, script, n_here);
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int n = 0; n < 2; n++)
        assert_exits(1, r[n], lks_test_text("lockstep run: rank %s (pid ", left),
                     ") exited with code 0 while other ranks still waited for it. All ranks must "
                     "make the same calls: find out why rank ");
}

TEST(test_never_joined)
{
    check_never_joined("--nproc-per-node=1", "1", "none");
    check_never_joined("--nproc-per-node=1", "0", "none");
    check_never_joined("--nproc-per-node=2", "3", "2"); /* isn't the first of its host */
}

/* A rank that ends with code 0 doesn't end one that works alone. */
TEST(test_works_alone)
{
    const int port = lks_test_free_port();
    const char *end = lks_test_text("%s/end", lks_test_folder());
    const char *script =
        lks_test_text("[ $RANK = 1 ] || while [ ! -e \"%s\" ]; do sleep 0.05; done", end);
    lks__store *store;
    int at = 1;
    START_TWO(a, b, port, script);
    assert_ok(lks__store_open("127.0.0.1", port, secret, 20 * lks_test_patience(), &store));
    wait_for_message(store, &at, "\"verdict\"");
    lks__store_close(store);
    lks_test_write(end, "", 0);
    assert_exits(0, end_of(&a));
    assert_exits(0, end_of(&b));
}

/* A rank that gave up is named with its host, and its exit code is the job's, although it ends
 * after the other host's rank. */
TEST(test_gave_up)
{
    const char *out;
    const int port = lks_test_free_port();
    law_args args = law_train("random", &out);
    const char *line = law_words(&args),
               *script =
                   lks_test_text("[ $RANK = 1 ] || exec %s; %s --dataset=/no/data; sleep 0.3; "
                                 "exit 5",
                                 line, line);
    START_TWO(a, b, port, script);
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int n = 0; n < 2; n++) {
        assert_exits(5, r[n], "lockstep run: rank 1 (pid ",
                     ") exited with code 5 at step 0, phase set-up: dataset ");
    }
}

/* All processes of a node are stopped, and a rank of another one fails: the job continues without
 * that node. When it runs again, it ends with a reason, and its ranks end. */
TEST(test_frozen)
{
    const int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text(/* no process but the rank itself has its environment */
                                       ": >\"%s\"/$TORCHELASTIC_RESTART_COUNT-$RANK; "
                                       "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { while [ ! -e "
                                       "\"%s/stop\" ]; do sleep "
                                       "0.05; done; exit 0; }; [ $RANK = 1 ] || while [ ! -e "
                                       "\"%s/fail\" ]; do sleep "
                                       "0.05; done; [ $RANK = 1 ] || exit 5; exec sleep 50",
                                       folder, folder, folder);
    struct node a = START(port, script, "--nnodes=1:2", "--node-rank=0", "--max-restarts=1"),
                b = START(port, script, "--nnodes=1:2", "--node-rank=1", "--max-restarts=1");
    wait_for_files(folder, 2);
    pid_t stopped[] = {b.child.pid, marked_child_of(b.child.pid), -1};
    /* While it executes sleep it has no environment. */
    lks_test_until((stopped[2] = marked_rank(b.mark, 1)) > 0);
    for (int i = 0; i < 3; i++)
        assert_true(stopped[i] > 0 && kill(stopped[i], SIGSTOP) == 0);
    lks_test_write(lks_test_text("%s/fail", folder), "", 0);
    wait_for_files(folder, 4);
    assert_true(lks_test_exists(lks_test_text("%s/1-0", folder)));
    for (int i = 0; i < 3; i++)
        kill(stopped[i], SIGCONT);
    assert_exits(1, end_of(&b), "this node isn't part of the job any more: it didn't answer");
    lks_test_write(lks_test_text("%s/stop", folder), "", 0);
    assert_exits(0, end_of(&a), "node 1 (host ",
                 ", rank 1) doesn't answer: its launcher is stopped", "restart 1 of 1");
}

TEST(test_coordinator_lost)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text("touch \"%s\"/$RANK; exec sleep 50", folder);
    START_TWO(a, b, port, script, "--max-restarts=3");
    wait_for_files(folder, 2);
    kill(a.child.pid, SIGKILL);
    lks_test_result r = end_of(&b);
    end_of(&a);
    assert_exits(1, r, "the coordinator's node is gone");
}

/* On two ranks, iteration 4 takes 2.5 s more: time to stop a launcher after the first checkpoint.
 */
static const char slower[] = "LOCKSTEP_FAULT=read:250:slower";

/* A launcher that is stopped, with its rank or without, while the other node waits for it: that one
 * says for whom it waits, and ends in a bounded time. The other one ends when it runs again. */
TEST(test_launcher_stopped)
{
    static const struct {
        int node;      /* whose launcher is stopped */
        bool rank_too; /* … before the end of training */
        const char *texts[3];
    } cases[] = {
        {0, true, {"the coordinator's node (host ", ") doesn't answer: its launcher is stopped"}},
        {0,
         false,
         {"waiting for node 0 (host ", "the coordinator's node (host ", "doesn't answer"}},
        {1, false, {"waiting for node 1 (host ", "node 1 (host ", "rank 1) doesn't answer"}},
        {1, true, {"node 1 (host ", "rank 1) doesn't answer"}},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    struct node nodes[N][2];
    double stopped_at[N];
    for (int i = 0; i < N; i++) {
        const char *out, *port = lks_test_text("%d", lks_test_free_port());
        law_args args = law_train("random", &out);
        law_add(&args, "--max_iters=%d", cases[i].rank_too ? 1000000 : 20);
        law_add(&args, "--timeout=%g", 4 * lks_test_patience());
        const char *script = lks_test_text("%s exec %s", slower, law_words(&args));
        for (int n = 0; n < 2; n++)
            nodes[i][n] =
                START(atoi(port), script, "--nnodes=2", lks_test_text("--node-rank=%d", n));
        const struct node *victim = &nodes[i][cases[i].node];
        lks_test_until(law_count_checkpoints(out) > 0);
        pid_t rank = marked_rank(victim->mark, cases[i].node);
        pid_t launcher = marked_child_of(victim->child.pid);
        assert_true(launcher > 0 && rank > 0);
        kill(victim->child.pid, SIGSTOP);
        kill(launcher, SIGSTOP);
        if (cases[i].rank_too)
            kill(rank, SIGSTOP);
        stopped_at[i] = lks__sys_now();
    }
    for (int i = 0; i < N; i++) {
        lks_test_result r = assert_exits(1, end_of(&nodes[i][1 - cases[i].node]));
        assert_true(lks__sys_now() - stopped_at[i] < (4 + 10) * lks_test_patience());
        for (int k = 0; k < 3 && cases[i].texts[k] != NULL; k++)
            assert_contains(r.err, cases[i].texts[k]);
    }
    for (int i = 0; i < N; i++) {
        pid_t left[8];
        const struct node *victim = &nodes[i][cases[i].node];
        for (int k = marked_processes(victim->mark, left, 8); k-- > 0;)
            kill(left[k], cases[i].node == 1 ? SIGCONT : SIGKILL);
        lks_test_result r = end_of(victim);
        if (cases[i].node == 0)
            continue;
        /* It runs again after the job's end, and says what it knows. */
        assert_exits(1, r, "lockstep run: this node (host ", ") stood still for ");
    }
}

/* A launcher that is stopped only while its ranks train ends nothing, whichever node's it is. */
TEST(test_launcher_suspended)
{
    struct node nodes[2][2];
    pid_t launchers[2];
    for (int i = 0; i < 2; i++) {
        const int port = lks_test_free_port();
        const char *out;
        law_args args = law_train("random", &out);
        law_add(&args, "--max_iters=20");
        for (int n = 0; n < 2; n++)
            nodes[i][n] = START(port, lks_test_text("%s exec %s", slower, law_words(&args)),
                                "--nnodes=2", lks_test_text("--node-rank=%d", n));
        lks_test_until(law_count_checkpoints(out) > 0);
        launchers[i] = marked_child_of(nodes[i][i].child.pid);
        assert_true(launchers[i] > 0 && kill(launchers[i], SIGSTOP) == 0);
    }
    for (int i = 0; i < 2; i++)
        lks_test_wait_for_text(nodes[i][1 - i].child.err_path,
                               lks_test_text("waiting for node %d (host ", i));
    for (int i = 0; i < 2; i++)
        kill(launchers[i], SIGCONT);
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 2; n++) {
            assert_exits(0, end_of(&nodes[i][n]));
        }
}

/* A rank of a node notices that others have gone, and ends, before its launcher hears of the
 * coordinator's end: the launcher is stopped meanwhile. What it names is the node all the same. */
TEST(test_coordinator_lost_later)
{
    const int port = lks_test_free_port();
    const char *out;
    law_args args = law_train("random", &out);
    law_add(&args, "--max_iters=1000000");
    const char *script = lks_test_text("exec %s", law_words(&args));
    START_TWO(a, b, port, script);
    lks_test_until(law_count_checkpoints(out) > 0);
    pid_t launcher = marked_child_of(b.child.pid), rank = marked_rank(b.mark, 1);
    assert_true(launcher > 0 && rank > 0);
    assert_int_equal(kill(launcher, SIGSTOP), 0);
    kill(a.child.pid, SIGKILL);
    lks_test_until(lks__sys_process_state(rank) == 'Z');
    kill(launcher, SIGCONT);
    lks_test_result r = end_of(&b);
    end_of(&a);
    assert_exits(1, r, "the coordinator's node is gone");
    assert_null(strstr(r.err, "lockstep run: rank 1"));
}

/* The remaining nodes go on with the most ranks that divide the virtual ranks; a node that comes
 * later joins at the next start. */
TEST(test_resize)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script =
        lks_test_text("touch \"%s\"/$TORCHELASTIC_RESTART_COUNT-$RANK-$WORLD_SIZE; "
                      "[ -e \"%s/stop\" ] || exec sleep 50",
                      folder, folder);
    const char *two = "--nproc-per-node=2", *V = "--virtual-ranks=8", *n = "--nnodes=1:3",
               *restarts = "--max-restarts=2";
    struct node a = START(port, script, n, two, V, restarts, "--node-rank=0"),
                b = START(port, script, n, two, V, restarts, "--node-rank=1"),
                c = START(port, script, n, "--nproc-per-node=4", V, restarts, "--node-rank=2");
    wait_for_files(folder, 8);
    assert_true(lks_test_exists(lks_test_text("%s/0-7-8", folder)));
    kill(c.child.pid, SIGKILL);
    wait_for_files(folder, 8 + 4);
    assert_true(lks_test_exists(lks_test_text("%s/1-3-4", folder)));
    /* A new node waits while the others run. */
    const int connected = wait_for_connections(port, 0);
    struct node d = START(port, script, n, "--nproc-per-node=3", V, restarts);
    wait_for_connections(port, connected);
    usleep(300000);
    lks_test_write(lks_test_text("%s/stop", folder), "", 0);
    kill(b.child.pid, SIGKILL);
    lks_test_result r[2] = {end_of(&a), end_of(&d)};
    end_of(&b);
    end_of(&c);
    assert_int_equal(r[0].exit_code, 0);
    assert_int_equal(r[1].exit_code, 0);
    /* 2 + 3 ranks: 4 of them divide 8. */
    assert_true(lks_test_exists(lks_test_text("%s/2-3-4", folder)));
    assert_contains(r[1].err, "1 of this node's ranks stay idle");
}

/* More nodes than the job needs: the third says that the job runs without it, the restart has the
 * ranks of two, and the third is told nothing of ranks that stay idle. */
TEST(test_spare_node)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script =
        lks_test_text("echo $$ >\"%s\"/$TORCHELASTIC_RESTART_COUNT-$RANK-$WORLD_SIZE; "
                      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 50",
                      folder);
    const char *two = "--nproc-per-node=2", *n = "--nnodes=2", *restarts = "--max-restarts=2";
    struct node a = START(port, script, n, two, restarts),
                b = START(port, script, n, two, restarts);
    wait_for_files(folder, 4);
    const int connected = wait_for_connections(port, 0);
    struct node c = START(port, script, n, two, restarts);
    wait_for_connections(port, connected);
    lks_test_wait_for_text(c.child.err_path, "runs without this node until its next start");
    struct node other = START(port, "echo never", n, two, restarts); /* a job of its own */
    assert_exits(2, end_of(&other), "the job at this address has all its nodes, and runs `sh -c ",
                 ", not `sh -c echo never`: another job needs another port");
    assert_int_equal(system(lks_test_text("kill -9 $(cat \"%s\"/0-3-4)", folder)), 0);
    lks_test_result r[3] = {end_of(&a), end_of(&b), end_of(&c)};
    for (int rank = 0; rank < 4; rank++)
        assert_true(lks_test_exists(lks_test_text("%s/1-%d-4", folder, rank)));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].exit_code, 0);
        assert_null(strstr(r[i].err, "stay idle"));
    }
}

/* All ranks of all nodes, if virtual ranks needn't be divided evenly, but no more ranks than
 * those. */
TEST(test_uneven)
{
    static const struct {
        const char *V, *uneven;
        int W;
    } cases[] = {{"--virtual-ranks=8", "--allow-uneven", 5},
                 {"--virtual-ranks=8", NULL, 4},
                 {"--virtual-ranks=3", "--allow-uneven", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int port = lks_test_free_port();
        static const char script[] = "echo rank $RANK of $WORLD_SIZE; "
                                     "[ $ROLE_RANK/$ROLE_WORLD_SIZE = $RANK/$WORLD_SIZE ]";
        struct node a = START(port, script, "--nnodes=2", "--nproc-per-node=2", "--node-rank=0",
                              cases[i].V, cases[i].uneven),
                    b = START(port, script, "--nnodes=2", "--nproc-per-node=3", "--node-rank=1",
                              cases[i].V, cases[i].uneven);
        lks_test_result r[2] = {end_of(&a), end_of(&b)};
        const char *all = lks_test_text("%s%s", r[0].out, r[1].out);
        for (int node = 0; node < 2; node++)
            assert_int_equal(r[node].exit_code, 0);
        for (int rank = 0; rank < 5; rank++)
            assert_int_equal(strstr(all, lks_test_text("rank %d of %d\n", rank, cases[i].W)) !=
                                 NULL,
                             rank < cases[i].W);
    }
}

/* A node without ranks ends with the job's code, and says why. */
TEST(test_idle_node)
{
    const int port = lks_test_free_port();
    START_TWO(a, b, port, "exit 3", "--virtual-ranks=1");
    const lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) {
        assert_exits(3, r[i], "lockstep run: rank 0 (pid ", ") exited with code 3\n");
    }
}

/* A second job on a node begins while a slow node, which this test plays, hasn't left the first
 * one yet: the second job takes no end from the first, but waits for its own first node, and says
 * so. */
TEST(test_second_job)
{
    const int port = lks_test_free_port();
    const char *ran = lks_test_text("%s/ran", lks_test_folder()), *link = "--link-timeout=600";
    static const char hello[] =
        "{\"is\":\"hello\",\"key\":\"slow\",\"host\":\"slow\",\"nproc\":1,\"rank\":1,\"version\":"
        "\"" LKS_VERSION_TEXT "\",\"nnodes\":\"2:2\",\"run_id\":\"none\",\"max_restarts\":\"0\"}",
                      verdict[] = "{\"is\":\"verdict\",\"node\":1,\"round\":0,\"ok\":true,"
                                  "\"code\":0}",
                      lost[] = "{\"is\":\"lost\",\"key\":\"slow\"}";
    lks__store *slow;
    int at = 1;
    struct node a = START(port, "true", "--nnodes=2", "--node-rank=0", link);
    assert_ok(lks__store_open("127.0.0.1", port, secret, 20 * lks_test_patience(), &slow));
    assert_ok(lks__store_will(slow, "lockstep/launch", lost, strlen(lost)));
    wait_for_message(slow, &at, "\"hello\"");
    assert_ok(lks__store_post_later(slow, "lockstep/launch", hello, strlen(hello)));
    wait_for_message(slow, &at, "\"round\",");
    assert_ok(lks__store_post_later(slow, "lockstep/launch", verdict, strlen(verdict)));
    wait_for_message(slow, &at, "\"end\"");
    struct node b =
        START(port, lks_test_text("touch \"%s\"", ran), "--nnodes=2", "--node-rank=1", link);
    wait_for_message(slow, &at, "\"hello\"");
    wait_for_message(slow, &at, "\"lost\"");
    lks_test_wait_for_text(b.child.err_path, "s for the next job at 127.0.0.1:");
    lks__store_close(slow);
    assert_int_equal(end_of(&a).exit_code, 0);
    a = START(port, "true", "--nnodes=2", "--node-rank=0", link);
    assert_int_equal(end_of(&a).exit_code, 0);
    const lks_test_result r = assert_exits(0, end_of(&b));
    assert_null(strstr(strstr(r.err, "next job") + 1, "next job")); /* once */
    assert_true(lks_test_exists(ran));
}

/* --- nodes that don't match --------------------------------------------------------------- */

static const char *host_name(void)
{
    char name[256] = "";
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    return lks_test_text("%s", name);
}

TEST(test_refusals)
{
    int port = lks_test_free_port();
    const char *folder = lks_test_folder();
    const char *script = lks_test_text("while [ ! -e \"%s/stop\" ]; do sleep 0.02; done", folder);
    const char *told = lks_test_text("%s/here", folder);
    struct node a = START(port, script, "--nnodes=3", "--node-rank=0", "--rdzv-id=mine"),
                b = START(port, script, "--nnodes=3", "--node-rank=1", "--rdzv-id=mine");
    static const struct {
        const char *token, *options[5], *texts[3];
        int exit_code;
    } cases[] = {
        {"another-0123456789", {"--nnodes=3", "--node-rank=2"}, {"another token", NULL}, 2},
        {"another-0123456789", {"--nnodes=3", "--node-rank=2"}, {"another token", NULL}, 2},
        {secret,
         {"--nnodes=2", "--node-rank=1", "--rdzv-id=mine"},
         {"--nnodes is \"2:2\"", "\"3:3\""},
         2},
        {secret,
         {"--nnodes=2", "--node-rank=1", "--rdzv-id=mine"},
         {"--nnodes is \"2:2\"", "\"3:3\""},
         2},
        {secret, {"--nnodes=3", "--node-rank=2"}, {"--rdzv-id is \"none\"", "\"mine\""}, 2},
        {secret,
         {"--nnodes=3", "--node-rank=2", "--rdzv-id=mine", "--max-restarts=7"},
         {"--max-restarts is \"7\"", "\"0\""},
         2},
        {secret,
         {"--nnodes=3", "--node-rank=1", "--rdzv-id=mine"},
         {"--node-rank is 1 on host", "each node needs its own"},
         2},
        {secret, {"--nnodes=3", "--node-rank=0", "--rdzv-id=mine"}, {"can't listen on"}, 1},
    };
    usleep(200000); /* so that a and b join first */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct node x = start_node(port, cases[i].token, cases[i].options, "touch /nowhere");
        lks_test_result r = assert_exits(cases[i].exit_code, end_of(&x));
        for (int k = 0; cases[i].texts[k] != NULL; k++)
            assert_contains(r.err, cases[i].texts[k]);
        assert_null(strstr(r.err, secret));
    }
    /* None of them has disturbed the job. */
    struct node c = START(port, lks_test_text("touch %s; %s", told, script), "--nnodes=3",
                          "--node-rank=2", "--rdzv-id=mine");
    lks_test_until(lks_test_exists(told));
    lks_test_write(lks_test_text("%s/stop", folder), "", 0);
    lks_test_result first = assert_exits(0, end_of(&a));
    assert_int_equal(end_of(&b).exit_code, 0);
    assert_int_equal(end_of(&c).exit_code, 0);
    /* Node 0 prints whom it has refused, and why, once per peer. */
    const char *text = "refused a node from 127.0.0.1: it has another LOCKSTEP_TOKEN than this "
                       "node\n";
    assert_contains(first.err, text);
    assert_null(strstr(strstr(first.err, text) + 1, text));
    assert_contains(first.err, ": --max-restarts is \"7\" on host ");
    text = lks_test_text("refused a node on host %s: --nnodes is \"2:2\"", host_name());
    assert_contains(first.err, text);
    assert_null(strstr(strstr(first.err, text) + 1, text));
    assert_null(strstr(first.err, "another-0123456789"));
}

static int connected(int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Connections to the job's port without its secret change nothing. */
TEST(test_strangers)
{
    int port = lks_test_free_port(), fds[40];
    const char *folder = lks_test_folder();
    const char *script = lks_test_text(
        "touch \"%s\"/$RANK; while [ ! -e \"%s/stop\" ]; do sleep 0.02; done", folder, folder);
    struct node a = START(port, script, "--nnodes=2", "--node-rank=0"), b = {.mark = NULL};
    unsigned seed = 3;
    for (int i = 0; i < 40; i++) { /* half of them before the job is complete */
        char noise[4000];
        lks_test_until((fds[i] = connected(port)) >= 0);
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = (char)rand_r(&seed);
        if (i % 3 == 1) /* a right beginning, and nothing more */
            memcpy(noise, "LKSTORE1", 8);
        (void)!send(fds[i], noise, i % 3 == 0 ? sizeof noise : i % 3 == 1 ? 30 : 0, MSG_NOSIGNAL);
        if (i != 20)
            continue;
        b = START(port, script, "--nnodes=2", "--node-rank=1");
        wait_for_files(folder, 2);
        assert_int_equal(lks_test_count_files(folder), 2);
    }
    lks_test_write(lks_test_text("%s/stop", folder), "", 0);
    lks_test_result r[2] = {end_of(&a), end_of(&b)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].exit_code, 0);
        assert_string_equal(r[i].err, "");
    }
    for (int i = 0; i < 40; i++)
        close(fds[i]);
}

/* A connection to the job at `port` whose first three messages, those of the proof, each take 0.9 s
 * on their way. */
static _Noreturn void relay(int fd, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN},
                          {.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN}};
    char bytes[4096];
    if (connect(p[1].fd, (struct sockaddr *)&to, sizeof to) != 0)
        _exit(0);
    for (int n = 0; poll(p, 2, -1) > 0;) {
        for (int i = 0; i < 2; i++) {
            const ssize_t got = p[i].revents != 0 ? read(p[i].fd, bytes, sizeof bytes) : 0;
            if (p[i].revents != 0 && got <= 0)
                _exit(0);
            if (got > 0 && n++ < 3)
                usleep(900 * 1000);
            if (got > 0 && send(p[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL) != got)
                _exit(0);
        }
    }
    _exit(0);
}

/* A process, the head of a group, that relays connections; *port_p is its port. */
static pid_t start_slow_link(int port, int *port_p)
{
    const int listener = lks_test_bind(port_p);
    assert_int_equal(listen(listener, 8), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    setpgid(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test fails */
        signal(SIGCHLD, SIG_IGN);
        for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd))
            if (fork() == 0)
                relay(fd, port);
        _exit(1);
    }
    close(listener);
    return pid;
}

/* Round trips so long that the proof of the secret takes longer than a node's first try. */
TEST(test_slow_link)
{
    const int port = lks_test_free_port();
    int slow_port;
    struct node a = START(port, "true", "--nnodes=2", "--node-rank=0");
    wait_for_connections(port, 1);
    const pid_t link = start_slow_link(port, &slow_port);
    struct node b = START(slow_port, "true", "--nnodes=2", "--node-rank=1");
    assert_int_equal(end_of(&b).exit_code, 0);
    assert_int_equal(end_of(&a).exit_code, 0);
    kill(-link, SIGKILL);
    waitpid(link, NULL, 0);
}

/* Nodes that wait without --master-addr say why nodes on other machines don't come. */
TEST(test_waits_here)
{
    struct node nodes[2] = {
        START(lks_test_free_port(), "true", "--nnodes=2", "--node-rank=0"),
        START(lks_test_free_port(), "true", "--nnodes=2", "--node-rank=1"),
    };
    char advice[LKS__NUMBER_BYTES];
    lks__address_advice(advice);
    const char *const says[2] = {
        lks_test_text(": 1 here, 2 needed; other machines can't reach this address: for nodes "
                      "there, give all nodes --master-addr=%s",
                      advice),
        "; if it is on another machine, give its address with --master-addr",
    };
    for (int i = 0; i < 2; i++) {
        lks_test_wait_for_text(nodes[i].child.err_path, says[i]);
        assert_int_equal(kill(nodes[i].child.pid, SIGTERM), 0);
        const lks_test_result r = end_of(&nodes[i]);
        assert_true(r.exit_code == 128 + SIGTERM || r.signal == SIGTERM);
    }
    /* another program has the port */
    int port;
    const int fd = lks_test_bind(&port);
    assert_int_equal(listen(fd, 1), 0);
    struct node late = START(port, "true", "--nnodes=2");
    lks_test_wait_for_text(late.child.err_path, "; this node isn't the first: can't listen on ");
    lks_test_wait_for_text(late.child.err_path, "; choose another port");
    /* it has connected, so its wait ends only if it looks for signals */
    assert_int_equal(kill(late.child.pid, SIGTERM), 0);
    assert_int_equal(end_of(&late).signal, SIGTERM);
    close(fd);
}

TEST(test_wrong_options)
{
    static const struct {
        const char *options[4], *text;
    } cases[] = {
        {{"--nnodes=0"}, "--nnodes must be"},
        {{"--nnodes=3:2"}, "--nnodes must be"},
        {{"--nnodes=2:"}, "--nnodes must be"},
        {{"--nnodes=1:1025"}, "--nnodes must be"},
        {{"--nnodes=2", "--standalone"}, "--standalone is for one node"},
        {{"--nnodes=2", "--node-rank=2"}, "--node-rank must be"},
        {{"--rdzv-backend=etcd"}, "static or c10d"},
        {{"--nnodes=2", "--rdzv-endpoint=a:b"}, "--rdzv-endpoint"},
        {{"--master-port=65536"}, "--master-port must be"},
        {{"--nnodes=2", "--node-rank=0", "--master-port=0"}, "must be from 1 to 65535, because"},
        {{"--hosts=a,b", "--master-port=0"}, "must be from 1 to 65535, because"},
        {{"--hosts=localhost,b"}, "is localhost, at which host b would reach itself: use"},
        {{"--hosts=me@localhost,b"}, "is localhost, at which host b would reach itself: use"},
        {{"--hosts=127.0.0.1,localhost,b"}, "is 127.0.0.1, at which host b would reach itself"},
        {{"--hosts=me@[::1]:2,b"}, "is ::1, at which host b would reach itself"},
        {{"--hosts=localhost,b[1-2]"}, "at which host b[1-2] would reach itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct node x = start_node(1, secret, cases[i].options, "touch /nowhere");
        assert_exits(2, end_of(&x), cases[i].text);
    }
    /* This machine's own name, which is 127.0.1.1 in Debian's /etc/hosts. */
    char name[256] = "", number[LKS__NUMBER_BYTES];
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    if (lks__address_is_loopback(name, number)) {
        const char *const options[] = {lks_test_text("--hosts=%s,b", name), NULL};
        struct node own = start_node(1, secret, options, "true");
        assert_exits(2, end_of(&own),
                     lks_test_text("the first host is %s, and its address here is %s (see "
                                   "/etc/hosts), which host b can't reach",
                                   name, number));
    }
    const char *const tokens[] = {"short", lks_test_text("%0129d", 1), lks_test_text("%015d", 1)};
    struct node x;
    for (int i = 0; i < 3; i++) {
        x = start_node(1, tokens[i], (const char *const[]){"--nnodes=2", NULL}, "true");
        assert_exits(2, end_of(&x), "LOCKSTEP_TOKEN must be set");
    }
    x = start_node(lks_test_free_port(), lks_test_text("%0128d", 1), /* the longest token */
                   (const char *const[]){"--nnodes=2", "--master-addr=no.such.host.invalid", NULL},
                   "true");
    assert_exits(2, end_of(&x), "--master-addr: the address of \"no.such.host.invalid\"");
    x = START(1, "true", "--nnodes=2", "--rdzv-endpoint=no.such.host.invalid");
    assert_exits(2, end_of(&x), "--rdzv-endpoint: the address of \"no.such.host.invalid\"");
    setenv("LOCKSTEP_LINK_TIMEOUT", "1", 1);
    x = START(lks_test_free_port(), "true", "--nnodes=2", "--node-rank=0");
    unsetenv("LOCKSTEP_LINK_TIMEOUT");
    assert_exits(2, end_of(&x), "lockstep run: LOCKSTEP_LINK_TIMEOUT is \"1\"");
}

/* --- one command for all ------------------------------------------------------------------ */

/* A stand-in for ssh: takes a host and a command line, and records both. Signals that we ignore
 * aren't ignored on other hosts. */
static const char *make_rsh(const char *folder)
{
    const char *path = lks_test_text("%s/lks-rsh", folder);
    const char *text =
        lks_test_text("#!/bin/sh\n"
                      "[ \"$1\" = option ] && shift\n"
                      "[ $# = 2 ] || exit 99\n"
                      "[ \"$1\" != nowhere ] || exit 255\n"
                      "[ \"$1\" != refuses ] || exit 3\n"
                      "[ \"$1\" != dies ] || kill -9 $$\n"
                      "[ \"$1\" != detaches ] || exit 0\n"
                      "[ \"$1\" != lacks ] || PATH=/usr/bin:/bin\n"
                      "[ \"$1\" != hangs ] || { trap '' TERM; : >\"%s\"/hangs; sleep 99; }\n"
                      "echo \"$2\" >\"%s\"/line-$1\n"
                      "exec env --default-signal sh -c \"$2\"\n",
                      folder, folder);
    lks_test_write(path, text, strlen(text));
    assert_int_equal(chmod(path, 0700), 0);
    /* By name, because a path with blanks would be more than one word. */
    setenv("PATH", lks_test_text("%s:%s", folder, getenv("PATH")), 1);
    return "--rsh=lks-rsh option";
}

static lks_test_result run_hosts(const char *mark, const char *const options[], const char *script)
{
    const char *argv[32] = {"lockstep", "run", "--master-addr=127.0.0.1"};
    int n = 3;
    for (int i = 0; options[i] != NULL; i++)
        argv[n++] = options[i];
    argv[n++] = "sh";
    argv[n++] = "-c";
    argv[n++] = script;
    argv[n] = NULL;
    lks_test_result r = lks_test_run(argv, (const char *const[]){mark, NULL}, 60);
    marked_assert_gone(mark, 2);
    return r;
}
#define HOSTS(script, ...)                                                                         \
    run_hosts(marked_variable(), (const char *const[]){__VA_ARGS__, NULL}, (script))

TEST(test_hosts)
{
    const char *folder = lks_test_folder(), *rsh = make_rsh(folder);
    const char *port = lks_test_text("--master-port=%d", lks_test_free_port());
    size_t bytes;
    setenv("LOCKSTEP_LINK_TIMEOUT", "20", 1); /* ssh passes no variables on */
    lks_test_result r = assert_exits(
        0, HOSTS("echo \"it's $RANK of $WORLD_SIZE, $LOCAL_RANK in $GROUP_RANK\"; "
                 "[ ${LOCKSTEP_LIFELINE-none} = none ] || exit 1; read x; [ -z \"$x\" ]",
                 "--hosts=one:2,localhost,three:3", "--nproc-per-node=1", "--rdzv_id=an 'id'", rsh,
                 port));
    static const char *const lines[] = {"it's 0 of 6, 0 in 0\n", "it's 1 of 6, 1 in 0\n",
                                        "it's 2 of 6, 0 in 1\n", "it's 3 of 6, 0 in 2\n",
                                        "it's 4 of 6, 1 in 2\n", "it's 5 of 6, 2 in 2\n"};
    for (int i = 0; i < 6; i++)
        assert_contains(r.out, lines[i]);
    /* Localhost needs no ssh. */
    assert_false(lks_test_exists(lks_test_text("%s/line-localhost", folder)));
    assert_contains(lks_test_read(lks_test_text("%s/line-three", folder), &bytes),
                    "'--rdzv_id=an '\\''id'\\''' ");
    unsetenv("LOCKSTEP_LINK_TIMEOUT");
    assert_contains(lks_test_read(lks_test_text("%s/line-three", folder), &bytes),
                    "'--link_timeout=20' ");
    /* In this folder, and the program is none of the options. */
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    const char *line = lks_test_read(lks_test_text("%s/line-three", folder), &bytes);
    assert_memory_equal(line, lks_test_text("cd '%s' &&", here), strlen(here) + 8);
    assert_contains(line, " '--' 'sh' '-c' ");
    /* Nor does this machine's name; and the ranks block and ignore the signals that they would
     * without --hosts. */
    char name[256] = "";
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    lks_test_result mask = lks_test_tool("run", "grep", "Sig[BI]", "/proc/self/status");
    r = assert_exits(0, HOSTS("exec grep 'Sig[BI]' /proc/self/status",
                              lks_test_text("--hosts=%s:1", name), rsh, port));
    assert_string_equal(r.out, mask.out);
    assert_false(lks_test_exists(lks_test_text("%s/line-%s", folder, name)));
    /* Options about local ranks, of which this launcher has none; a module of Python. */
    r = assert_exits(0, HOSTS("echo local $LOCAL_RANK", "--hosts=one:2,two:2",
                              "--local-ranks-filter=1", "--redirects=1:0", rsh, port));
    assert_contains(r.out, "local 1\n");
    assert_null(strstr(r.out, "local 0\n"));
    r = assert_exits(
        0, lks_test_run((const char *const[]){"lockstep", "run", "--master-addr=127.0.0.1",
                                              "--hosts=one:1,two:1", rsh, port, "-m", "this", NULL},
                        NULL, 60));
    assert_contains(r.out, "Tim Peters");
    /* The first failure, reported once. */
    const char *list = lks_test_text("%s/hosts", folder),
               *text = "# of the test\n\none slots=1\n  two:2 # both\n";
    lks_test_write(list, text, strlen(text));
    r = assert_exits(6, HOSTS("[ $RANK = 2 ] && exit 6; sleep 50",
                              lks_test_text("--hostfile=%s", list), rsh, port));
    const char *told = lks_test_find(r.err, "lockstep run: rank 2 (pid ");
    assert_null(strstr(told + 1, "lockstep run: rank 2"));
    told = lks_test_find(r.err, "lks-rsh for host ");
    assert_null(strstr(told + 1, "lks-rsh for host "));
    /* Options in the environment, which the launchers inherit. */
    setenv("PET_HOSTS", "one:1,localhost:1", 1);
    setenv("PET_RSH", "lks-rsh option", 1);
    r = assert_exits(0, HOSTS("echo rank $RANK", port));
    assert_contains(r.out, "rank 1\n");
    unsetenv("PET_HOSTS");
    assert_int_equal(HOSTS("true", port).exit_code, 0);
    unsetenv("PET_RSH");
}

TEST(test_hosts_end)
{
    for (int which = 0; which < 2; which++) {
        const char *folder = lks_test_folder(), *rsh = make_rsh(folder), *mark = marked_variable();
        const char *port = lks_test_text("--master-port=%d", lks_test_free_port());
        const char *script =
            lks_test_text("trap 'exit 9' TERM; touch \"%s\"/rank-$RANK; while :; do "
                          "sleep 0.05; done",
                          folder);
        lks_test_child child = lks_test_start(
            (const char *const[]){"env", "--ignore-signal=HUP,CHLD", lks_test_program(), "run",
                                  "--master-addr=127.0.0.1", port, rsh, "--hosts=one:1,two:1", "sh",
                                  "-c", script, NULL},
            (const char *const[]){mark, NULL});
        wait_for_files(folder, 5);
        assert_int_equal(lks_test_count_files(folder), 5); /* the script, two lines, two ranks */
        kill(child.pid, SIGHUP);                           /* ignored, as under nohup */
        kill(child.pid, which == 0 ? SIGTERM : SIGKILL);
        lks_test_result r = lks_test_wait(&child, 60);
        assert_null(strstr(r.err, "ended with code")); /* that was asked for */
        assert_int_equal(which == 0 ? r.exit_code : r.signal, which == 0 ? 9 : SIGKILL);
        marked_assert_gone(mark, 4); /* on the other hosts, too */
    }
}

/* A host is lost: its command waits, and ignores the lifeline's end and SIGTERM. The job ends
 * because of another host, or by the user's third signal. */
TEST(test_hosts_hang)
{
    static const struct {
        const char *hosts;
        int code, commands;
    } cases[] = {{"--hosts=refuses:1,hangs:1", 3, 2}, {"--hosts=hangs:1", 128 + SIGTERM, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const char *folder = lks_test_folder(), *rsh = make_rsh(folder), *mark = marked_variable();
        lks_test_child child = lks_test_start(
            (const char *const[]){"lockstep", "run", rsh, cases[c].hosts, "true", NULL},
            (const char *const[]){mark, NULL});
        wait_for_files(folder,
                       2); /* the script, and the host that hangs: signals are handled by now */
        for (int i = 0; i < lks_test_tries(40) && lks_test_is_running(&child); i++) {
            sleep(1);
            if (c > 0 || i > 6) /* a signal would end the first case before its message */
                kill(child.pid, SIGTERM);
        }
        lks_test_result r =
            assert_exits(cases[c].code, lks_test_wait(&child, 1), "lockstep run: waiting up to ");
        assert_null(strstr(strstr(r.err, "waiting up to ") + 1, "waiting up to ")); /* once */
        assert_contains(r.err, " s for the end of lks-rsh for host hangs\n");
        marked_assert_gone(mark, cases[c].commands);
    }
}

/* The first host's launcher, which prints for all, is killed: others, or the command, say so, also
 * after SIGUSR1, which asks for no end. */
TEST(test_hosts_killed)
{
    const char *folder = lks_test_folder(), *rsh = make_rsh(folder);
    const char *port = lks_test_text("--master-port=%d", lks_test_free_port());
    const char *script =
        lks_test_text("trap 'got=1' USR1; parent() { cut -d ' ' -f 4 /proc/$1/stat; }; "
                      "[ $RANK = 0 ] || : >\"%s/other\"; if [ $RANK = 0 ]; then "
                      "while [ ! -e \"%s/other\" ]; do sleep 0.02; done; own=$(parent $PPID); "
                      "kill -USR1 $(parent $own); while [ ! $got ]; do sleep 0.02; done; "
                      "kill -9 $own; fi; exec sleep 50",
                      folder, folder);
    assert_exits(128 + SIGKILL, HOSTS(script, "--hosts=localhost:1,two:1", rsh, port),
                 "lockstep run: the command for host localhost ended with code 137\n",
                 "lockstep run: the coordinator's node is gone: ");
}

#define TEN "a b c d e f g h i j "
TEST(test_hosts_wrong)
{
    const char *folder = lks_test_folder(), *rsh = make_rsh(folder);
    static const struct {
        const char *options[3], *text;
    } cases[] = {
        {{"--hosts="}, "is no host"},
        {{"--hosts=a,,b"}, "is no host"},
        {{"--hosts=-oProxyCommand=x"}, "is no host"},
        {{"--hosts=[-oProxyCommand=x]"}, "is no host"},
        {{"--hosts=[::1"}, "is no host"},
        {{"--hosts=a:0"}, "from 1 to 1024"},
        {{"--hosts=a:1x"}, "from 1 to 1024"},
        {{"--hosts=a", "--nnodes=2"}, "leave out --nnodes"},
        {{"--hosts=a", "--hostfile=b"}, "not both"},
        {{"--rsh=x"}, "--rsh needs"},
        {{"--hosts=far:1", "--rsh=" TEN TEN TEN TEN TEN TEN "1 2 3 4 5"},
         "--rsh may have 64 words"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_exits(2, run_hosts(marked_variable(), cases[i].options, "touch /nowhere"),
                     cases[i].text);
    static const char *const lines[] = {"a slots = 4", "a 4", "a max_slots=8 slots=4",
                                        "a slots=4 max_slots=8"};
    const char *file = lks_test_text("%s/hosts", folder);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        lks_test_write(file, lines[i], strlen(lines[i]));
        assert_exits(2, HOSTS("true", lks_test_text("--hostfile=%s", file), rsh),
                     "expected HOST, HOST:N or HOST slots=N");
    }
    assert_exits(1, HOSTS("true", "--hostfile=/no/such/file"));
    /* The second host doesn't have the program, and only its launcher knows why the job ends: the
     * second text is told by it. */
    const char *port = lks_test_text("--master-port=%d", lks_test_free_port());
    lks_test_result r = lks_test_tool("run", "--master-addr=127.0.0.1", "--hosts=one:1,lacks:1",
                                      rsh, port, "lks-rsh", "detaches", "now");
    assert_exits(127, r, "can't execute \"lks-rsh\" on host ", "can't execute \"lks-rsh\"\n");
    assert_null(strstr(r.err, "is gone"));
    /* A host that can't be reached is named. */
    assert_exits(255, HOSTS("true", "--hosts=nowhere:1", rsh),
                 "lks-rsh for host nowhere ended with code 255");
    assert_exits(127, HOSTS("true", "--hosts=far:1", "--rsh=lks-no-such-command"),
                 "lks-no-such-command for host far ended with code 127");
    assert_exits(128 + SIGKILL, HOSTS("true", "--hosts=dies:1", rsh),
                 "lks-rsh for host dies ended with code 137");
    assert_exits(3, HOSTS("true", "--hosts=refuses:1,refuses:1", rsh),
                 "lks-rsh for host refuses ended with code 3");
    /* One that ends at once has started no rank, so the job has not succeeded; ranks that exit with
     * the code by which launchers report success haven't, either. */
    assert_exits(1, HOSTS("true", "--hosts=detaches:1", rsh),
                 "lks-rsh for host detaches ended before the ranks there did");
    r = assert_exits(1, HOSTS("true", "--hosts=localhost:1,detaches:1",
                              lks_test_text("--master-port=%d", lks_test_free_port()), rsh));
    assert_null(strstr(r.err, "waiting up to ")); /* the other host is ended at once */
    assert_exits(1, HOSTS("exit 123", "--hosts=far:1", rsh), "exited with code 123");
    /* As many as there may be, and one more. */
    struct lks__host *hosts = calloc(LKS__MAX_HOSTS + 1, sizeof *hosts);
    char list[2 * LKS__MAX_HOSTS + 2];
    int n;
    for (int i = 0; i <= LKS__MAX_HOSTS; i++)
        memcpy(list + 2 * i, "h,", 2);
    list[2 * LKS__MAX_HOSTS - 1] = '\0';
    assert_ok(lks__hosts_parse(list, 3, hosts, &n));
    assert_int_equal(n, LKS__MAX_HOSTS);
    list[2 * LKS__MAX_HOSTS - 1] = ',';
    list[2 * LKS__MAX_HOSTS + 1] = '\0';
    assert_fails(LKS_ERR_CONFIG, lks__hosts_parse(list, 3, hosts, &n), "more than 1024 hosts");
    assert_ok(lks__hosts_parse("h:1024", 3, hosts, &n));
    assert_int_equal(hosts[0].slots, 1024);
    assert_fails(LKS_ERR_CONFIG, lks__hosts_parse("h:1025", 3, hosts, &n), "from 1 to 1024");
    free(hosts);
}

/* The names and ranks that a file of hosts gives. */
TEST(test_hosts_file)
{
    const char *file = lks_test_text("%s/hosts", lks_test_folder());
    struct lks__host hosts[8];
    int n;
    static const char good[] = "# of the test\n\none slots=3\n \ttwo:2 # both\nthree#3\n";
    lks_test_write(file, good, sizeof good - 1);
    assert_ok(lks__hosts_read(file, 5, hosts, &n));
    assert_int_equal(n, 3);
    assert_string_equal(hosts[0].name, "one");
    assert_int_equal(hosts[0].slots, 3);
    assert_string_equal(hosts[1].name, "two");
    assert_int_equal(hosts[1].slots, 2);
    assert_string_equal(hosts[2].name, "three");
    assert_int_equal(hosts[2].slots, 5);
    lks_test_write(file, "one\0two\n", 8);
    assert_fails(LKS_ERR_CONFIG, lks__hosts_read(file, 1, hosts, &n), "is not a text");
    lks_test_write(file, "# one\n\n", 7);
    assert_fails(LKS_ERR_CONFIG, lks__hosts_read(file, 1, hosts, &n), "names no host");
}

/* Signals that come through the lifeline, one by one, and its end. */
TEST(test_lifeline)
{
    int fds[2], before = dup(STDIN_FILENO);
    char token[16];
    static const char text[] = "secret\n15\n0\n99\n10\n2";
    assert_true(before >= 0 && pipe(fds) == 0);
    assert_int_equal(write(fds[1], text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(dup2(fds[0], STDIN_FILENO), STDIN_FILENO);
    lks_status st = lks__lifeline_token(token, sizeof token);
    int first = lks__lifeline_look(), second = lks__lifeline_look(), part = lks__lifeline_look();
    assert_int_equal(write(fds[1], "\n", 1), 1);
    int rest = lks__lifeline_look();
    close(fds[1]);
    int end = lks__lifeline_look();
    dup2(before, STDIN_FILENO);
    close(before);
    close(fds[0]);
    assert_ok(st);
    assert_string_equal(token, "secret");
    assert_int_equal(first, SIGTERM);
    assert_int_equal(second, SIGUSR1); /* 0 and 99 are none */
    assert_int_equal(part, 0);
    assert_int_equal(rest, SIGINT);
    assert_int_equal(end, -1);
}
