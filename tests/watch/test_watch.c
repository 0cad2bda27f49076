/* `lockstep watch` over HTTP: the page, what comes live, and clients that mean no good. */
#include "fake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../fuzz/mutate.h"
#include "base/system/sys.h"
#include "report/live/feed.h"
#include "report/record/outdir.h"

struct served {
    lks_test_child child;
    int port;
};

static struct served serve(const char *const runs[])
{
    const char *argv[16] = {"lockstep", "watch", "--port=0"};
    struct served s = {.port = 0};
    for (int n = 3; *runs != NULL; runs++)
        argv[n++] = *runs;
    s.child = lks_test_start(argv, NULL);
    for (int i = 0; i < lks_test_tries(2000) && s.port == 0; i++, usleep(10000))
        if (!lks_test_exists(s.child.out_path) ||
            sscanf(lks_test_read(s.child.out_path, NULL), "http://%*[0-9.]:%d/", &s.port) != 1)
            s.port = 0;
    if (s.port == 0) {
        lks_test_result r = lks_test_wait(&s.child, 1);
        if (strstr(r.err, "can't serve the page") != NULL)
            lks_test_lacks("libmicrohttpd", "libmicrohttpd-dev");
        fail_msg("no address: %s", r.err);
    }
    return s;
}

/* By Ctrl-C, or by what a service's manager sends. It has said only that. */
static void stop_said(const struct served *s, const char *said)
{
    static int n_stops;
    kill(s->child.pid, n_stops++ % 2 == 0 ? SIGINT : SIGTERM);
    lks_test_result r = lks_test_wait(&s->child, 20);
    if (r.exit_code != 0 || strcmp(r.err, said) != 0)
        fail_msg("exit code %d, signal %d: %s", r.exit_code, r.signal, r.err);
}

static void stop(const struct served *s)
{
    stop_said(s, "");
}

static int dial(const struct served *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    struct timeval limit = {(time_t)(20 * lks_test_patience()), 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Read until the text has `part`, or the end, or too long: an idle server still sends empty lines.
 * Returns what came. */
static const char *read_until(int fd, const char *part)
{
    static char got[1 << 20];
    const double end = lks__sys_now() + 20.0 * lks_test_patience();
    size_t n = 0;
    ssize_t more;
    got[0] = '\0';
    while ((part == NULL || strstr(got, part) == NULL) && n < sizeof got - 1 &&
           lks__sys_now() < end && (more = recv(fd, got + n, sizeof got - 1 - n, 0)) > 0) {
        n += (size_t)more;
        got[n] = '\0';
    }
    return got;
}

static const char *ask(const struct served *s, const char *request)
{
    int fd = dial(s);
    assert_true(fd >= 0);
    assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) > 0);
    const char *got = read_until(fd, NULL);
    close(fd);
    return got;
}

static const char *get(const struct served *s, const char *method, const char *path,
                       const char *host)
{
    return ask(s, lks_test_text("%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", method,
                                path, host));
}

TEST(test_page)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    const char *own = lks_test_text("127.0.0.1:%d", s.port);
    const char *page = get(&s, "GET", "/", own);
    assert_contains(page, "HTTP/1.1 200 OK\r\n", "Content-Security-Policy: default-src 'none';",
                    "\r\nCache-Control: no-store\r\n", "\r\nX-Content-Type-Options: nosniff\r\n",
                    "\r\nReferrer-Policy: no-referrer\r\n",
                    "\r\nCross-Origin-Resource-Policy: same-origin\r\n", "</html>");
    assert_contains(get(&s, "GET", "/", lks_test_text("localhost:%d", s.port)), " 200 OK");
    assert_contains(get(&s, "GET", "/", "localhost:1"), " 200 OK"); /* through a tunnel */
    assert_contains(get(&s, "GET", "/", "[::1]:7000"), " 200 OK");
    assert_contains(get(&s, "HEAD", "/", own), " 200 OK");
    assert_contains(get(&s, "HEAD", "/events", own), " 404 Not Found"); /* it would never end */
    /* Only these two, only to be read, and not for other sites. */
    static const char *const none[] = {
        "/metrics.jsonl", "/../../etc/passwd", "/%2e%2e/etc/passwd", "//",
        "/events/",       "/events.out",       "/index.html"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_contains(get(&s, "GET", none[i], own), " 404 Not Found");
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "LOCK"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        assert_contains(get(&s, methods[i], "/", own), " 405 ");
    static const char *const hosts[] = {"example.org",
                                        "127.0.0.1.example.org",
                                        "192.0.2.7",
                                        "localhost.",
                                        "",
                                        "[::1",
                                        "::1",
                                        "[127.0.0.1]",
                                        "[::1]x",
                                        "localhost:x",
                                        "localhost:1:2"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        assert_contains(get(&s, "GET", "/events", hosts[i]), " 403 ");
    stop(&s);
}

/* On all addresses the server may be asked for by any number and the host's name, but no other. */
TEST(test_any_address)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){"--address=0.0.0.0", dir, NULL});
    char own[65] = "";
    gethostname(own, sizeof own - 1);
    const char *const hosts[] = {"192.0.2.7", "localhost", "[2001:db8::1]", own};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        assert_contains(get(&s, "GET", "/", lks_test_text("%s:%d", hosts[i], s.port)), " 200 OK");
    assert_contains(get(&s, "GET", "/", lks_test_text("example.org:%d", s.port)), " 403 ");
    stop(&s);
}

