/* lockstep doctor finds and prints problems, and its exit code counts them. */
#include "support.h"

#include <linux/filter.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <time.h>

#include "base/number/cpu.h"
#include "comm/store/store.h"
#include "launch/doctor/stream.h"

static lks_test_result doctor(const char *const env[], const char *const args[])
{
    const char *argv[8] = {"lockstep", "doctor"};
    for (int i = 0; args != NULL && args[i] != NULL; i++)
        argv[i + 2] = args[i];
    return lks_test_run(argv, env, 30);
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int count_lines(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; *p != '\0'; p += strcspn(p, "\n") + 1) {
        n += strncmp(p, word, strlen(word)) == 0;
        if (strchr(p, '\n') == NULL)
            break;
    }
    return n;
}

/* Each finding is a line, the last line counts them, and the exit code shows problems. */
static void check_counts(const lks_test_result *r)
{
    int problems = count_lines(r->out, "PROBLEM "), notes = count_lines(r->out, "note ");
    assert_contains(r->out, lks_test_text("\n%d problem%s, %d note%s\n", problems,
                                          problems == 1 ? "" : "s", notes, notes == 1 ? "" : "s"));
    assert_int_equal(r->exit_code, problems > 0);
}

/* The finding with this topic. */
static const char *line_of(const char *text, const char *topic)
{
    const char *at = strstr(text, lks_test_text(" %s ", topic));
    if (at == NULL)
        fail_msg("no finding \"%s\" in: %s", topic, text);
    while (at > text && at[-1] != '\n')
        at--;
    return lks_test_text("%.*s", (int)strcspn(at, "\n"), at);
}

/* A new network namespace, as a container may have it. */
TEST(test_loopback)
{
    lks_test_result r = lks_test_run(
        ARGS("sh", "-c",
             "unshare -rn true || exit 77; exec unshare -rn '" LKS_TEST_TOOL "' doctor"),
        NULL, 30);
    if (r.exit_code == 77)
        lks_test_lacks("namespaces", "no network of its own");
    assert_contains(line_of(r.out, "loopback"), "note ", "lo is down");
    assert_contains(line_of(r.out, "interface"), "no interface to other hosts is up");
    r = lks_test_run(ARGS("unshare", "-rn", "sh", "-c",
                          "ip link add veth0 type veth peer name veth1 && ip link set veth1 up &&"
                          " ip link set veth0 up && ip addr add 10.1.2.3/24 dev veth0 || exit 77;"
                          " LOCKSTEP_TOKEN=0123456789abcdef exec \"$0\" doctor 10.1.2.3",
                          LKS_TEST_TOOL),
                     NULL, 60);
    if (r.exit_code == 77)
        lks_test_lacks("iproute2", "no interfaces of its own");
    assert_contains(r.out, "this host can't reach itself: is lo up?");
}

TEST(test_this_host)
{
    static const char *const topics[] = {"system",        "processor",  "cores",     "memory",
                                         "shared memory", "open files", "file size", "clock",
                                         "backend",       "host name"};
    const char *folder = lks_test_folder();
    lks_test_result r = doctor(NULL, ARGS(lks_test_text("--out_dir=%s/not/yet", folder)));
    check_counts(&r);
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++)
        assert_contains(r.out, lks_test_text(" %s ", topics[i]));
    assert_contains(r.out, "memfd works", "a synced write takes");
    assert_int_equal(lks_test_count_files(folder), 0);
    /* A note on the folder only for a full or slow disk; none on addresses of this host alone. */
    struct statvfs fs;
    assert_int_equal(statvfs(folder, &fs), 0);
    const double left = (double)fs.f_bavail * (double)fs.f_frsize;
    const char *folder_line = line_of(r.out, "out_dir"),
               *took = lks_test_find(folder_line, "takes ");
    if (left > 2e9 && atof(took + strlen("takes ")) < 1000)
        assert_int_equal(strncmp(folder_line, "ok ", 3), 0);
    if (left < 0.5e9) {
        assert_int_equal(strncmp(folder_line, "note ", 5), 0);
        assert_contains(folder_line, " MB free");
    }
    const char *cores = line_of(r.out, "cores"), *allowed = strstr(cores, "allows only ");
    if (allowed != NULL)
        assert_true(atof(allowed + strlen("allows only ")) < atof(strpbrk(cores, "0123456789")));
    /* Busy cores are a note, which names no problem. The line's load is rounded to 0.1. */
    const char *load = line_of(r.out, "load");
    const double above = atof(strpbrk(load, "0123456789")) - lks__cpu_count() / 2.0;
    if (fabs(above) > 0.06)
        assert_int_equal(strncmp(load, "note ", 5) == 0, above > 0);
    assert_null(strstr(r.out, " has 127.0.0.1"));
    assert_contains(r.out, "not checked: links to other hosts");
    assert_int_equal(count_lines(r.out, "verdict: "), 1);
    assert_contains(r.out, r.exit_code == 0 ? "verdict: runs work on this host"
                                            : "verdict: runs will fail");
}

