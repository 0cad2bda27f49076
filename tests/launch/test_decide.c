/* What a job's nodes make of each other's messages, without processes: the messages stand in a
 * store, as other launchers would have posted them. */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/shm/segment/segment_layout.h"
#include "launch/nodes/nodes.h"
#include "launch/nodes/nodes_state.h"
#include "launch/ranks/supervisor.h"
#include "played_store.h"

static const char token[] = "0123456789abcdef";

/* Node 0 of a job, named "a"; the others are only messages. */
struct job {
    lks__launch_options options;
    struct lks__job job;
    lks__store_server *server;
    lks__store *reader;
    struct lks__nodes *nodes;
};

static lks__store *connect_to(const struct job *j)
{
    lks__store *store = NULL;
    assert_ok(lks__store_open("127.0.0.1", lks__store_port(j->server), token, 10, &store));
    return store;
}

static void open_job(struct job *j, int n, bool coordinator)
{
    static char *const argv[] = {"true", NULL};
    *j = (struct job){
        .options = {.nproc = 1, .argv = argv, .min_nodes = n, .max_nodes = n, .self = "test"}};
    j->job = (struct lks__job){.options = &j->options,
                               .signals = -1,
                               .given_id = "none",
                               .role = "default",
                               .store_host = "127.0.0.1",
                               .host = "host-a"};
    assert_ok(lks__store_serve("127.0.0.1", 0, token, &j->server));
    j->reader = connect_to(j);
    struct lks__nodes *m = lks_test_calloc(1, sizeof *m);
    m->job = &j->job;
    m->say = connect_to(j);
    m->hear = connect_to(j);
    m->self = -1;
    m->min = m->max = n;
    m->key[0] = 'a';
    m->gather_since = m->joined_at = lks__sys_now();
    m->coordinator = coordinator;
    j->nodes = m;
}

static void close_job(struct job *j)
{
    j->nodes->coordinator = false; /* it waits for no other node */
    lks__nodes_close(j->nodes);
    lks__store_close(j->reader);
    lks__store_stop(j->server);
}

static void hear_all(struct job *j, const char *const texts[])
{
    for (; *texts != NULL; texts++)
        assert_ok(lks__nodes_hear(j->nodes, *texts, strlen(*texts)));
}
#define hear(j, ...) hear_all((j), (const char *const[]){__VA_ARGS__, NULL})

static const char *hello_among(char key, int nproc, int min, int max, int rank)
{
    return lks_test_text("{\"is\":\"hello\",\"key\":\"%c\",\"host\":\"host-%c\","
                         "\"nproc\":%d,\"rank\":%d,\"version\":\"" LKS_VERSION_TEXT
                         "\",\"nnodes\":\"%d:%d\",\"run_id\":\"none\",\"max_restarts\":\"0\"}",
                         key, key, nproc, rank, min, max);
}

static const char *hello(char key, int nproc, int n)
{
    return hello_among(key, nproc, n, n, -1);
}

/* One rank on each of n nodes. */
static const char *round_of(int n)
{
    const char *members = "";
    for (int i = 0; i < n; i++)
        members = lks_test_text("%s%s{\"node\":%d,\"group\":%d,\"first\":%d,\"ranks\":1}", members,
                                i > 0 ? "," : "", i, i, i);
    return lks_test_text("{\"is\":\"round\",\"round\":0,\"attempt\":0,\"world\":%d,\"groups\":%d,"
                         "\"port\":1,\"job\":\"x\",\"members\":[%s]}",
                         n, n, members);
}

/* `more` are members of its JSON. */
static const char *verdict_of(int node, const char *more)
{
    return lks_test_text("{\"is\":\"verdict\",\"node\":%d,\"round\":0,%s}", node, more);
}

static void begin(struct job *j, int n)
{
    open_job(j, n, true);
    for (int i = 0; i < n; i++)
        hear(j, hello((char)('a' + i), 1, n));
    hear(j, round_of(n));
    assert_true(j->nodes->running);
}

/* The newest message that node 0 has posted; the test's own were only heard. */
static const json_t *posted(struct job *j, int number)
{
    void *data = NULL;
    size_t bytes;
    assert_ok(
        lks__store_get(j->reader, lks_test_text(LKS__NODES_LIST "/%d", number), 0, &data, &bytes));
    const json_t *message = lks_test_json(data);
    free(data);
    return message;
}

/* The newest one of all. */
static const json_t *last_posted(struct job *j)
{
    int64_t n;
    assert_ok(lks__store_add(j->reader, LKS__NODES_LIST, 0, &n));
    return posted(j, (int)n);
}

static void hear_posted(struct job *j, const json_t *message)
{
    char *text = json_dumps(message, 0);
    hear(j, text);
    free(text);
}

static int number_of(const json_t *m, const char *key)
{
    assert_true(json_is_integer(json_object_get(m, key)));
    return (int)json_integer_value(json_object_get(m, key));
}

/* --- rounds ------------------------------------------------------------------------------- */

/* A node whose ranks all stay idle is no group. */
TEST(test_idle_node)
{
    struct job j;
    open_job(&j, 2, true);
    j.options.virtual_ranks = j.options.nproc = 2;
    hear(&j, hello('a', 2, 2), hello('b', 3, 2));
    assert_true(lks__nodes_gather_more(j.nodes));
    const json_t *round = posted(&j, 1);
    assert_string_equal(lks_test_string(round, "is"), "round");
    assert_int_equal(number_of(round, "world"), 2);
    assert_int_equal(number_of(round, "groups"), 1);
    const json_t *members = json_object_get(round, "members");
    assert_int_equal(json_array_size(members), 2);
    assert_int_equal(number_of(json_array_get(members, 0), "ranks"), 2);
    assert_int_equal(number_of(json_array_get(members, 1), "ranks"), 0);
    close_job(&j);
}

/* A node has left, and the coordinator learns it only after it has posted the round: nobody begins
 * that. It waits for another node, and begins with it. */
TEST(test_left_before_round)
{
    struct job j;
    open_job(&j, 2, true);
    hear(&j, hello('a', 1, 2), hello('b', 1, 2));
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_true(j.nodes->starting);
    hear(&j, "{\"is\":\"lost\",\"key\":\"b\"}", round_of(2));
    assert_false(j.nodes->running);
    assert_false(j.nodes->starting); /* so that it goes on gathering */
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_false(j.nodes->starting);
    hear(&j, hello('c', 1, 2));
    assert_true(lks__nodes_gather_more(j.nodes));
    const json_t *round = posted(&j, 2);
    const json_t *members = json_object_get(round, "members");
    assert_int_equal(json_array_size(members), 2);
    assert_int_equal(number_of(json_array_get(members, 1), "node"), 2);
    hear_posted(&j, round);
    assert_true(j.nodes->running && j.nodes->nodes[2].in_round && !j.nodes->nodes[1].in_round);
    close_job(&j);
}

/* Messages that stand right behind a round's: what they ask for reaches the supervisor of the ranks
 * that the round starts. */
TEST(test_right_after_round)
{
    for (int lost = 0; lost < 2; lost++) {
        struct job j;
        struct lks__nodes_part part;
        struct lks__nodes_event event = {0};
        bool over = true;
        int code = 0, other_end;
        open_job(&j, 2, false);
        const char *const list[] = {hello('a', 1, 2), hello('b', 1, 2), round_of(2),
                                    lost ? "{\"is\":\"lost\",\"key\":\"b\"}"
                                         : "{\"is\":\"signal\",\"node\":1,\"signal\":15}"};
        lks__store_close(j.nodes->hear);
        j.nodes->hear = played_store(token, list, 4, &other_end);
        assert_ok(lks__nodes_ask_next(j.nodes));
        assert_ok(lks__nodes_gather(j.nodes, 0, &part, &over, &code));
        assert_false(over);
        assert_int_equal(part.world_size, 2);
        assert_true(lks__nodes_next(j.nodes, false, &event));
        assert_int_equal(event.end_ours, lost);
        assert_true(lost ? strncmp(event.why, "node 1 (host ", 13) == 0 : event.why[0] == '\0');
        assert_int_equal(event.signal, lost ? 0 : SIGTERM);
        close_job(&j);
        close(other_end);
    }
}