TEST(test_live)
{
    const char *dir = fake_run("<script>x", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    int fd = dial(&s);
    const char *request =
        lks_test_text("GET /events HTTP/1.1\r\nHost: localhost:%d\r\n\r\n", s.port);
    assert_true(send(fd, request, strlen(request), 0) > 0);
    const char *got = read_until(fd, "\"ckpt-00000020\"]]}");
    assert_contains(got,
                    "\"kind\":\"marks\",\"run\":0,\"rows\":[[0,\"start\",\"\"],[20,\"checkpoint\",",
                    "\"kind\":\"evals\",\"run\":0,\"rows\":[[0,2.45,2.55,null,0.0,0.0,false],",
                    "Content-Type: text/event-stream",
                    "\"names\":[\"<script>x\"]"); /* JSON; the page shows it as text */
    assert_contains(got, "data: {\"kind\":\"points\",\"run\":0,\"rows\":[[0,",
                    "[19,1.5,0.001,1.0,20000.0,2.0,10000.0,0.5,2.0,100.0]",
                    "[20,1.5,1.5,null,20000.0,2.0,true]");
    fake_append(dir, "{'kind':'train','iter':20,'loss':1.25}\n");
    assert_contains(read_until(fd, "[20,1.25,"), "\"kind\":\"points\"");
    fake_ranks(dir, "{'iter':20,'compute_ms':[1],'wait_ms':[2],'memory_bytes':[3]}\n");
    assert_contains(read_until(fd, "\"kind\":\"ranks\""), "[[20,20000.0,2.0,[1],[2],[3]]]");
    fake_append(dir, "{'kind':'eval','iter':21,'val_loss':1.1,'sample':'a\\n<b>'}\n");
    assert_contains(read_until(fd, "\"kind\":\"samples\""), "\"rows\":[[21,\"a\\n<b>\"]]");
    /* The newest 16; a run that goes back makes the later ones again. */
    for (int i = 22; i < 40; i++)
        fake_append(dir, lks_test_text("{'kind':'eval','iter':%d,'sample':'text %d'}\n", i, i));
    got = read_until(fd, "[39,\"text 39\"]]");
    assert_contains(got, "\"rows\":[[24,\"text 24\"],");
    fake_append(dir, "{'kind':'rollback','iter':39,'to':37,'place':'wte'}\n");
    got = read_until(fd, "[37,\"text 37\"]]");
    assert_contains(got, "\"rows\":[[24,\"text 24\"],", "[39,\"rollback\",\"wte\"]",
                    "{\"kind\":\"run\",\"run\":0}"); /* the page begins again */
    fake_append(dir,
                "{'kind':'recheck','iter':40,'right':'0','wrong':[{'host':'a'},{'host':'b'}]}\n"
                "{'kind':'recheck','iter':41,'wrong':[{'host':'a'},{'host':'c'}]}\n");
    got = read_until(fd, "[41,\"recheck\"");
    assert_contains(got, "[40,\"recheck\",\"wrong gradient on host a and b\"]",
                    "[41,\"recheck\",\"wrong gradient on host a or c\"]");
    /* The run ends: what is known of it is sent again. */
    fake_append(dir, "{'kind':'host','micro_batches':[4],'memory_bytes':77}\n");
    assert_contains(read_until(fd, "\"memory_bytes\":77}"), "\"kind\":\"about\"");
    /* A resume cuts the file: everything is sent again. */
    size_t bytes;
    const char *file = lks_test_text("%s/metrics.jsonl", dir), *text = lks_test_read(file, &bytes);
    lks_test_write(file, text, (size_t)(strstr(text, "{\"kind\":\"train\",\"iter\":5") - text));
    got = read_until(fd, "\"kind\":\"marks\"");
    assert_contains(got, "{\"kind\":\"run\",\"run\":0}");
    assert_null(strstr(got, "[5,"));
    close(fd);
    stop(&s);
}

static void move_run(const char *from, const char *to)
{
    assert_int_equal(rename(from, to), 0);
}

static void make_folder(const char *path)
{
    assert_int_equal(mkdir(path, 0777), 0);
}

/* Runs that begin in a watched folder are shown, the first one too; a run that was moved into
 * earlier-1 of its folder isn't one of them. */
TEST(test_later)
{
    const char *base = lks_test_folder(), *one = fake_run("a", 1, 20, 1.5, "\"n_layer\":2"),
               *two = fake_run("b", 1, 20, 1.5, "\"n_layer\":2"),
               *three = fake_run("c", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){base, NULL});
    int fd = dial(&s);
    const char *request =
        lks_test_text("GET /events HTTP/1.1\r\nHost: localhost:%d\r\n\r\n", s.port);
    assert_true(send(fd, request, strlen(request), 0) > 0);
    assert_contains(read_until(fd, "\"names\":[]}"), "\"names\":[]}");
    move_run(one, lks_test_text("%s/a", base));
    const char *got = read_until(fd, "\"kind\":\"marks\"");
    assert_contains(got, "\"names\":[\"a\"]", "{\"kind\":\"run\",\"run\":0}");
    make_folder(lks_test_text("%s/inner", base));
    move_run(two, lks_test_text("%s/inner/b", base));
    got = read_until(fd, "\"kind\":\"marks\",\"run\":1");
    assert_contains(got, "\"names\":[\"a\",\"inner/b\"]");
    assert_null(strstr(got, "\"run\":0}")); /* the others aren't sent again */
    make_folder(lks_test_text("%s/a/earlier-1", base));
    move_run(lks_test_text("%s/a/metrics.jsonl", base),
             lks_test_text("%s/a/earlier-1/metrics.jsonl", base));
    assert_contains(read_until(fd, "\"state\":\"\""), "{\"kind\":\"run\",\"run\":0}");
    move_run(three, lks_test_text("%s/c", base));
    assert_contains(read_until(fd, "\"kind\":\"marks\",\"run\":2"),
                    "\"names\":[\"a\",\"inner/b\",\"c\"]");
    close(fd);
    stop_said(&s,
              lks_test_text("lockstep watch: no run in %s yet; waiting for the first one\n", base));
    const char *empty = lks_test_folder();
    assert_exits(2, lks_test_tool("watch", "--port=0", lks_test_text("%s/none", empty)),
                 "there is no folder ");
    assert_exits(2, lks_test_tool("watch", lks_test_text("--html=%s/page.html", empty), empty),
                 "it contains no metrics.jsonl");
    make_folder(lks_test_text("%s/ckpt-00000001", empty)); /* a program's: no run will begin */
    assert_exits(2, lks_test_tool("watch", "--port=0", empty),
                 "it contains no metrics.jsonl, which `lockstep train` writes");
}