static void check_problem(const lks_test_result *r, const char *topic)
{
    assert_int_equal(r->exit_code, 1);
    assert_contains(r->out, lks_test_text("PROBLEM  %s", topic), "                       -> ",
                    "\nverdict: runs will fail: first solve \"");
    check_counts(r);
}

TEST(test_problems)
{
    lks_test_result r = doctor(ARGS("LOCKSTEP_FAULT=memfd:1:ENOMEM"), NULL);
    check_problem(&r, "shared memory");
    r = doctor(ARGS("LOCKSTEP_CPU=z80"), NULL);
    check_problem(&r, "kernels");
    r = doctor(ARGS("LOCKSTEP_CPU=z80", "LOCKSTEP_FAULT=memfd:1:ENOMEM"), NULL);
    check_problem(&r, "shared memory");
    assert_contains(r.out, "\nverdict: runs will fail: first solve \"kernels\", above\n");
    r = doctor(NULL, ARGS("--out_dir=/proc/self/nowhere"));
    check_problem(&r, "out_dir");
    static const struct {
        const char *limit, *topic;
    } limits[] = {
        {"-n 100", "open files"},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        {"-v 4000000", "address space"}, /* a sanitizer takes the whole address space */
#endif
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const char *const argv[] = {
            "sh", "-c",
            lks_test_text("ulimit %s; exec '%s' doctor", limits[i].limit, LKS_TEST_TOOL), NULL};
        r = lks_test_run(argv, NULL, 30);
        check_problem(&r, limits[i].topic);
    }
    r = lks_test_run((const char *const[]){"sh", "-c", "ulimit -f 500000000; exec \"$0\" doctor",
                                           LKS_TEST_TOOL, NULL},
                     NULL, 30);
    assert_int_equal(strncmp(line_of(r.out, "file size"), "note ", 5), 0);
}

/* The text after `label` in a child's output so far. */
static const char *wait_for(const lks_test_child *child, const char *label)
{
    const char *at;
    lks_test_until((at = strstr(lks_test_read(child->out_path, NULL), label)) != NULL &&
                   strchr(at, '\n') != NULL);
    return at + strlen(label);
}