/* A signal to a node that waits for its part. It tells the others that it leaves: they don't begin
 * without it, or stop if they have just begun with it. */
TEST(test_signal_before_round)
{
    static const char leaves[] = "{\"is\":\"signal\",\"key\":\"b\",\"signal\":2,\"leaves\":true}";
    static const struct signalfd_siginfo info = {.ssi_signo = SIGINT};
    struct job j;
    struct lks__nodes_part part;
    bool over;
    int code, fds[2];
    open_job(&j, 2, false); /* it hasn't heard its own hello yet */
    assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(write(fds[1], &info, sizeof info), sizeof info);
    j.job.signals = fds[0];
    assert_ok(lks__nodes_ask_next(j.nodes));
    assert_ok(lks__nodes_gather(j.nodes, 0, &part, &over, &code));
    assert_true(over);
    assert_int_equal(code, 128 + SIGINT);
    const json_t *message = last_posted(&j);
    assert_string_equal(lks_test_string(message, "is"), "signal");
    assert_string_equal(lks_test_string(message, "key"), "a");
    assert_true(json_is_true(json_object_get(message, "leaves")));
    close(fds[0]);
    close(fds[1]);
    close_job(&j);

    open_job(&j, 2, true);
    hear(&j, hello('a', 1, 2), hello('b', 1, 2), leaves, round_of(2));
    assert_false(j.nodes->running);
    close_job(&j);

    begin(&j, 2);
    hear(&j, hello('c', 1, 2)); /* a spare node */
    hear(&j, "{\"is\":\"signal\",\"key\":\"c\",\"signal\":2,\"leaves\":true}");
    assert_int_equal(j.nodes->event.signal, 0);
    hear(&j, leaves);
    assert_int_equal(j.nodes->event.signal, SIGINT);
    assert_true(j.nodes->event.end_ours && j.nodes->event.orderly);
    hear(&j, "{\"is\":\"lost\",\"key\":\"b\"}",
         verdict_of(0, "\"ok\":false,\"code\":130,\"user_signal\":2"));
    lks__nodes_try_to_decide(j.nodes);
    message = last_posted(&j);
    assert_int_equal(number_of(message, "code"), 128 + SIGINT);
    assert_string_equal(lks_test_string(message, "text"), "");
    close_job(&j);
}

/* A node that has left and gets no ranks keeps nobody from beginning. */
TEST(test_left_without_ranks)
{
    struct job j;
    open_job(&j, 2, false);
    hear(&j, hello('a', 1, 2), hello('b', 1, 2), "{\"is\":\"lost\",\"key\":\"b\"}",
         "{\"is\":\"round\",\"round\":0,\"attempt\":0,\"world\":1,\"groups\":1,\"port\":1,"
         "\"job\":\"x\",\"members\":[{\"node\":0,\"group\":0,\"first\":0,\"ranks\":1},"
         "{\"node\":1,\"group\":1,\"first\":1,\"ranks\":0}]}");
    assert_true(j.nodes->running && j.nodes->nodes[0].in_round && !j.nodes->nodes[1].in_round);
    close_job(&j);
}

/* What a node said of the round before counts no more, and a new round begins without its traces.
 */
TEST(test_next_round)
{
    struct job j;
    begin(&j, 2);
    hear(&j, "{\"is\":\"down\",\"node\":1,\"round\":0,\"status\":1,\"why\":\"rank 1\\u0007\"}");
    assert_true(j.nodes->end_by > 0 && j.nodes->event.end_ours && !j.nodes->event.orderly);
    assert_int_equal(j.nodes->event.status, LKS_ERR_ARG);
    assert_string_equal(j.nodes->event.why, "rank 1?");
    hear(&j, "{\"is\":\"end\",\"round\":0,\"again\":true,\"code\":3,\"text\":\"A\"}");
    assert_true(j.nodes->ended && j.nodes->again && !j.nodes->running);
    j.nodes->asked_at = 1;
    hear(&j, round_of(2));
    assert_true(j.nodes->running && !j.nodes->ended && j.nodes->end_by == 0);
    assert_true(j.nodes->asked_at == 0); /* ask again, in this round */
    hear(&j, "{\"is\":\"down\",\"node\":1,\"round\":0}",
         verdict_of(1, "\"ok\":false,\"code\":3,\"text\":\"B\""));
    assert_false(j.nodes->event.end_ours || j.nodes->nodes[1].settled);
    assert_true(j.nodes->nodes[1].down_at == 0);
    close_job(&j);
}

/* A node whose ranks have ended well may leave: that is no failure. */
TEST(test_leaves_at_end)
{
    struct job j;
    begin(&j, 2);
    hear(&j, verdict_of(1, "\"ok\":true,\"code\":0,\"text\":\"\""),
         "{\"is\":\"lost\",\"key\":\"b\"}");
    const struct lks__job_node *b = &j.nodes->nodes[1];
    assert_true(b->settled && b->ok && !b->here && !b->lost);
    assert_int_equal(b->code, 0);
    assert_false(j.nodes->event.end_ours);
    close_job(&j);
}

/* A newcomer whose hello comes after a job's end, or whose store ends before it is heard, doesn't
 * share that end: it joins the next job at that address, here as its first node. */
TEST(test_next_job)
{
    for (int ended = 0; ended < 2; ended++) {
        struct job j;
        struct lks__nodes_part part;
        bool over = true;
        int code = 0, other_end;
        open_job(&j, 1, false);
        snprintf(j.job.token, sizeof j.job.token, "%s", token);
        j.options.node_rank = -1;
        j.job.store_port = lks_test_free_port();
        const char *const list[] = {
            hello('b', 1, 1),
            "{\"is\":\"end\",\"round\":0,\"again\":false,\"code\":0,\"text\":\"\"}",
            hello('a', 1, 1), "{\"is\":\"refuse\",\"node\":1,\"why\":\"it isn't like b\"}"};
        lks__store_close(j.nodes->hear);
        j.nodes->hear = played_store(token, list, ended ? 4 : 1, &other_end);
        assert_ok(lks__nodes_ask_next(j.nodes));
        if (!ended)
            assert_int_equal(shutdown(other_end, SHUT_WR), 0);
        assert_ok(lks__nodes_gather(j.nodes, 0, &part, &over, &code));
        assert_false(over);
        assert_int_equal(part.world_size, 1);
        close_job(&j);
        lks__store_stop(j.job.store);
        close(other_end);
    }
}

/* The coordinator of a job that has ended neither waits for a newcomer to leave, nor refuses it,
 * because it belongs to another job. */
TEST(test_after_the_end)
{
    struct job j;
    begin(&j, 1);
    hear(&j, verdict_of(0, "\"ok\":true,\"code\":0,\"text\":\"\""));
    lks__nodes_try_to_decide(j.nodes);
    hear(&j, hello('b', 1, 2)); /* before the end, and refused */
    const json_t *refusal = last_posted(&j);
    assert_string_equal(lks_test_string(refusal, "is"), "refuse");
    hear_posted(&j, posted(&j, 1));
    assert_true(j.nodes->over);
    hear(&j, hello('c', 1, 1), hello('d', 1, 2));
    assert_int_equal(lks__nodes_here(j.nodes), 1);
    int64_t n;
    assert_ok(lks__store_add(j.reader, LKS__NODES_LIST, 0, &n));
    assert_int_equal(n, 2);
    close_job(&j);
}