/* The state of a run is that of its lock and of its record. */
TEST(test_state)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    int fd = dial(&s), lock;
    const char *request =
        lks_test_text("GET /events HTTP/1.1\r\nHost: localhost:%d\r\n\r\n", s.port);
    assert_true(send(fd, request, strlen(request), 0) > 0);
    assert_contains(read_until(fd, "\"kind\":\"marks\""), "\"state\":\"complete\"");
    assert_ok(lks__outdir_lock(dir, true, &lock));
    assert_contains(read_until(fd, "\"state\":\"running\""), "\"kind\":\"about\"");
    fake_append(dir, "{'kind':'train','iter':20,'loss':1.25}\n");
    assert_contains(read_until(fd, "[20,1.25,"), "\"points\"");
    close(lock);
    assert_contains(read_until(fd, "\"state\":\"stopped\""), "\"kind\":\"about\"");
    fake_append(dir, "{'kind':'host','schema':1,'command':['lockstep','train','--lock=off'],"
                     "'resumed_iter':21}\n");
    assert_contains(read_until(fd, "\"state\":\"running, or stopped without an end\""), "about");
    close(fd);
    stop(&s);
}

/* --- hostile clients -------------------------------------------------------------------------- */

/* The long form: watch_page --requests=100000 --clients=1000 [--seed=1] */
static int n_requests = 1000, first_seed = 1, n_clients = 200;