TEST(test_two_hosts)
{
    const char *const argv[] = {"lockstep", "doctor", "--serve=127.0.0.1:0", NULL};
    lks_test_child serving = lks_test_start(argv, NULL);
    const char *told = wait_for(&serving, "    LOCKSTEP_TOKEN=");
    const char *token = lks_test_text("LOCKSTEP_TOKEN=%.*s", (int)strcspn(told, " "), told);
    told = strstr(told, " doctor ") + strlen(" doctor ");
    const char *where = lks_test_text("%.*s", (int)strcspn(told, "\n"), told);

    lks_test_result r = doctor(ARGS(token), ARGS(where));
    assert_contains(r.out, "agrees with this host");
    const char *link = lks_test_find(r.out, lks_test_text("to %s: round trip ", where));
    assert_contains(link, " MB/s from here on one connection\n");
    const char *rate = lks_test_find(link, " ms, "), *finding = line_of(r.out, "link");
    assert_int_equal(strncmp(finding, "note ", 5) == 0, atof(rate + strlen(" ms, ")) < 50);
    const char *memory = lks_test_find(r.out, " GB are available here, ");
    while (memory[-1] != '\n')
        memory--;
    assert_int_equal(strncmp(memory, "ok ", 3), 0); /* it is the same host */
    assert_contains(r.out, "not checked: links between other hosts",
                    "verdict: runs work on this host and to the hosts named",
                    lks_test_text("here and on %s", where));
    check_counts(&r);
    assert_int_equal(r.exit_code, 0);

    r = doctor(ARGS(token, "LOCKSTEP_CPU=plain"), ARGS(where)); /* another level, if there is one */
    assert_contains(r.out, " level ");
    assert_int_equal(r.exit_code, 0);

    r = doctor(ARGS("LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef"), ARGS(where));
    check_problem(&r, "host");
    r = doctor(NULL, ARGS(where));
    check_problem(&r, "host");
    assert_contains(r.out, "LOCKSTEP_TOKEN is not set");

    kill(serving.pid, SIGTERM);
    r = assert_exits(0, lks_test_wait(&serving, 10));
    assert_null(strstr(r.out, "start with --serve"));
    assert_contains(r.out, "not checked here: links from other hosts, which their own doctors");
    r = doctor(ARGS(token), ARGS(where)); /* the other doctor has ended */
    check_problem(&r, "host");
    assert_contains(r.out, "can't be reached", "firewall");
}

static int stream_port;
static uint8_t stream_secret[LKS__STREAM_SECRET];

static void *send_long(void *rate)
{
    lks__stream_send("127.0.0.1", stream_port, stream_secret, 0.5, rate);
    return NULL;
}

/* Two hosts at once: one after the other, so that each measures the whole link. */
TEST(test_streams_at_once)
{
    lks__stream_sink *sink;
    pthread_t thread;
    double first = 0, second = 0;
    assert_ok(lks__stream_serve("127.0.0.1", stream_secret, &sink));
    stream_port = lks__stream_port(sink);
    assert_int_equal(pthread_create(&thread, NULL, send_long, &first), 0);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    assert_ok(lks__stream_send("127.0.0.1", stream_port, stream_secret, 0.2, &second));
    pthread_join(thread, NULL);
    if (!(first > 0 && second > first / 20))
        fail_msg("%g and %g bytes/s", first, second);
    lks__stream_stop(sink);
}

/* Streams come only from those that know the whole secret. */
TEST(test_streams)
{
    uint8_t secret[LKS__STREAM_SECRET], other[LKS__STREAM_SECRET];
    lks__stream_sink *sink;
    double rate = 0;
    for (int i = 0; i < LKS__STREAM_SECRET; i++)
        secret[i] = (uint8_t)(7 * i + 1);
    assert_ok(lks__stream_serve("127.0.0.1", secret, &sink));
    const int port = lks__stream_port(sink);
    for (int i = 0; i < LKS__STREAM_SECRET; i += LKS__STREAM_SECRET - 1) { /* its first, its last */
        memcpy(other, secret, sizeof secret);
        other[i] ^= 1;
        assert_fails(LKS_ERR_IO, lks__stream_send("127.0.0.1", port, other, 0.02, &rate), "breaks");
    }
    assert_ok(lks__stream_send("127.0.0.1", port, secret, 0.02, &rate));
    assert_true(rate > 0);
    lks__stream_stop(sink);
}