/* The coordinator gives up while the job waits for nodes, before its first round or a later one, on
 * a signal or because they don't come: the others leave with its code and the reason. It waits for
 * them, but not if the user sends another signal later. */
TEST(test_gives_up)
{
    for (int i = 0; i < 4; i++) {
        struct job j;
        struct lks__nodes_part part;
        bool over = false;
        int code = 0;
        const bool later = i % 2 == 1, on_signal = i / 2 == 1;
        open_job(&j, 2, true);
        hear(&j, hello('a', 1, 2), hello('b', 1, 2));
        if (later) {
            hear(&j, round_of(2),
                 "{\"is\":\"end\",\"round\":0,\"again\":true,\"code\":3,\"text\":\"A\"}");
        }
        j.nodes->min = j.nodes->max = 3;
        assert_ok(lks__nodes_ask_next(j.nodes));
        int pipes[2];
        if (on_signal) {
            const struct signalfd_siginfo info = {.ssi_signo = SIGTERM};
            assert_int_equal(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
            assert_int_equal(write(pipes[1], &info, sizeof info), sizeof info);
            j.job.signals = pipes[0];
            assert_ok(lks__nodes_gather(j.nodes, later, &part, &over, &code));
            assert_true(over);
            assert_int_equal(code, 128 + SIGTERM);
        } else {
            j.nodes->gather_since = -1000; /* long ago */
            assert_fails(LKS_ERR_TIMEOUT, lks__nodes_gather(j.nodes, later, &part, &over, &code),
                         "2 of at least 3 nodes are here");
        }
        const json_t *end = last_posted(&j);
        assert_string_equal(lks_test_string(end, "is"), "end");
        assert_false(json_is_true(json_object_get(end, "again")));
        assert_int_equal(number_of(end, "code"), on_signal ? 128 + SIGTERM : 1);
        assert_contains(lks_test_string(end, "text"),
                        on_signal ? "signal 15 (SIGTERM) on host host-a ended the job's wait"
                                  : "2 of at least 3 nodes are here after");
        close_job(&j);
        for (int k = 0; k < 2 && on_signal; k++)
            close(pipes[k]);
    }
}

/* ... which the others do at once: those that wait for nodes, and those whose ranks have begun. */
TEST(test_coordinator_gave_up)
{
    static const char end[] =
        "{\"is\":\"end\",\"round\":0,\"again\":false,\"code\":143,\"text\":\"A\"}";
    struct job j;
    struct lks__nodes_part part;
    bool over = false;
    int code = 0;
    open_job(&j, 2, false);
    hear(&j, hello('b', 1, 2), hello('a', 1, 2), end);
    assert_ok(lks__nodes_ask_next(j.nodes));
    assert_ok(lks__nodes_gather(j.nodes, 0, &part, &over, &code));
    assert_true(over);
    assert_int_equal(code, 143);
    close_job(&j);
    for (int settled = 0; settled < 2; settled++) {
        open_job(&j, 2, false);
        hear(&j, hello('b', 1, 2), hello('a', 1, 2), round_of(2));
        if (settled)
            hear(&j, verdict_of(1, "\"ok\":true,\"code\":0,\"text\":\"\""));
        hear(&j, end);
        assert_int_equal(j.nodes->event.end_ours, !settled);
        close_job(&j);
    }
}

/* So does a newcomer whose hello comes just before the end: the coordinator, which hasn't heard the
 * hello yet, waits until the newcomer has left. */
TEST(test_newcomer_at_end)
{
    static const char lost[] = "{\"is\":\"lost\",\"key\":\"b\"}";
    struct job j;
    struct lks__nodes_part part;
    bool over = false;
    int code = 0, status;
    int64_t n;
    open_job(&j, 2, true);
    hear(&j, hello('a', 1, 2));
    const char *newcomer = hello('b', 1, 2);
    assert_ok(lks__store_post_later(j.reader, LKS__NODES_LIST, newcomer, strlen(newcomer)));
    assert_ok(lks__store_add(j.reader, LKS__NODES_LIST, 0, &n)); /* waits for both answers */
    assert_ok(lks__nodes_ask_next(j.nodes));
    j.nodes->gather_since = -1000; /* long ago */
    assert_fails(LKS_ERR_TIMEOUT, lks__nodes_gather(j.nodes, 0, &part, &over, &code),
                 "1 of at least 2 nodes are here");
    setenv("LOCKSTEP_LINK_TIMEOUT", "3600", 1);
    alarm((unsigned)(60 * lks_test_patience()));
    const pid_t leaver = fork();
    if (leaver == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        lks__store *store = connect_to(&j);
        usleep(300000); /* the coordinator must not have left by then */
        assert_ok(lks__store_post_later(store, LKS__NODES_LIST, lost, strlen(lost)));
        assert_ok(lks__store_add(store, LKS__NODES_LIST, 0, &n));
        _exit(0);
    }
    lks__nodes_close(j.nodes);
    alarm(0);
    unsetenv("LOCKSTEP_LINK_TIMEOUT");
    assert_ok(lks__store_add(j.reader, LKS__NODES_LIST, 0, &n));
    assert_int_equal(waitpid(leaver, &status, 0), leaver);
    lks__store_close(j.reader);
    lks__store_stop(j.server);
    assert_int_equal(status, 0);
    assert_int_equal(n, 3); /* hello, end, lost */
}

/* The coordinator has already left when a slow node hears the job's end, during a round or while it
 * waits for one: the end counts. */
TEST(test_left_after_end)
{
    static const char *const list[] = {
        "{\"is\":\"end\",\"round\":0,\"again\":false,\"code\":0,\"text\":\"\"}"};
    for (int i = 0; i < 3; i++) { /* in a round also while the ranks are being ended */
        const bool running = i > 0;
        struct job j;
        struct lks__nodes_part part;
        struct lks__nodes_event event;
        struct lks__nodes_report report = {.table = ""};
        struct lks__verdict v = {.culprit = -1, .exit_code = 3};
        char tail[2 * LKS__TAIL_BYTES] = "";
        bool over = false, again;
        int other_end;
        open_job(&j, 2, false);
        hear(&j, hello('b', 1, 2), hello('a', 1, 2));
        if (running)
            hear(&j, round_of(2));
        j.nodes->stopping = true; /* so the decision may come late */
        j.nodes->end_by = 1;
        lks__store_close(j.nodes->hear);
        j.nodes->hear = played_store(token, list, 1, &other_end);
        assert_ok(lks__nodes_ask_next(j.nodes));
        assert_int_equal(shutdown(other_end, SHUT_RDWR), 0);
        if (i == 2) {
            assert_true(lks__nodes_next(j.nodes, false, &event));
            assert_true(event.end_ours);
            assert_false(lks__nodes_next(j.nodes, false, &event));
        }
        if (running)
            assert_ok(lks__nodes_settle(j.nodes, &report, &v, tail, &again));
        else
            assert_ok(lks__nodes_gather(j.nodes, 0, &part, &over, &v.exit_code));
        assert_int_equal(over, !running);
        assert_int_equal(v.exit_code, 0);
        close_job(&j);
        close(other_end);
    }
}

/* The coordinator waits for the others to leave, but a signal of the user ends that. It doesn't
 * wait if the job was to restart, because the others don't know that they should leave. */
TEST(test_signal_at_end)
{
    for (int again = 0; again < 2; again++) {
        struct job j;
        int fds[2];
        const struct signalfd_siginfo info = {.ssi_signo = SIGTERM};
        begin(&j, 2);
        hear(&j, lks_test_text("{\"is\":\"end\",\"round\":0,\"again\":%s,\"code\":0,\"text\":\"\"}",
                               again ? "true" : "false"));
        assert_ok(lks__nodes_ask_next(j.nodes));
        setenv("LOCKSTEP_LINK_TIMEOUT", "3600", 1);
        assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
        j.job.signals = fds[0];
        alarm((unsigned)(60 * lks_test_patience()));
        const pid_t sender = again ? -1 : fork();
        if (sender == 0) { /* again and again: the first one may be what ended the job */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (; write(fds[1], &info, sizeof info) > 0; usleep(100000))
                continue;
            _exit(1);
        }
        lks__nodes_close(j.nodes);
        alarm(0);
        if (!again) {
            kill(sender, SIGKILL);
            assert_int_equal(waitpid(sender, NULL, 0), sender);
        }
        unsetenv("LOCKSTEP_LINK_TIMEOUT");
        lks__store_close(j.reader);
        lks__store_stop(j.server);
        close(fds[0]);
        close(fds[1]);
    }
}

/* At the start and after a newcomer more nodes may come, so the coordinator waits some seconds for
 * them. After a failure all remaining nodes have reported, and the next round begins at once. */
TEST(test_last_call)
{
    struct job j;
    begin(&j, 2);
    j.nodes->min = 1;
    j.nodes->max = 3;
    j.nodes->running = false;
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_false(j.nodes->starting);
    j.nodes->running = true;
    hear(&j, "{\"is\":\"lost\",\"key\":\"b\"}",
         "{\"is\":\"end\",\"round\":0,\"again\":true,\"code\":3,\"text\":\"A\"}");
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_true(j.nodes->starting);
    j.nodes->starting = false;
    usleep(1000);
    hear(&j, hello_among('c', 1, 1, 3, -1));
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_false(j.nodes->starting);
    j.nodes->joined_at -= 10;
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_true(j.nodes->starting);
    close_job(&j);
}

/* Disks that are full fail again at a restart, so there is none, whichever node reports it. */
TEST(test_full_disk)
{
    for (int full = 0; full < 2; full++) {
        struct job j;
        begin(&j, 2);
        j.options.max_restarts = 2;
        for (int node = 0; node < 2; node++) {
            hear(&j, lks_test_text("{\"is\":\"down\",\"node\":%d,\"round\":0}", node));
            hear(&j,
                 verdict_of(node, lks_test_text("\"ok\":false,\"code\":1,\"follows\":%s,"
                                                "\"lasting\":%s,\"text\":\"%c\"",
                                                node == 0 ? "true" : "false",
                                                full && node == 1 ? "true" : "false", 'A' + node)));
        }
        lks__nodes_try_to_decide(j.nodes);
        const json_t *end = last_posted(&j);
        assert_string_equal(lks_test_string(end, "is"), "end");
        assert_int_equal(json_is_true(json_object_get(end, "again")), !full);
        close_job(&j);
    }
}

/* Our own ranks' end, heard back, isn't another node's; and of two users' signals the first node's
 * counts. */
TEST(test_own_end)
{
    struct job j;
    begin(&j, 2);
    hear(&j, "{\"is\":\"down\",\"node\":0,\"round\":0}");
    assert_true(j.nodes->nodes[0].down_at > 0);
    assert_false(j.nodes->event.end_ours);
    hear(&j, verdict_of(0, "\"ok\":false,\"code\":143,\"user_signal\":15,\"text\":\"\""),
         verdict_of(1, "\"ok\":false,\"code\":130,\"user_signal\":2,\"text\":\"\""));
    lks__nodes_try_to_decide(j.nodes);
    const json_t *end = posted(&j, 1);
    assert_int_equal(number_of(end, "code"), 143);
    assert_false(json_is_true(json_object_get(end, "again")));
    close_job(&j);
}

/* --- which failure is named --------------------------------------------------------------- */

#define FAILED(text, more) "\"ok\":false,\"code\":3,\"text\":\"" text "\"" more
#define BY_SIGNAL          ",\"by_signal\":true"
#define FOLLOWS            ",\"follows\":true"
#define STILL              ",\"still\":true"
#define LEFT               ",\"left\":2" /* 1 + the rank */

/* A node's end, and when it began. */
struct end {
    const char *verdict; /* NULL: it is lost */
    double at;
};

TEST(test_first_failure)
{
    static const struct {
        struct end ends[2];
        const char *named;
        int code;
    } cases[] = {
        {{{FAILED("A", ""), 100}, {FAILED("B", ""), 100.4}}, "A", 3},
        {{{FAILED("A", ""), 100.4}, {FAILED("B", ""), 100}}, "B", 3},
        /* Of ends at about the same time, exit codes are consequences; later ones always are. */
        {{{FAILED("A", ""), 100}, {FAILED("B", BY_SIGNAL), 100.4}}, "B", 3},
        {{{FAILED("A", ""), 100}, {FAILED("B", BY_SIGNAL), 100.6}}, "A", 3},
        {{{FAILED("A", BY_SIGNAL), 100}, {NULL, 100.4}}, "node 1 (host host-b, rank 1)", 1},
        {{{FAILED("A", ""), 100}, {NULL, 100.6}}, "A", 3},
        /* A rank that only noticed another host's end is named if there is nothing else. */
        {{{FAILED("A", FOLLOWS), 100}, {FAILED("B", ""), 107}}, "B", 3},
        {{{FAILED("A", FOLLOWS), 100}, {FAILED("", ""), 100}}, "A", 3},
        /* The cause may be a rank that exited with code 0, if it is the lost one; without it ranks
         * may follow, too. */
        {{{FAILED("rank 1 (the first of b) ended", FOLLOWS), 100}, {FAILED("", LEFT), 100}},
         "rank 1 (host host-b) exited with code 0 while other ranks still waited for it: rank 1 "
         "(the first of b) ended. All",
         3},
        {{{FAILED("A", FOLLOWS), 100}, {FAILED("", LEFT), 100}}, "A", 3},
        {{{FAILED("A", FOLLOWS), 100}, {FAILED("B", LEFT), 107}}, "B", 3},
        {{{FAILED("A", FOLLOWS STILL), 100}, {FAILED("", LEFT), 100}}, "A", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job j;
        begin(&j, 2);
        for (int node = 0; node < 2; node++) {
            const struct end *e = &cases[i].ends[node];
            if (e->verdict != NULL) /* its end begins before it is known how */
                hear(&j, lks_test_text("{\"is\":\"down\",\"node\":%d,\"round\":0}", node));
            else
                hear(&j, "{\"is\":\"lost\",\"key\":\"b\"}");
            assert_true(j.nodes->nodes[node].down_at > 0);
            j.nodes->nodes[node].down_at = e->at;
            if (e->verdict != NULL)
                hear(&j, verdict_of(node, e->verdict));
        }
        lks__nodes_try_to_decide(j.nodes);
        const json_t *end = posted(&j, 1);
        assert_string_equal(lks_test_string(end, "is"), "end");
        assert_contains(lks_test_string(end, "text"), cases[i].named);
        if (strlen(cases[i].named) == 1)
            assert_string_equal(lks_test_string(end, "text"), cases[i].named);
        assert_int_equal(number_of(end, "code"), cases[i].code);
        close_job(&j);
    }
}

#define TABLE(row, more) FAILED("x", ",\"table\":\"head\\n row " row "\\n\"" more)

/* Ranks of three hosts stood still: one table with one head, in the order of groups. */
TEST(test_tables)
{
    struct job j;
    begin(&j, 3);
    j.nodes->nodes[0].group_rank = 2;
    j.nodes->nodes[2].group_rank = 0;
    for (int node = 0; node < 3; node++)
        hear(&j, verdict_of(node, lks_test_text(TABLE("%d", STILL), node)));
    lks__nodes_try_to_decide(j.nodes);
    const json_t *end = posted(&j, 1);
    assert_string_equal(lks_test_string(end, "table"),
                        "head\n host host-c\n row 2\n host host-b\n row 1\n"
                        " host host-a\n row 0\n");
    close_job(&j);
}

/* The table has a line for each host, also for those that sent none, if a rank stood still. */
TEST(test_table_of_all)
{
    for (int still = 0; still < 2; still++) {
        struct job j;
        begin(&j, 5);
        hear(&j, verdict_of(0, still ? TABLE("0", STILL) : TABLE("0", "")),
             verdict_of(1, FAILED("", "")), "{\"is\":\"lost\",\"key\":\"c\"}");
        j.nodes->asked_at = 1; /* long ago: of d and e only d has shown since that it runs */
        j.nodes->nodes[3].alive_at = lks__sys_now();
        j.nodes->end_by = 1;
        lks__nodes_try_to_decide(j.nodes);
        const json_t *end = last_posted(&j);
        assert_string_equal(lks_test_string(end, "table"),
                            still ? "head\n host host-a\n row 0\n"
                                    " host host-b: its ranks have ended\n"
                                    " host host-c: it is gone\n"
                                    " host host-d: its ranks don't end\n"
                                    " host host-e: it doesn't answer\n"
                                  : "");
        close_job(&j);
    }
}

/* A rank that gives another host up is not the culprit: the message is the group's failure, whole,
 * without the rank's last lines. */
TEST(test_silent_host)
{
    static const char text[] = "host a (rank 0) has had no heartbeat from host b (rank 1) for "
                               "more than 5 s, in the barrier: the processes of host b are stopped";
    const lks__launch_options options = {.self = "test"};
    struct lks__job job = {.options = &options, .host = "a"};
    for (int killed = 0; killed < 2; killed++) {
        struct lks__rank_process rank = {
            .code = killed ? SIGKILL : 1, .by_signal = killed, .late = killed};
        struct lks__attempt a = {.job = &job, .nproc = 1, .n_started = 1, .ranks = &rank};
        struct lks__supervisor sup = {.attempt = &a, .first_by_rank = true, .first_rank = -1};
        struct lks__verdict v;
        struct lks__nodes_report report;
        assert_ok(lks__segment_create(1, &a.segment));
        lks__segment_abort_report(a.segment, LKS_ERR_TIMEOUT, -1, text, "head\n row\n");
        snprintf(sup.first_text, sizeof sup.first_text, "%s", text);
        lks__verdict(&sup, &v);
        assert_string_equal(v.text, text);
        assert_int_equal(v.exit_code, 1);
        assert_true(v.elsewhere);
        lks__verdict_report(&sup, &v, &report);
        assert_true(report.follows && report.still);
        lks__segment_close(a.segment);
    }
}

/* The first rank if it exited with code 0, also after others; when all were being ended, only if it
 * had left the group by itself. */
TEST(test_first_left)
{
    for (int late = 0; late < 3; late++) {
        struct lks__rank_process ranks[] = {
            {.order = 1, .late = late > 0}, {.order = 0}, {.code = 1}};
        struct lks__attempt a = {.n_started = 3, .ranks = ranks, .first_global = 4};
        struct lks__supervisor sup = {.attempt = &a};
        struct lks__verdict v = {.culprit = -1};
        struct lks__nodes_report report;
        assert_ok(lks__segment_create(3, &a.segment));
        lks__segment_line(a.segment, 0)->state =
            late == 2 ? (unsigned)LKS__RANK_LEFT : (unsigned)LKS__RANK_JOINED;
        lks__verdict_report(&sup, &v, &report);
        assert_int_equal(report.left, late == 1 ? 0 : 1 + 4);
        lks__segment_close(a.segment);
    }
}

/* A stop may last longer than the time that a failure would have. The coordinator then waits for
 * messages, and doesn't poll without a pause. */
TEST(test_due_while_stopping)
{
    struct job j;
    begin(&j, 2);
    hear(&j, "{\"is\":\"signal\",\"node\":1,\"signal\":15}",
         verdict_of(1, "\"ok\":false,\"code\":143,\"user_signal\":15,\"text\":\"\""));
    j.nodes->end_by = lks__sys_now() + 0.5;
    assert_true(lks__nodes_due(j.nodes) == j.nodes->end_by);
    j.nodes->end_by = 1; /* long ago */
    lks__nodes_try_to_decide(j.nodes);
    assert_false(j.nodes->ended);
    assert_true(lks__nodes_due(j.nodes) > lks__sys_now());
    close_job(&j);
}

/* A launcher shows every second or two that it runs, so a shorter --link-timeout doesn't count for
 * it. */
TEST(test_limit)
{
    static const struct {
        const char *link_s;
        double limit;
    } cases[] = {{"2", 5}, {"5", 5}, {"12", 12}, {"100", 60}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lks__nodes n = {.failing = true};
        setenv("LOCKSTEP_LINK_TIMEOUT", cases[i].link_s, 1);
        assert_true(lks__nodes_limit(&n, 60) == cases[i].limit);
        n.stopping = true;
        assert_true(lks__nodes_limit(&n, 60) == 60);
    }
    unsetenv("LOCKSTEP_LINK_TIMEOUT");
    struct job j;
    begin(&j, 1);
    j.nodes->owed_since = 1; /* long ago, but now the store has answered */
    assert_ok(lks__nodes_ask_next(j.nodes));
    assert_ok(lks__nodes_hear_all(j.nodes));
    assert_true(j.nodes->owed_since == 0);
    close_job(&j);
}

/* A node that was asked, and shows that it runs, isn't dropped, nor is one that couldn't show it to
 * a coordinator that stood still. */
TEST(test_shows_life)
{
    const uint64_t once = 1;
    for (int i = 0; i < 3; i++) { /* neither, shows it, stood still */
        struct job j;
        begin(&j, 2);
        hear(&j, verdict_of(0, FAILED("A", FOLLOWS)));
        j.nodes->patience_s = 60;
        j.nodes->asked_at = 1; /* long ago */
        j.nodes->asked_next = i == 2 ? 1 : lks__sys_now();
        if (i == 1)
            assert_ok(
                lks__store_set(j.reader, lks_test_text(LKS__NODES_ALIVE, 1), &once, sizeof once));
        lks__nodes_ask_for_life(j.nodes);
        assert_int_equal(j.nodes->nodes[1].dropped, i == 0);
        close_job(&j);
    }
}

/* A node asks for a rank that the job doesn't have. One that runs another command may take a free
 * place. */
TEST(test_accepts)
{
    struct job j;
    open_job(&j, 1, true);
    j.nodes->max = 2;
    hear(&j, hello_among('a', 1, 1, 2, -1), round_of(1), hello_among('b', 1, 1, 2, -1));
    assert_int_equal(lks__nodes_here(j.nodes), 2);
    hear(&j, hello_among('c', 1, 1, 2, 2));
    assert_int_equal(lks__nodes_here(j.nodes), 2);
    assert_contains(lks_test_string(last_posted(&j), "why"),
                    "--node-rank is 2 on host host-c, and --nnodes is 1:2");
    close_job(&j);
}

/* A node that can't execute the program leaves if the job restarts. The next round begins without
 * it, even if its loss isn't heard yet. Otherwise it leaves as all do. */
TEST(test_leaver)
{
    for (int again = 0; again < 2; again++) {
        struct job j;
        begin(&j, 2);
        j.nodes->min = 1;
        j.options.max_restarts = again;
        hear(&j, verdict_of(1, FAILED("B", ",\"leaves\":true")), verdict_of(0, FAILED("", "")));
        lks__nodes_try_to_decide(j.nodes);
        hear_posted(&j, last_posted(&j));
        assert_int_equal(lks__nodes_here(j.nodes), again ? 1 : 2);
        if (again) {
            j.nodes->joined_at = 1; /* no other node comes */
            assert_true(lks__nodes_gather_more(j.nodes));
            hear_posted(&j, last_posted(&j));
            assert_true(j.nodes->running && j.nodes->part.world_size == 1);
            hear(&j, "{\"is\":\"lost\",\"key\":\"b\"}");
            assert_false(j.nodes->event.end_ours);
        }
        close_job(&j);
    }
}

/* A node says so itself if a restart has to do without it. */
TEST(test_says_that_it_leaves)
{
    for (int leaves = 0; leaves < 2; leaves++) {
        struct job j;
        const struct lks__nodes_report report = {.leaves = leaves, .table = ""};
        struct lks__verdict v = {.exit_code = 127, .text = "A"};
        char tail[2 * LKS__TAIL_BYTES] = "";
        bool again;
        begin(&j, 1);
        assert_ok(lks__nodes_ask_next(j.nodes));
        assert_ok(lks__nodes_settle(j.nodes, &report, &v, tail, &again));
        const json_t *verdict = posted(&j, 1);
        assert_int_equal(json_is_true(json_object_get(verdict, "leaves")), leaves);
        close_job(&j);
    }
}

/* --- a node that doesn't end its ranks ---------------------------------------------------- */

/* It is left out of the next round. */
TEST(test_dropped)
{
    struct job j;
    begin(&j, 3);
    j.nodes->min = 1;
    j.options.max_restarts = 1;
    hear(&j, verdict_of(0, FAILED("A", FOLLOWS)));
    lks__nodes_try_to_decide(j.nodes);
    assert_false(j.nodes->ended); /* they have some seconds */
    j.nodes->end_by = 1;          /* which are over */
    hear(&j, verdict_of(2, FAILED("", "")));
    lks__nodes_try_to_decide(j.nodes);
    const json_t *drop = posted(&j, 1), *end = posted(&j, 2);
    assert_string_equal(lks_test_string(drop, "is"), "drop");
    assert_int_equal(number_of(drop, "node"), 1);
    assert_contains(lks_test_string(end, "text"),
                    "node 1 (host host-b, rank 1) didn't end its ranks");
    assert_true(json_is_true(json_object_get(end, "again")));
    hear_posted(&j, drop);
    hear_posted(&j, end);
    assert_false(j.nodes->nodes[1].here);
    j.nodes->joined_at = 1; /* no other node comes */
    assert_true(lks__nodes_gather_more(j.nodes));
    assert_true(j.nodes->starting);
    const json_t *round = posted(&j, 3);
    assert_int_equal(number_of(round, "world"), 2);
    assert_int_equal(number_of(json_array_get(json_object_get(round, "members"), 1), "node"), 2);
    close_job(&j);
}

/* If the coordinator's own ranks don't end, it can't begin another round: the job ends. */
TEST(test_dropped_coordinator)
{
    struct job j;
    begin(&j, 2);
    j.options.max_restarts = 1;
    hear(&j, "{\"is\":\"down\",\"node\":0,\"round\":0}", verdict_of(1, FAILED("A", FOLLOWS)));
    j.nodes->end_by = 1;
    struct lks__nodes_event event;
    lks__nodes_next(j.nodes, false, &event); /* as while its ranks run */
    assert_true(j.nodes->ended);
    const json_t *end = last_posted(&j);
    assert_false(json_is_true(json_object_get(end, "again")));
    assert_contains(lks_test_string(end, "text"),
                    "node 0 (host host-a, rank 0) didn't end its ranks");
    assert_int_equal(number_of(end, "code"), 1);
    close_job(&j);
}

/* When it runs again, its ranks are ended, and it ends with a reason, whatever the others do. */
TEST(test_dropped_itself)
{
    for (int again = 0; again < 2; again++) {
        struct job j;
        struct lks__nodes_event event = {0};
        struct lks__nodes_report report = {.table = ""};
        struct lks__verdict v = {.culprit = 0, .exit_code = 137};
        char tail[2 * LKS__TAIL_BYTES] = "";
        bool restart = true;
        int other_end;
        open_job(&j, 2, false);
        const char *const list[] = {
            "{\"is\":\"drop\",\"node\":0,\"why\":\"its ranks didn't end\"}",
            lks_test_text("{\"is\":\"end\",\"round\":0,\"again\":%s,\"code\":1,\"text\":\"A\"}",
                          again ? "true" : "false")};
        hear(&j, hello('a', 1, 2), hello('b', 1, 2), round_of(2));
        lks__store_close(j.nodes->hear);
        j.nodes->hear = played_store(token, list, 2, &other_end);
        assert_ok(lks__nodes_ask_next(j.nodes));
        assert_true(lks__nodes_next(j.nodes, false, &event));
        assert_true(event.end_ours && !j.nodes->ended);
        while (lks__nodes_next(j.nodes, false, &event))
            assert_true(event.end_ours);
        assert_fails(LKS_ERR_PEER, lks__nodes_settle(j.nodes, &report, &v, tail, &restart),
                     "this node isn't part of the job any more: its ranks didn't end");
        assert_false(restart);
        close_job(&j);
        close(other_end);
    }
}

/* This node ends with `v` after all others, and hears the decision. */
static lks_status settle(struct job *j, struct lks__verdict *v)
{
    struct lks__nodes_report report = {.table = ""};
    char tail[2 * LKS__TAIL_BYTES] = "";
    bool again;
    for (int node = 1; node < j->nodes->n_nodes; node++)
        hear(j, verdict_of(node, "\"ok\":true,\"code\":0,\"text\":\"\""));
    assert_ok(lks__nodes_ask_next(j->nodes));
    return lks__nodes_settle(j->nodes, &report, v, tail, &again);
}

/* Only signals that a launcher passes on: the bits of others would be outside of its masks. */
TEST(test_other_signals)
{
    for (int sig = SIGTERM; sig <= 64; sig += 49) {
        struct job j;
        begin(&j, 2);
        hear(&j, lks_test_text("{\"is\":\"signal\",\"node\":1,\"signal\":%d}", sig));
        assert_int_equal(j.nodes->event.signal, SIGTERM);
        close_job(&j);
    }
}

/* A stop that arrives twice, at once, while we wait for the others, is one. */
TEST(test_one_stop_twice)
{
    static const struct signalfd_siginfo twice[2] = {{.ssi_signo = SIGTERM},
                                                     {.ssi_signo = SIGTERM}};
    lks__consoles consoles = {.terminal = false};
    double since;
    lks_status st;
    do { /* this process may stand still between them */
        struct job j;
        struct lks__verdict v = {.culprit = -1};
        int fds[2];
        since = lks__sys_now();
        begin(&j, 2);
        assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
        assert_int_equal(write(fds[1], twice, sizeof twice), sizeof twice);
        j.job.signals = fds[0];
        j.job.consoles = &consoles;
        j.options.quiet = true;
        st = settle(&j, &v);
        close(fds[0]);
        close(fds[1]);
        close_job(&j);
    } while (st != LKS_OK && lks__sys_now() - since > LKS__SAME_CAUSE_S);
    assert_ok(st);
}

/* The user's stop arrives with the last report about a failure. The coordinator decides before it
 * hears its own signal, or has already decided on a restart: the stop isn't lost. */
TEST(test_stop_at_decision)
{
    static const struct signalfd_siginfo info = {.ssi_signo = SIGTERM};
    static const struct timespec now = {0};
    lks__consoles consoles = {.terminal = false};
    sigset_t stops, before;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigprocmask(SIG_BLOCK, &stops, &before);
    for (int decided = 0; decided < 2; decided++) {
        struct job j;
        struct lks__nodes_report report = {.table = ""};
        struct lks__verdict v = {.culprit = -1};
        char tail[2 * LKS__TAIL_BYTES] = "";
        bool again;
        int fds[2];
        begin(&j, 2);
        j.options.max_restarts = 1;
        j.options.quiet = true;
        j.job.consoles = &consoles;
        hear(&j, verdict_of(1, FAILED("B", "")));
        if (decided) {
            hear(&j, verdict_of(0, FAILED("", "")));
            lks__nodes_try_to_decide(j.nodes);
        }
        assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
        assert_int_equal(write(fds[1], &info, sizeof info), sizeof info);
        j.job.signals = fds[0];
        assert_ok(lks__nodes_ask_next(j.nodes));
        assert_ok(lks__nodes_settle(j.nodes, &report, &v, tail, &again));
        const int raised = sigtimedwait(&stops, NULL, &now);
        assert_int_equal(again, decided);
        assert_int_equal(raised, decided ? SIGTERM : -1);
        close(fds[0]);
        close(fds[1]);
        close_job(&j);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* A sentence with any bytes reaches the others. */
TEST(test_text_not_utf8)
{
    struct job j;
    struct lks__verdict v = {.culprit = 0, .exit_code = 3, .text = "A \xff"};
    begin(&j, 2);
    assert_ok(settle(&j, &v));
    assert_string_equal(v.text, "A ?");
    assert_int_equal(v.exit_code, 3);
    close_job(&j);
}

/* The end reaches the others, too, if its text has to be cut, perhaps within a character. */
TEST(test_text_too_long)
{
    static char text[LKS__LAUNCH_MESSAGE + 100];
    for (size_t first = 0; first < 2; first++) {
        struct job j;
        begin(&j, 2);
        memset(text, 'a', first);
        for (size_t i = first; i + 2 < sizeof text; i += 2)
            memcpy(text + i, "\xc3\xa9", 3);
        hear(&j, verdict_of(0, FAILED("", "")),
             verdict_of(1, lks_test_text("\"ok\":false,\"code\":1,\"text\":\"%s\"", text)));
        lks__nodes_try_to_decide(j.nodes);
        hear_posted(&j, last_posted(&j));
        assert_true(j.nodes->over);
        assert_memory_equal(j.nodes->verdict.text, text, LKS__LAUNCH_MESSAGE - 2);
        close_job(&j);
    }
}

/* Ranks of another node fail when ours have ended, but the reader of our output takes nothing: the
 * rest is dropped, so that the others needn't wait for this node until they drop it. */
TEST(test_slow_reader)
{
    static const struct lks__output_plan plan = {.inherit = LKS__STD_ERR, .console = LKS__STD_OUT};
    static const char *const list[] = {"{\"is\":\"down\",\"node\":1,\"round\":0}"};
    static char large[150 << 10];
    struct job j;
    struct lks__attempt a = {.job = &j.job, .nproc = 1, .guard = -1, .guard_fd = -1};
    struct lks__supervisor sup;
    int kept, ends[2], other_end;
    open_job(&j, 2, false);
    hear(&j, hello('a', 1, 2), hello('b', 1, 2), round_of(2));
    lks__store_close(j.nodes->hear);
    j.nodes->hear = played_store(token, list, 1, &other_end);
    assert_ok(lks__nodes_ask_next(j.nodes));
    j.options.shutdown_timeout_s = 0.3;
    const int reader = lks_test_pipe_begin(STDOUT_FILENO, &kept);
    assert_ok(lks__consoles_open(&j.job.consoles));
    assert_ok(lks__output_open(&plan, 1, 0, "host", NULL, j.job.consoles, &j.job.output));
    lks__output_ends(j.job.output, 0, ends);
    assert_int_equal(write(ends[0], "x\n", 2), 2);
    lks__output_started(j.job.output, 0); /* closes the rank's end */
    /* The writer waits with the first of two records, and the second one fills the queue. */
    const struct console *k = &j.job.consoles->at[0];
    for (int n = 0; n < 2;)
        n += lks__writer_add(k->writer, k->sink, "", 0, large, sizeof large, 0);
    assert_ok(lks__supervisor_begin(&sup, &a, j.nodes));
    alarm((unsigned)(20 * lks_test_patience()));
    lks__supervise(&sup);
    alarm(0);
    const size_t dropped = k->dropped;
    close(reader);
    lks__output_close(j.job.output);
    lks__consoles_close(j.job.consoles, -1);
    lks_test_pipe_end(STDOUT_FILENO, kept);
    assert_int_equal(dropped, strlen("[host:0] x\n"));
    j.job.output = NULL;
    j.job.consoles = NULL;
    free(sup.polls);
    close_job(&j);
    close(other_end);
}

/* During a stop each launcher gives its ranks their time, so a node that hasn't reported may still
 * save. Only one whose ranks have been killed has no more than some seconds. */
TEST(test_not_dropped_while_stopping)
{
    struct job j;
    begin(&j, 2);
    hear(&j, verdict_of(1, "\"ok\":false,\"code\":143,\"user_signal\":15,\"text\":\"\""));
    assert_true(j.nodes->event.end_ours && j.nodes->event.orderly);
    j.nodes->end_by = 1;
    lks__nodes_try_to_decide(j.nodes);
    assert_false(j.nodes->ended);
    hear(&j, "{\"is\":\"down\",\"node\":0,\"round\":0}");
    j.nodes->end_by = 1;
    lks__nodes_try_to_decide(j.nodes);
    assert_true(j.nodes->ended);
    const json_t *end = last_posted(&j);
    assert_int_equal(number_of(end, "code"), 143);
    close_job(&j);
}

/* Ranks were killed because they didn't stop: all nodes name them, and the code is SIGKILL's,
 * unless rank 0 has saved. A node whose ranks only followed isn't named. */
TEST(test_killed_while_stopping)
{
    static const struct {
        const char *ends[2];
        int code;
        const char *text;
    } cases[] = {
        {{"\"code\":1,\"text\":\"A\",\"follows\":true",
          "\"code\":137,\"text\":\"B\",\"killed\":true"},
         137,
         "B"},
        {{"\"code\":9,\"text\":\"A\"", "\"code\":137,\"text\":\"B\",\"killed\":true"}, 137, "A; B"},
        {{"\"code\":143,\"text\":\"\"", "\"code\":137,\"text\":\"B\",\"killed\":true"}, 143, "B"},
        {{"\"code\":143,\"text\":\"\",\"follows\":true", "\"code\":1,\"text\":\"B\""}, 143, ""},
        {{"\"code\":137,\"text\":\"A\",\"killed\":true,\"follows\":true",
          "\"code\":137,\"text\":\"B\",\"killed\":true"},
         137,
         "B"},
        {{"\"code\":9,\"text\":\"A\"", "\"code\":9,\"text\":\"B\""}, 9, "A"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job j;
        begin(&j, 2);
        for (int node = 0; node < 2; node++)
            hear(&j, verdict_of(node, lks_test_text("\"ok\":false,\"user_signal\":15,%s",
                                                    cases[i].ends[node])));
        lks__nodes_try_to_decide(j.nodes);
        const json_t *end = last_posted(&j);
        assert_int_equal(number_of(end, "code"), cases[i].code);
        assert_string_equal(lks_test_string(end, "text"), cases[i].text);
        close_job(&j);
    }
}

/* Some nodes' ranks exit with 0 on the user's signal, and another node's fail before they see it:
 * that failure is the reason. */
TEST(test_fails_while_stopping)
{
    for (int failed = 0; failed < 2; failed++) {
        struct job j;
        begin(&j, 2);
        hear(&j, verdict_of(failed, FAILED("A", "")),
             verdict_of(!failed, "\"ok\":false,\"code\":0,\"user_signal\":15,\"text\":\"\""));
        lks__nodes_try_to_decide(j.nodes);
        const json_t *end = last_posted(&j);
        assert_int_equal(number_of(end, "code"), 3);
        assert_string_equal(lks_test_string(end, "text"), "A");
        assert_false(json_is_true(json_object_get(end, "again")));
        close_job(&j);
    }
}

/* --- lost nodes --------------------------------------------------------------------------- */

/* A job that another node can join at the test's server. */
static void open_address(struct job *j)
{
    open_job(j, 2, false);
    j->options.node_rank = 1;
    j->job.store_port = lks__store_port(j->server);
    snprintf(j->job.token, sizeof j->job.token, "%s", token);
}

/* A node's loss is posted after everything that it posted, because both come by one connection. */
TEST(test_loss_comes_last)
{
    struct job j;
    struct lks__nodes *joins = NULL;
    void *data[2] = {NULL};
    size_t bytes;
    open_address(&j);
    assert_ok(lks__nodes_open(&j.job, &joins));
    lks__store_close(joins->say);
    joins->say = NULL;
    for (int i = 0; i < 2; i++)
        assert_ok(lks__store_get(j.reader, lks_test_text(LKS__NODES_LIST "/%d", i + 1),
                                 20 * lks_test_patience(), &data[i], &bytes));
    assert_contains(data[0], "\"hello\"");
    assert_contains(data[1], "\"lost\"");
    lks_test_free(data[0], data[1]);
    lks__nodes_close(joins);
    close_job(&j);
}

/* A list as long as after thousands of nodes that were refused leaves room for the job's own
 * messages: it gets no more from newcomers. */
TEST(test_long_list)
{
    for (int more = -1; more <= 0; more++) {
        struct job j;
        struct lks__nodes *joins = NULL;
        int64_t n;
        open_address(&j);
        assert_ok(lks__store_add(j.reader, LKS__NODES_LIST, 50000 + more, &n));
        if (more < 0)
            assert_ok(lks__nodes_open(&j.job, &joins));
        else
            assert_fails(LKS_ERR_NOMEM, lks__nodes_open(&j.job, &joins),
                         "accepts no more nodes after 50000 messages");
        lks__nodes_close(joins);
        assert_ok(lks__store_add(j.reader, LKS__NODES_LIST, 0, &n));
        if (more == 0)
            assert_int_equal(n, 50000);
        close_job(&j);
    }
}

TEST(test_ranks_of_node)
{
    char text[48];
    struct lks__job_node m = {.first_rank = 2, .n_ranks = 1};
    assert_string_equal(lks__nodes_ranks(&m, text), "rank 2");
    m.n_ranks = 3;
    assert_string_equal(lks__nodes_ranks(&m, text), "ranks 2 to 4");
}

/* If the coordinator loses all others at once, they have hardly failed all. */
TEST(test_lost_all)
{
    static const struct {
        int n, n_lost, n_silent;
        const char *text;
    } cases[] = {{2, 1, 0, "node 1 (host host-b, rank 1) is gone: "},
                 {3, 1, 0, "node 1 (host host-b, rank 1) is gone: "},
                 {2, 0, 1, "node 1 (host host-b, rank 1) doesn't answer: "},
                 {4, 2, 0, "node 1 (host host-b, rank 1) is gone: "},
                 {3, 2, 0, "this host (host-a) lost its connection to all other nodes: "},
                 {3, 1, 1, "this host (host-a) lost its connection to all other nodes: "}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job j;
        begin(&j, cases[i].n);
        hear(&j, verdict_of(0, FAILED("A", FOLLOWS)));
        for (int node = 1; node < cases[i].n; node++)
            if (node <= cases[i].n_lost)
                hear(&j, lks_test_text("{\"is\":\"lost\",\"key\":\"%c\"}", 'a' + node));
            else if (node > cases[i].n_lost + cases[i].n_silent)
                hear(&j, verdict_of(node, FAILED("", "")));
        j.nodes->asked_at = 1; /* long ago, and a silent node hasn't shown since that it runs */
        j.nodes->end_by = 1;
        lks__nodes_try_to_decide(j.nodes);
        const json_t *end = last_posted(&j);
        assert_contains(lks_test_string(end, "text"), cases[i].text);
        assert_int_equal(number_of(end, "code"), 1);
        close_job(&j);
    }
}

/* --- the exit code ------------------------------------------------------------------------ */

/* All ways in which a node's ranks can end; `zero`: all of them exited with 0. */
static const struct way {
    const char *verdict; /* NULL: the node is lost; "": it ends its ranks, and never reports */
    bool zero;
} ways[] = {
    {"\"ok\":true,\"code\":0,\"text\":\"\"", true},
    {"\"ok\":false,\"code\":0,\"user_signal\":15,\"text\":\"\"",
     true}, /* they handled the signal */
    {"\"ok\":false,\"code\":143,\"user_signal\":15,\"text\":\"\"", false},
    {FAILED("A", ""), false},
    {FAILED("A", BY_SIGNAL), false},
    {FAILED("A", FOLLOWS), false},
    {FAILED("", ""), false}, /* ended because of the other node */
    {"\"ok\":false,\"code\":0,\"text\":\"\"", false},
    {"\"ok\":true,\"code\":3,\"text\":\"\"", false},
    {NULL, false},
    {"", false},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static void end_node(struct job *j, int node, const struct way *way)
{
    if (way->verdict == NULL)
        hear(j, lks_test_text("{\"is\":\"lost\",\"key\":\"%c\"}", 'a' + node));
    else if (way->verdict[0] != '\0')
        hear(j, verdict_of(node, way->verdict));
    else
        hear(j, lks_test_text("{\"is\":\"down\",\"node\":%d,\"round\":0}", node));
}

/* A job exits with 0 only if every rank on every node exited with 0, and says why otherwise. */
TEST(test_code_of_nodes)
{
    for (int first = 0; first < N_WAYS; first++)
        for (int second = 0; second < N_WAYS; second++) {
            struct job j;
            begin(&j, 2);
            end_node(&j, 0, &ways[first]);
            end_node(&j, 1, &ways[second]);
            j.nodes->end_by = 1; /* so long ago that no node is waited for */
            lks__nodes_try_to_decide(j.nodes);
            const json_t *end = last_posted(&j);
            bool zero = ways[first].zero && ways[second].zero;
            if ((number_of(end, "code") == 0) != zero)
                fail_msg("ends %d and %d: the job's code is %d", first, second,
                         number_of(end, "code"));
            close_job(&j);
        }
}

/* The same for the ranks of a host: each way in which two ranks end, and each reason why the
 * launcher ended them. */
TEST(test_code_of_ranks)
{
    static const struct lks__rank_process ends[] = {
        {.code = 0},
        {.code = 3},
        {.code = 143},
        {.by_signal = true, .code = SIGSEGV},
        {.by_signal = true, .code = SIGTERM, .late = true},
        {.by_signal = true, .code = SIGKILL, .late = true},
    };
    enum { N = sizeof ends / sizeof ends[0], REASONS = 16 };
    const lks__launch_options options = {.self = "test"};
    struct lks__job job = {.options = &options, .host = "a"};
    lks__segment *segment = NULL;
    assert_ok(lks__segment_create(2, &segment));
    for (int i = 0; i < N * N * REASONS; i++) {
        const int one = i % N, other = i / N % N, reason = i / N / N;
        struct lks__rank_process ranks[2] = {ends[one], ends[other]};
        ranks[1].order = 1;
        struct lks__attempt a = {
            .job = &job, .nproc = 2, .n_started = 2, .ranks = ranks, .segment = segment};
        struct lks__supervisor sup = {.attempt = &a,
                                      .user_signal = reason & 1 ? SIGTERM : 0,
                                      .first_by_rank = (reason & 2) != 0,
                                      .first_rank = reason & 4 ? 1 : -1,
                                      .stood_still = (reason & 12) == 12,
                                      .first_text = "x"};
        struct lks__verdict v;
        lks__verdict(&sup, &v);
        const bool hung = sup.stood_still && sup.user_signal == 0;
        assert_int_equal(v.exit_code == 0, one == 0 && other == 0 && !hung);
        assert_true(!hung || (v.culprit >= 0 && v.text[0] != '\0'));
    }
    lks__segment_close(segment);
}