const char *const fuzz_words[] = {
    "GET",          "HEAD",       "POST",      " HTTP/1.1\r\n",
    "Host: ",       "\r\n\r\n",   "events",    "Content-Length: ",
    "chunked",      "%2e%2e/",    "../",       "Connection: close\r\n",
    "Expect: 100-", "Upgrade: h", "Range: b=", "\r\n ",
    "ffffffffffff", "-1",         NULL};

void fuzz_broken(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, condition);
    abort();
}

/* Sound requests of all forms. */
static void add_seeds(int port)
{
    static const char *const forms[] = {
        "GET / HTTP/1.1\r\nHost: localhost:%d\r\nAccept: */*\r\n\r\n",
        "GET /events HTTP/1.1\r\nHost: localhost:%d\r\nAccept: text/event-stream\r\n\r\n",
        "HEAD / HTTP/1.0\r\nHost: localhost:%d\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: 3\r\n\r\nabc",
        "PUT /x HTTP/1.1\r\nHost: localhost:%d\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3;x=y\r\nabc\r\n0\r\nTrailer: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\nGET /events HTTP/1.1\r\nHost: "
        "localhost\r\nCookie: a=b; c=\"d\"\r\nAuthorization: Digest username=\"x\"\r\n\r\n"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char text[600];
        int bytes = snprintf(text, sizeof text, forms[i], port);
        fuzz_seed(text, (size_t)bytes);
    }
}

static uint64_t memory_of(const struct served *s)
{
    return lks__sys_proc_bytes(lks_test_text("/proc/%d/status", (int)s->child.pid), "VmRSS");
}

/* Sanitizers keep freed memory. */
static void assert_not_grown(const struct served *s, uint64_t before, int by_less_than_mib)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    assert_true(before > 0 && memory_of(s) > 0);
#else
    assert_true(memory_of(s) < before + ((uint64_t)by_less_than_mib << 20));
#endif
}

static void assert_served(const struct served *s)
{
    assert_contains(get(s, "GET", "/", lks_test_text("localhost:%d", s->port)), " 200 OK");
}

/* All clients are gone: as many descriptors are open as the server itself needs. */
static void wait_until_gone(const struct served *s)
{
    const char *fds = lks_test_text("/proc/%d/fd", (int)s->child.pid);
    lks_test_until(lks_test_count_files(fds) <= 16);
}

/* Requests cut, altered and joined by chance: the page is still served, nothing is written, and the
 * server's memory and descriptors don't grow. */
TEST(test_mutated)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    uint8_t *request = malloc(FUZZ_MAX_INPUT);
    uint64_t before = 0;
    add_seeds(s.port);
    for (int i = 0; i < n_requests; i++) {
        const size_t bytes = mutate_input((uint64_t)first_seed, (uint64_t)i, request);
        int fd = dial(&s);
        assert_true(fd >= 0);
        send(fd, request, bytes, MSG_NOSIGNAL);
        close(fd); /* and no interest in the answer */
        if (i % 500 == 499)
            assert_served(&s);
        if (i == 499)
            before = memory_of(&s);
    }
    assert_served(&s);
    assert_not_grown(&s, before, 32);
    char *huge = (char *)request;
    memset(huge, 'a', FUZZ_MAX_INPUT);
    for (int i = 0; i < 4; i++) {
        int fd = dial(&s);
        send(fd, "GET /", 5, MSG_NOSIGNAL);
        send(fd, huge, FUZZ_MAX_INPUT, MSG_NOSIGNAL);
        close(fd);
    }
    free(request);
    assert_served(&s);
    assert_int_equal(lks_test_count_files(dir), 1);
    wait_until_gone(&s);
    stop(&s);
}