/* A firewall between the hosts passes the port of --serve only: runs would fail, after a minute. */
TEST(test_firewall)
{
    static const char token[] = "0123456789abcdef0123456789abcdef";
    struct {
        int32_t port;
        uint8_t secret[LKS__STREAM_SECRET];
    } door = {0};
    lks__store_server *server;
    lks__store *store;
    const int bound = lks_test_bind(&door.port);
    assert_ok(lks__store_serve("127.0.0.1", 0, token, &server));
    const int port = lks__store_port(server);
    assert_ok(lks__store_open("127.0.0.1", port, token, 10 * lks_test_patience(), &store));
    assert_ok(lks__store_set(store, "stream", &door, sizeof door));
    assert_ok(lks__store_set(store, "facts", "{}", 2));
    lks_test_result r = doctor(ARGS(lks_test_text("LOCKSTEP_TOKEN=%s", token)),
                               ARGS(lks_test_text("127.0.0.1:%d", port)));
    check_problem(&r, "link");
    assert_contains(line_of(r.out, "link"),
                    lks_test_text("can't connect to 127.0.0.1:%d: Connection "
                                  "refused",
                                  door.port));
    assert_contains(r.out, "let firewalls pass all TCP traffic between the hosts");
    lks__store_close(store);
    lks__store_stop(server);
    close(bound);
}

/* A name may stand for an address that no one expects. */
TEST(test_address_of_name)
{
    int port;
    const int bound = lks_test_bind(&port);
    lks__store *store;
    assert_fails(LKS_ERR_TIMEOUT, lks__store_open("localhost", port, "", 0.01, &store),
                 lks_test_text("can't connect to localhost:%d (", port), "1): "); /* or ::1 */
    close(bound);
}

/* Accept a stream at the listener *fd, and leave its connection there. Like a sink that has waited
 * for long, it sends nothing more. */
static void *accept_stream(void *fd)
{
    uint8_t secret[LKS__STREAM_SECRET];
    const int accepted = accept(*(int *)fd, NULL, NULL);
    *(int *)fd = accepted;
    if (recv(accepted, secret, sizeof secret, MSG_WAITALL) == sizeof secret)
        (void)!send(accepted, "", 1, MSG_NOSIGNAL);
    shutdown(accepted, SHUT_WR);
    return NULL;
}

/* Some switch or host has a smaller MTU than this one, and its ICMP messages are lost: the secret
 * arrives, and a stream's packets don't. */
TEST(test_large_packets)
{
    struct sock_filter drop[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), /* with TCP's header, of 60 bytes at most */
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 60 + LKS__STREAM_SECRET, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    const struct sock_fprog filter = {sizeof drop / sizeof drop[0], drop};
    pthread_t thread;
    double rate;
    int port, listener = lks_test_bind(&port), fd = listener;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter), 0);
    assert_int_equal(listen(listener, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, accept_stream, &fd), 0);
    assert_fails(LKS_ERR_PEER, lks__stream_send("127.0.0.1", port, stream_secret, 0.02, &rate),
                 lks_test_text("large packets to 127.0.0.1:%d are lost", port));
    pthread_join(thread, NULL);
    close(fd);
    /* Some packets arrive. */
    fd = listener;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, sizeof(int)), 0);
    assert_int_equal(pthread_create(&thread, NULL, accept_stream, &fd), 0);
    assert_fails(LKS_ERR_IO, lks__stream_send("127.0.0.1", port, stream_secret, 0.02, &rate),
                 "breaks: no answer");
    pthread_join(thread, NULL);
    close(fd);
    close(listener);
}

/* Products of our own: a note, in words that hold for the levels that have good ones, too. */
TEST(test_without_onednn)
{
    lks__cpu_level level;
    assert_ok(lks__cpu_level_get(&level));
    if (level == LKS__CPU_PLAIN)
        return;
    const lks_test_result r = doctor(ARGS("LD_LIBRARY_PATH=" LKS_TEST_NO_DNNL), NULL);
    assert_contains(
        r.out, "matrix products by lockstep's own code\n",
        "install oneDNN (Debian 12: libdnnl2, Debian 13: libdnnl3.6): steps may be faster then");
    check_counts(&r);
}

TEST(test_arguments)
{
    assert_exits(1, doctor(NULL, ARGS("--serve=192.0.2.77:1")), "192.0.2.77");
    assert_exits(2, doctor(NULL, ARGS("--n_layer=3")));
}

int main(void)
{
    unsetenv("LOCKSTEP_TOKEN");
    return lks_test_run_all(NULL, NULL);
}