/* Send requests that aren't HTTP, 60 at once, until the server has ended. Wait for the end of each
 * answer: a client that closes first keeps its port for a minute. */
static _Noreturn void send_bad_requests(const struct served *s)
{
    static const char bad[] = "GET / HTTP/1.1\r\nno colon\r\n\r\n";
    char answer[512];
    int fd[60];
    alarm(60);
    for (;;) {
        for (int k = 0; k < 60; k++)
            if ((fd[k] = dial(s)) < 0)
                _exit(0);
        for (int k = 0; k < 60; k++)
            send(fd[k], bad, sizeof bad - 1, MSG_NOSIGNAL);
        for (int k = 0; k < 60; k++) {
            while (recv(fd[k], answer, sizeof answer, 0) > 0)
                ;
            close(fd[k]);
        }
    }
}

/* The server refuses requests that aren't HTTP while it stops, too. */
TEST(test_stopped)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    for (int i = 0; i < 10; i++) {
        struct served s = serve((const char *const[]){dir, NULL});
        const pid_t client = fork();
        if (client == 0)
            send_bad_requests(&s);
        assert_true(client > 0);
        usleep(50000);
        stop(&s);
        assert_int_equal(waitpid(client, NULL, 0), client);
    }
}

/* A reader that leaves in the middle of a message costs no memory. */
TEST(test_left)
{
    const char *dir = fake_run("run", 1, 2000, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    const char *request =
        lks_test_text("GET /events HTTP/1.1\r\nHost: localhost:%d\r\nAccept: */*\r\n\r\n", s.port);
    uint64_t before = 0;
    for (int i = 0; i < 400; i++) { /* 30 kB each */
        const int fd = dial(&s);
        assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) > 0);
        assert_contains(read_until(fd, "\"points\""), " 200 OK");
        close(fd);
        if (i % 200 == 199)
            wait_until_gone(&s);
        if (i == 199)
            before = memory_of(&s);
    }
    assert_not_grown(&s, before, 3);
    stop(&s);
}

/* Clients that send a byte now and then, or never read: others are served, live too, and what waits
 * for those doesn't grow. */
TEST(test_slow)
{
    enum { SLOW = 40, DEAF = 40, MOST = 64 };
    int slow[SLOW], deaf[DEAF], reader[MOST + 1], small = 1024;
    const char *dir = fake_run("run", 1, 2000, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    const char *request =
        lks_test_text("GET /events HTTP/1.1\r\nHost: localhost:%d\r\nAccept: */*\r\n\r\n", s.port);
    for (int i = 0; i < SLOW; i++)
        assert_true((slow[i] = dial(&s)) >= 0);
    for (int i = 0; i < DEAF; i++) {
        assert_true((deaf[i] = dial(&s)) >= 0);
        setsockopt(deaf[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        assert_true(send(deaf[i], request, strlen(request), MSG_NOSIGNAL) > 0);
    }
    const uint64_t before = memory_of(&s);
    int fd = dial(&s);
    assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) > 0);
    assert_contains(read_until(fd, "\"kind\":\"marks\""), "\"points\"");
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < SLOW; i++)
            send(slow[i], request + round, 1, MSG_NOSIGNAL); /* given up after 10 s without one */
        assert_served(&s);
        fake_append(dir, lks_test_text("{'kind':'train','iter':%d,'loss':1.25}\n", 2000 + round));
        assert_contains(read_until(fd, lks_test_text("[%d,1.25,", 2000 + round)), "points");
    }
    /* A slow client is answered, too. */
    int late = dial(&s);
    assert_int_equal(send(late, request, 8, MSG_NOSIGNAL), 8);
    assert_served(&s);
    assert_true(send(late, request + 8, strlen(request) - 8, MSG_NOSIGNAL) > 0);
    assert_contains(read_until(late, "\"kind\":\"marks\""), " 200 OK");
    close(late);
    assert_not_grown(&s, before, 32);
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
    for (int i = 0; i < DEAF; i++)
        close(deaf[i]);
    close(fd);
    /* Readers that are gone leave their places to others: 64 may read, and one more takes the place
     * of the oldest. */
    wait_until_gone(&s);
    for (int i = 0; i <= MOST; i++) {
        assert_true((reader[i] = dial(&s)) >= 0);
        assert_true(send(reader[i], request, strlen(request), MSG_NOSIGNAL) > 0);
        assert_contains(read_until(reader[i], "\r\n"), " 200 OK");
    }
    const char *rest = read_until(reader[0], NULL);
    assert_contains(rest, "event: end\ndata: 0\n\n", "\r\n0\r\n\r\n"); /* the last chunk */
    for (int i = 0; i <= MOST; i++)
        close(reader[i]);
    stop(&s);
}

/* Many clients that send nothing, or half a request: they are given up, and others are served. */
TEST(test_many)
{
    static int fds[4096];
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    int n = 0, quiet = dial(&s);
    const char *events =
        lks_test_text("GET /events HTTP/1.1\r\nHost: localhost:%d\r\n\r\n", s.port);
    assert_true(send(quiet, events, strlen(events), MSG_NOSIGNAL) > 0);
    for (; n < n_clients && n < 4096; n++) {
        fds[n] = dial(&s);
        if (fds[n] < 0)
            break;
        if (n % 2 == 0)
            send(fds[n], "GET / HT", 8, MSG_NOSIGNAL);
    }
    assert_true(n > 100);
    bool served = false;
    for (int i = 0; i < lks_test_tries(3000) && !served; i++, usleep(10000)) {
        int fd = dial(&s);
        const char *request = lks_test_text(
            "GET / HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n\r\n", s.port);
        if (fd >= 0 && send(fd, request, strlen(request), MSG_NOSIGNAL) > 0)
            served = strstr(read_until(fd, NULL), "</html>") != NULL;
        if (fd >= 0)
            close(fd);
    }
    assert_true(served);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    /* A page that gets nothing else gets signs, as events: comments would not reach it. */
    assert_contains(read_until(quiet, "event: sign\ndata: 0\n\n"), "event: sign\n");
    close(quiet);
    stop(&s);
}

TEST(test_taken)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2");
    struct served s = serve((const char *const[]){dir, NULL});
    assert_exits(
        1, lks_test_tool("watch", lks_test_text("--port=%d", s.port), dir),
        lks_test_text("can't serve on 127.0.0.1, port %d: Address already in use; give another "
                      "--port, or 0 for a free one\n",
                      s.port));
    assert_exits(1, lks_test_tool("watch", "--address=example.org", dir),
                 "the address must be written in numbers\n");
    lks_test_result r = lks_test_tool("watch", "--address=192.0.2.7", dir);
    assert_contains(r.err, "; give an --address of this host\n");
    stop(&s);
}

/* One file, with nothing in it that ends the script or comes from elsewhere. */
TEST(test_html)
{
    const char *dir = fake_run("run", 1, 20, 1.5, "\"n_layer\":2,\"x\":\"</script><b>\"");
    const char *file = lks_test_text("%s/run.html", lks_test_folder());
    lks_test_result r = lks_test_do("lockstep", "watch", lks_test_text("--html=%s", file),
                                    lks_test_text("<!--=%s", dir));
    size_t bytes;
    const char *page = lks_test_read(file, &bytes), *data = strstr(page, "id=\"data\">") + 10;
    assert_contains(
        r.err, lks_test_text("lockstep watch: wrote %s (%.1f kB)\n", file, (double)bytes / 1e3));
    const char *end = strstr(data, "</script>");
    const char *json = lks_test_text("%.*s", (int)(end - data), data);
    const json_t *messages = lks_test_json(json);
    assert_int_equal(json_array_size(messages), 6);
    assert_string_equal(lks_test_string(messages, "0.names.0"), "<!--");
    assert_string_equal(lks_test_string(messages, "2.config.x"), "</script><b>");
    assert_int_equal(json_array_size(lks_test_member(messages, "3.rows")), 20);
    assert_null(strchr(json, '<'));
    assert_null(strstr(page, "http://"));
    assert_null(strstr(page, "https://"));
    assert_null(strstr(page, "src="));
}

/* Of a long run every 2nd, 4th, … point is sent. */
TEST(test_long)
{
    lks__series s = {.n_points = 40000};
    s.points = calloc(s.n_points, sizeof *s.points);
    for (size_t i = 0; i < s.n_points; i++)
        s.points[i].iter = i;
    lks__feed *feed = lks__feed_open(&(lks__runs){.all = &s, .n = 1});
    size_t rows = 0;
    for (char *text; (text = lks__feed_next(feed)) != NULL; free(text)) {
        const json_t *o = lks_test_json(text);
        const json_t *all = json_object_get(o, "rows");
        assert_true(strlen(text) < (256 << 10));
        for (size_t i = 0; i < json_array_size(all); i++)
            assert_int_equal(json_integer_value(json_array_get(json_array_get(all, i), 0)),
                             8 * rows++);
    }
    assert_int_equal(rows, 5000);
    /* After its end also the last one, to a page that was open before, and to a new one. */
    s.end = json_object();
    for (int i = 0; i < 2; i++) {
        int last = -1;
        lks__feed *later = i == 0 ? feed : lks__feed_open(&(lks__runs){.all = &s, .n = 1});
        for (char *text; (text = lks__feed_next(later)) != NULL; free(text)) {
            const json_t *o = lks_test_json(text);
            const json_t *all = json_object_get(o, "rows");
            const json_t *newest = json_array_get(all, json_array_size(all) - 1);
            if (newest != NULL)
                last = (int)json_integer_value(json_array_get(newest, 0));
        }
        assert_int_equal(last, 39999);
        s.running = true; /* a state that changes sends it no second time */
        for (char *text; (text = lks__feed_next(later)) != NULL; free(text))
            assert_null(strstr(text, "\"points\""));
        s.running = false;
        if (i == 1)
            lks__feed_close(later);
    }
    json_decref(s.end);
    s.end = NULL;
    free(lks__feed_next(feed)); /* about the run */
    /* The same for what ranks do, with the newest row. */
    s.ranks = json_array();
    for (int i = 0; i < 20000; i++)
        json_array_append_new(s.ranks, json_pack("[i, i, i, n, n, [i, i]]", i, i, i, i, i));
    s.ranks_bytes = 1;
    char *text = lks__feed_next(feed);
    const json_t *o = lks_test_json(text);
    const json_t *sent = json_object_get(o, "rows");
    assert_string_equal(lks_test_string(o, "kind"), "ranks");
    assert_int_equal(json_array_size(sent), 2500);
    assert_int_equal(json_integer_value(lks_test_member(sent, "2499.0")), 19999);
    free(text);
    assert_null(lks__feed_next(feed));
    json_decref(s.ranks);
    lks__feed_close(feed);
    free(s.points);
}

/* A run that has become long while a page was open is sent again, with every 8th point. */
TEST(test_grown)
{
    lks__series s = {.n_points = 2000};
    s.points = calloc(40000, sizeof *s.points);
    lks__feed *feed = lks__feed_open(&(lks__runs){.all = &s, .n = 1});
    size_t rows[2] = {0}, runs[2] = {0};
    for (int grown = 0; grown < 2; grown++, s.n_points = 40000)
        for (char *text; (text = lks__feed_next(feed)) != NULL; free(text)) {
            const json_t *o = lks_test_json(text);
            rows[grown] += json_array_size(json_object_get(o, "rows"));
            runs[grown] += strcmp(json_string_value(json_object_get(o, "kind")), "run") == 0;
        }
    assert_true(runs[0] == 1 && rows[0] == 2000);
    assert_true(runs[1] == 1 && rows[1] == 5000);
    lks__feed_close(feed);
    free(s.points);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "--requests=%d", &n_requests) != 1 &&
            sscanf(argv[i], "--clients=%d", &n_clients) != 1 &&
            sscanf(argv[i], "--seed=%d", &first_seed) != 1) {
            fprintf(stderr, "watch_page [--requests=N] [--clients=N] [--seed=S]\n");
            return 2;
        }
    return lks_test_run_all(NULL, NULL);
}
