/* The job's store: what clients see of each other; clients without the token, or with a broken
 * protocol, change nothing for the others. */
#include "support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/store/address.h"
#include "comm/store/handshake.h"
#include "comm/store/store.h"

static const char token[] = "0123456789abcdef0123456789abcdef";

static lks__store_server *serve(void)
{
    lks__store_server *s = NULL;
    assert_int_equal(lks__store_serve("127.0.0.1", 0, token, &s), LKS_OK);
    return s;
}

static lks__store *join(const lks__store_server *server)
{
    lks__store *s = NULL;
    if (lks__store_open("127.0.0.1", lks__store_port(server), token, 10, &s) != LKS_OK)
        fail_msg("%s", lks_last_error());
    return s;
}

static lks_status post(lks__store *s, const char *list, const char *text)
{
    int64_t sum;
    const lks_status st = lks__store_post_later(s, list, text, strlen(text));
    return st == LKS_OK ? lks__store_add(s, "posted", 1, &sum) : st; /* waits for both answers */
}

static void expect_stored(lks__store *s, const char *key, const char *expected)
{
    void *data = NULL;
    size_t bytes = 99;
    if (lks__store_get(s, key, 5, &data, &bytes) != LKS_OK)
        fail_msg("%s", lks_last_error());
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(data, expected); /* a 0 byte follows */
    free(data);
}

/* --- values and lists --------------------------------------------------------------------- */

TEST(test_values)
{
    lks__store_server *server = serve();
    lks__store *a = join(server), *b = join(server);
    int64_t sum = 0;
    void *data = NULL;
    size_t bytes = 0;
    assert_int_equal(lks__store_set(a, "name", "value", 5), LKS_OK);
    expect_stored(b, "name", "value");
    assert_int_equal(lks__store_set(b, "name", "", 0), LKS_OK);
    expect_stored(a, "name", "");
    assert_int_equal(lks__store_add(a, "count", 5, &sum), LKS_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(lks__store_add(b, "count", -7, &sum), LKS_OK);
    assert_int_equal(sum, -2);
    assert_int_equal(lks__store_add(b, "name", 1, &sum), LKS_ERR_ARG); /* not a number */
    assert_int_equal(lks__store_add(b, "most", INT64_MAX, &sum), LKS_OK);
    assert_int_equal(lks__store_add(b, "most", 1, &sum), LKS_ERR_ARG); /* too large a number */
    /* The largest value, with any bytes. */
    size_t most = LKS__STORE_VALUE_BYTES;
    unsigned char *large = malloc(most);
    for (size_t i = 0; i < most; i++)
        large[i] = (unsigned char)(i * 31 >> 3);
    assert_int_equal(lks__store_set(a, "large", large, most), LKS_OK);
    assert_int_equal(lks__store_get(b, "large", 5, &data, &bytes), LKS_OK);
    assert_int_equal(bytes, most);
    assert_memory_equal(data, large, most);
    free(data);
    assert_int_equal(lks__store_set(a, "large", large, most + 1), LKS_ERR_ARG);
    assert_int_equal(lks__store_set(a, "", "x", 1), LKS_ERR_ARG);
    /* A full store answers so, and its values stay. */
    lks_status st = LKS_OK;
    for (int i = 0; i < 100 && st == LKS_OK; i++)
        st = lks__store_set(a, lks_test_text("fill-%d", i), large, most);
    assert_int_equal(st, LKS_ERR_NOMEM);
    expect_stored(b, "name", "");
    assert_int_equal(lks__store_set(b, "large", large, most), LKS_OK); /* in its own place */
    free(large);
    lks__store_close(a);
    lks__store_close(b);
    lks__store_stop(server);
}

/* The longest names are whole, and longer ones are refused: a part of one is another name. */
TEST(test_long_names)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    char name[LKS__STORE_KEY_BYTES + 1];
    memset(name, 'x', sizeof name);
    name[LKS__STORE_KEY_BYTES] = '\0';
    assert_int_equal(lks__store_set(a, name, "v", 1), LKS_ERR_ARG);
    assert_non_null(strstr(lks_last_error(), "1 to 255"));
    name[LKS__STORE_KEY_BYTES - 1] = '\0';
    assert_int_equal(lks__store_set(a, name, "v", 1), LKS_OK);
    expect_stored(a, name, "v");
    name[LKS__STORE_KEY_BYTES - 20] = '\0'; /* of a list: no room for all numbers behind it */
    assert_int_equal(post(a, name, "v"), LKS_ERR_ARG);
    name[LKS__STORE_KEY_BYTES - 24] = '\0';
    assert_int_equal(post(a, name, "v"), LKS_OK);
    expect_stored(a, lks_test_text("%s/1", name), "v");
    lks__store_close(a);
    lks__store_stop(server);
}

struct later {
    const lks__store_server *server;
    const char *key;
};

static void *set_later(void *arg)
{
    const struct later *l = arg;
    lks__store *s = NULL;
    if (lks__store_open("127.0.0.1", lks__store_port(l->server), token, 10, &s) == LKS_OK) {
        usleep(100000);
        lks__store_set(s, l->key, "late", 4);
    }
    lks__store_close(s);
    return NULL;
}

TEST(test_waiting)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    void *data = NULL;
    size_t bytes;
    double before = lks__sys_now();
    assert_int_equal(lks__store_get(a, "never\x1b", 0.2, &data, &bytes), LKS_ERR_TIMEOUT);
    double took = lks__sys_now() - before;
    assert_true(took >= 0.199 && took < 3 * lks_test_patience());
    assert_non_null(strstr(lks_last_error(), "\"never\\x1b\""));
    pthread_t thread;
    struct later l = {server, "late"};
    assert_int_equal(pthread_create(&thread, NULL, set_later, &l), 0);
    expect_stored(a, "late", "late"); /* the connection is still good */
    pthread_join(thread, NULL);
    lks__store_close(a);
    lks__store_stop(server);
}

/* `waiter` has asked for a number: it arrives. */
static void expect_number(lks__store *waiter, int64_t expected)
{
    struct pollfd p = {.fd = lks__store_fd(waiter), .events = POLLIN};
    void *data = NULL;
    size_t bytes = 0;
    assert_int_equal(poll(&p, 1, (int)(5000 * lks_test_patience())), 1);
    assert_int_equal(lks__store_answer(waiter, &data, &bytes), LKS_OK);
    assert_int_equal(bytes, sizeof expected);
    assert_memory_equal(data, &expected, sizeof expected);
    free(data);
}

/* A number can be waited for, and so can the length of a list. */
TEST(test_waiting_for_numbers)
{
    lks__store_server *server = serve();
    lks__store *a = join(server), *b = join(server);
    int64_t sum;
    assert_int_equal(lks__store_ask(b, "count"), LKS_OK);
    assert_int_equal(lks__store_add(a, "count", 7, &sum), LKS_OK);
    expect_number(b, 7);
    assert_int_equal(lks__store_ask(b, "log"), LKS_OK);
    assert_int_equal(post(a, "log", "one"), LKS_OK);
    expect_number(b, 1);
    lks__store_close(a);
    lks__store_close(b);
    lks__store_stop(server);
}

/* Calls that don't wait arrive in order, and before what the same connection asks for later. */
TEST(test_later)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    assert_int_equal(lks__store_told(a), LKS_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lks__store_set_later(a, "x", &"012"[i], 1), LKS_OK);
    assert_int_equal(lks__store_post_later(a, "log", "one", 3), LKS_OK);
    expect_stored(a, "x", "2");
    expect_stored(a, "log/1", "one");
    assert_int_equal(lks__store_told(a), LKS_OK);
    assert_int_equal(lks__store_set_later(a, "x", "3", 1), LKS_OK);
    lks_status st = LKS_IN_PROGRESS;
    for (int i = 0; i < lks_test_tries(2000) && st == LKS_IN_PROGRESS; i++, usleep(1000))
        st = lks__store_told(a);
    assert_int_equal(st, LKS_OK);
    lks__store_stop(server);
    st = lks__store_set_later(a, "x", "4", 1);
    st = st == LKS_OK ? lks__store_told(a) : st;
    assert_int_equal(st, LKS_ERR_PEER);
    lks__store_close(a);
}

TEST(test_lists_and_wills)
{
    lks__store_server *server = serve();
    lks__store *a = join(server), *b = join(server), *c = join(server);
    void *data = NULL;
    size_t bytes = 0;
    assert_int_equal(post(a, "log", "one"), LKS_OK);
    assert_int_equal(lks__store_will(b, "log", "not this", 8), LKS_OK);
    assert_int_equal(lks__store_will(b, "log", "b is gone", 9), LKS_OK);
    expect_stored(c, "log/1", "one");
    assert_int_equal(lks__store_ask(a, "log/2"), LKS_OK);
    assert_int_equal(lks__store_answer(a, &data, &bytes), LKS_IN_PROGRESS);
    lks__store_close(c); /* has no will */
    usleep(50000);
    assert_int_equal(lks__store_answer(a, &data, &bytes), LKS_IN_PROGRESS);
    lks__store_close(b);
    struct pollfd p = {.fd = lks__store_fd(a), .events = POLLIN};
    assert_int_equal(poll(&p, 1, lks_test_tries(5000)), 1);
    assert_int_equal(lks__store_answer(a, &data, &bytes), LKS_OK);
    assert_string_equal(data, "b is gone");
    free(data);
    lks__store_close(a);
    lks__store_stop(server);
}

TEST(test_server_gone)
{
    lks__store_server *server = serve();
    lks__store *a = join(server), *b = NULL;
    int port = lks__store_port(server);
    lks__store_stop(server);
    assert_int_equal(lks__store_set(a, "k", "v", 1), LKS_ERR_PEER);
    lks__store_close(a);
    assert_int_equal(lks__store_open("127.0.0.1", port, token, 0.3, &b), LKS_ERR_TIMEOUT);
    assert_non_null(strstr(lks_last_error(), "Connection refused"));
    /* Its port is free at once. */
    assert_int_equal(lks__store_serve("127.0.0.1", port, token, &server), LKS_OK);
    lks__store_server *second = NULL;
    assert_int_equal(lks__store_serve("127.0.0.1", port, token, &second), LKS_ERR_SUPPORT);
    assert_non_null(strstr(lks_last_error(), "in use"));
    assert_int_equal(lks__store_serve("192.0.2.1", 0, token, &second), LKS_ERR_SUPPORT);
    lks__store_stop(server);
}

TEST(test_one_address_only)
{
    lks__store_server *server = serve();
    lks__store *s = NULL;
    /* Another address of this same machine. */
    assert_int_equal(lks__store_open("127.0.0.2", lks__store_port(server), token, 0, &s),
                     LKS_ERR_TIMEOUT);
    lks__store_stop(server);
}

TEST(test_environment)
{
    lks__store_server *server = serve();
    lks__store *s = NULL;
    unsetenv(LKS__STORE_ENV);
    setenv(LKS__TOKEN_ENV, token, 1);
    assert_int_equal(lks__store_open_env(5, &s), LKS_ERR_SUPPORT);
    setenv(LKS__STORE_ENV, lks_test_text("127.0.0.1:%d", lks__store_port(server)), 1);
    assert_int_equal(lks__store_open_env(5, &s), LKS_OK);
    char local[64];
    assert_int_equal(lks__store_local_address(s, local, sizeof local), LKS_OK);
    assert_string_equal(local, "127.0.0.1");
    lks__store_close(s);
    lks__store_stop(server);
}

static int option_of(const lks__store *s, int option)
{
    int value = 0;
    socklen_t n = sizeof value;
    assert_int_equal(getsockopt(lks__store_fd(s), IPPROTO_TCP, option, &value, &n), 0);
    return value;
}

/* After how many seconds the kernel closes the connection to a machine that is off: by keep-alive,
 * or if data are on their way. */
TEST(test_link_timeout)
{
    static const struct {
        const char *given;
        int seconds;
    } links[] = {{NULL, 5}, {"", 5}, {"2", 2}, {"12", 12}, {"600", 600}, {"3600", 3600}};
    static const char *const bad[] = {"1", "3601", "-5", "5s", "x", "2.5", " 7", "99999999999"};
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        unsetenv("LOCKSTEP_LINK_TIMEOUT");
        if (links[i].given != NULL)
            setenv("LOCKSTEP_LINK_TIMEOUT", links[i].given, 1);
        lks__store_server *server = serve();
        lks__store *s = NULL;
        assert_ok(lks__store_open("127.0.0.1", lks__store_port(server), token, 5, &s));
        assert_int_equal(option_of(s, TCP_USER_TIMEOUT), 1000 * links[i].seconds);
        assert_int_equal(option_of(s, TCP_KEEPIDLE) +
                             option_of(s, TCP_KEEPCNT) * option_of(s, TCP_KEEPINTVL),
                         links[i].seconds);
        lks__store_close(s);
        lks__store_stop(server);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lks__store_server *server = NULL;
        lks__store *s = NULL;
        setenv("LOCKSTEP_LINK_TIMEOUT", bad[i], 1);
        assert_int_equal(lks__store_serve("127.0.0.1", 0, token, &server), LKS_ERR_CONFIG);
        assert_contains(lks_last_error(),
                        lks_test_text("LOCKSTEP_LINK_TIMEOUT is \"%s\": it must be a whole number "
                                      "of seconds from 2 to 3600",
                                      bad[i]));
        assert_int_equal(lks__store_open("127.0.0.1", 1, token, 5, &s), LKS_ERR_CONFIG);
    }
    unsetenv("LOCKSTEP_LINK_TIMEOUT");
}

TEST(test_addresses)
{
    char host[64], text[LKS__ADDRESS_BYTES];
    int port = 7;
    assert_int_equal(lks__address_parse("it", "node-1", host, sizeof host, &port), LKS_OK);
    assert_string_equal(host, "node-1");
    assert_int_equal(port, 7);
    assert_int_equal(lks__address_parse("it", "[fe80::1]:29", host, sizeof host, &port), LKS_OK);
    assert_string_equal(host, "fe80::1");
    assert_int_equal(port, 29);
    assert_string_equal(lks__address_text(text, host, port), "[fe80::1]:29");
    assert_int_equal(lks__address_parse("it", "::1", host, sizeof host, &port), LKS_OK);
    assert_string_equal(host, "::1");
    struct addrinfo *list;
    char number[LKS__NUMBER_BYTES];
    assert_ok(lks__address_find("[::1]", 29, true, &list));
    assert_true(lks__address_number(list->ai_addr, number));
    assert_string_equal(number, "::1");
    freeaddrinfo(list);
    assert_string_equal(lks__address_text(text, "[::1]", 29), "[::1]:29");
    static const char *const bad[] = {"",     ":1",   "a:",   "a:b",   "a:65536",
                                      "a:-1", "[::1", "[]:1", "[::1]x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(lks__address_parse("it", bad[i], host, sizeof host, &port),
                         LKS_ERR_CONFIG);
    assert_int_equal(lks__address_parse("it", "node-1", host, 6, &port), LKS_ERR_CONFIG);
    assert_int_equal(lks__address_parse("it", "node-1", host, 7, &port), LKS_OK);
}

/* --- strangers ---------------------------------------------------------------------------- */

/* HMAC-SHA256 of "client" and both nonces, as Python's hmac gives it, for tokens shorter than a
 * block of the hash, as long, and longer; and no byte of it may differ. */
TEST(test_proof)
{
    static const struct {
        const char *token, *mac;
    } cases[] = {
        {token, "484a92380e0451c46634407de0b0092bfa966677b4a51860f3bd5ba3d5cb2986"},
        {"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
         "855a62fc85d8a790905f80f53c42c311df14706445dcd1e15350250b5196c798"},
        {"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
         "a0b0d8ba065a3b8598d2397a1f0e29cb0bf9ea7ad01f7631b5d9cb153a28525b"},
    };
    unsigned char nonces[2][LKS__NONCE_BYTES], mac[LKS__MAC_BYTES], other[LKS__MAC_BYTES];
    for (int i = 0; i < LKS__NONCE_BYTES; i++) {
        nonces[0][i] = (unsigned char)i;
        nonces[1][i] = (unsigned char)(i + LKS__NONCE_BYTES);
    }
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[2 * LKS__MAC_BYTES + 1];
        lks__prove(cases[c].token, "client", nonces[0], nonces[1], mac);
        for (int i = 0; i < LKS__MAC_BYTES; i++)
            snprintf(text + 2 * i, 3, "%02x", mac[i]);
        assert_string_equal(text, cases[c].mac);
    }
    for (int i = 0; i < LKS__MAC_BYTES; i++) {
        memcpy(other, mac, sizeof mac);
        assert_true(lks__same_mac(mac, other));
        other[i] ^= 0x80;
        assert_false(lks__same_mac(mac, other));
    }
}

TEST(test_wrong_token)
{
    lks__store_server *server = serve();
    lks__store *s = NULL;
    double before = lks__sys_now();
    assert_int_equal(lks__store_open("127.0.0.1", lks__store_port(server), "another", 10, &s),
                     LKS_ERR_CONFIG);
    assert_true(lks__sys_now() - before < 2 * lks_test_patience()); /* at once */
    assert_non_null(strstr(lks_last_error(), "token"));
    assert_null(strstr(lks_last_error(), token));
    lks__store_stop(server);
}

static void *serve_later(void *arg)
{
    const int *port = arg;
    lks__store_server *server = NULL;
    usleep(100000);
    return lks__store_serve("127.0.0.1", *port, token, &server) == LKS_OK ? server : NULL;
}

/* A client that comes before the store tries again. */
TEST(test_late_server)
{
    int port = lks_test_free_port();
    lks__store *a = NULL;
    pthread_t thread;
    void *server;
    assert_int_equal(pthread_create(&thread, NULL, serve_later, &port), 0);
    const int next = dup(0);
    close(next);
    lks_status st = lks__store_open("127.0.0.1", port, token, 10 * lks_test_patience(), &a);
    pthread_join(thread, &server);
    assert_non_null(server);
    assert_int_equal(st, LKS_OK);
    assert_int_equal(lks__store_set(a, "k", "v", 1), LKS_OK);
    lks__store_close(a);
    lks__store_stop(server);
    const int then = dup(0);
    close(then);
    assert_int_equal(then, next); /* nothing of the tries is left open */
}

/* Listens where the job's store should, without the secret. It may answer anything: no proof, one
 * made with another secret, the client's own sent back; or it is another version's. */
struct impostor {
    int fd, way;
    unsigned char nonce[LKS__NONCE_BYTES]; /* of the client */
};

static void *pretend(void *arg)
{
    struct impostor *p = arg;
    struct lks__hello hello = {.magic = {'L', 'K', 'S', 'T', 'O', 'R', 'E', '1'}, .nonce = {7}};
    struct lks__proof proof;
    struct lks__verdict verdict = {.refused = 0};
    hello.magic[7] = p->way == 4 ? '2' : '1';
    int fd = accept(p->fd, NULL, NULL);
    (void)!send(fd, &hello, 9, MSG_NOSIGNAL); /* the rest may come later */
    usleep(10000);
    if (fd >= 0 && send(fd, (char *)&hello + 9, sizeof hello - 9, MSG_NOSIGNAL) > 0 &&
        recv(fd, &proof, sizeof proof, MSG_WAITALL) == sizeof proof) {
        memcpy(p->nonce, proof.nonce, sizeof p->nonce);
        if (p->way == 1)
            lks__prove("another secret, as long as theirs", "server", hello.nonce, proof.nonce,
                       verdict.mac);
        if (p->way == 2)
            memcpy(verdict.mac, proof.mac, sizeof verdict.mac);
        /* The true server: shows that the others fail only because of their proof. */
        if (p->way >= 3)
            lks__prove(token, "server", hello.nonce, proof.nonce, verdict.mac);
        (void)!send(fd, &verdict, sizeof verdict, MSG_NOSIGNAL);
        char rest;
        (void)!recv(fd, &rest, 1, 0); /* until the client closes */
    }
    close(fd);
    return NULL;
}

TEST(test_impostor)
{
    unsigned char last[LKS__NONCE_BYTES] = {0};
    for (int way = 0; way <= 4; way++) {
        int port;
        struct impostor p = {lks_test_bind(&port), way, {0}};
        assert_int_equal(listen(p.fd, 1), 0);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, pretend, &p), 0);
        lks__store *s = NULL;
        lks_status st = lks__store_open("127.0.0.1", port, token, 10, &s);
        if (way == 3) {
            assert_int_equal(st, LKS_OK);
        } else {
            assert_int_equal(st, way == 4 ? LKS_ERR_FORMAT : LKS_ERR_CONFIG);
            assert_contains(lks_last_error(), way == 4
                                                  ? "is not a store of this version of lockstep"
                                                  : "has another token than this process");
            assert_null(s);
        }
        lks__store_close(s);
        pthread_join(thread, NULL);
        close(p.fd);
        assert_true(way == 4 || memcmp(p.nonce, last, sizeof last) != 0); /* a new one each time */
        memcpy(last, p.nonce, sizeof last);
    }
}

/* A server that answers only when it is told to. */
struct slow {
    int fd, port;
    sem_t may_answer;
};

static bool answer(int fd, const char *text)
{
    const struct lks__reply reply = {LKS__ANSWER_OK, (uint32_t)strlen(text)};
    return send(fd, &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply &&
           send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

/* NULL if the client doesn't send two gets of keys with three bytes. */
static void *answer_slowly(void *arg)
{
    struct slow *s = arg;
    const struct lks__hello hello = {.magic = {'L', 'K', 'S', 'T', 'O', 'R', 'E', '1'}};
    struct lks__proof proof;
    struct lks__verdict verdict = {.refused = 0};
    char request[sizeof(struct lks__request) + 3 + sizeof(uint32_t)];
    const int fd = accept(s->fd, NULL, NULL);
    bool ok = send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello &&
              recv(fd, &proof, sizeof proof, MSG_WAITALL) == sizeof proof;
    lks__prove(token, "server", hello.nonce, proof.nonce, verdict.mac);
    ok = ok && send(fd, &verdict, sizeof verdict, MSG_NOSIGNAL) == sizeof verdict;
    for (int i = 0; i < 2 && ok; i++) {
        ok = recv(fd, request, sizeof request, MSG_WAITALL) == sizeof request;
        sem_wait(&s->may_answer);
        ok = ok && answer(fd, i == 0 ? "of old" : "of new");
    }
    close(fd);
    return ok ? s : NULL;
}

/* A get that is given up leaves the connection usable: its late answer isn't another call's. */
TEST(test_late_answer)
{
    struct slow slow = {.fd = lks_test_bind(&slow.port)};
    pthread_t thread;
    lks__store *s = NULL;
    void *data, *ok;
    size_t bytes;
    sem_init(&slow.may_answer, 0, 0);
    assert_int_equal(listen(slow.fd, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, answer_slowly, &slow), 0);
    assert_int_equal(lks__store_open("127.0.0.1", slow.port, token, 10, &s), LKS_OK);
    for (int i = 0; i < 2; i++) /* with a time limit in the past; the second one isn't even sent */
        assert_int_equal(lks__store_get(s, "old", -100, &data, &bytes), LKS_ERR_TIMEOUT);
    sem_post(&slow.may_answer);
    sem_post(&slow.may_answer);
    expect_stored(s, "new", "of new");
    pthread_join(thread, &ok);
    assert_non_null(ok);
    lks__store_close(s);
    sem_destroy(&slow.may_answer);
    close(slow.fd);
}

static int stranger(const lks__store_server *server)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)lks__store_port(server)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

/* A right proof, on a plain socket. */
static int member(const lks__store_server *server)
{
    int fd = stranger(server);
    struct lks__hello hello;
    struct lks__proof proof = {.magic = {'L', 'K', 'S', 'T', 'O', 'R', 'E', '1'}};
    struct lks__verdict verdict;
    assert_int_equal(recv(fd, &hello, sizeof hello, MSG_WAITALL), sizeof hello);
    lks__prove(token, "client", hello.nonce, proof.nonce, proof.mac);
    assert_int_equal(send(fd, &proof, sizeof proof, 0), sizeof proof);
    assert_int_equal(recv(fd, &verdict, sizeof verdict, MSG_WAITALL), sizeof verdict);
    assert_int_equal(verdict.refused, 0);
    return fd;
}

/* The server ends the connection within `limit_s`; bytes before that are skipped. */
static void expect_end(int fd, double limit_s)
{
    char skipped[4096];
    double until = lks__sys_now() + limit_s * lks_test_patience();
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        double left = until - lks__sys_now();
        assert_true(left > 0 && poll(&p, 1, (int)(left * 1e3) + 1) >= 0);
        ssize_t n = recv(fd, skipped, sizeof skipped, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
    }
    close(fd);
}

TEST(test_random_bytes)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    unsigned seed = 1;
    for (int round = 0; round < 200; round++) {
        unsigned char noise[512];
        size_t n = (size_t)rand_r(&seed) % sizeof noise + 1;
        for (size_t i = 0; i < n; i++)
            noise[i] = (unsigned char)rand_r(&seed);
        int fd = stranger(server);
        (void)!send(fd, noise, n, MSG_NOSIGNAL);
        if (n >= sizeof(struct lks__proof)) /* at the latest after as many bytes as a proof has */
            expect_end(fd, 5);
        else
            close(fd);
        assert_int_equal(lks__store_set(a, "k", &round, sizeof round), LKS_OK);
    }
    /* A proof for another nonce, taken from another connection. */
    int fd = stranger(server);
    struct lks__hello hello;
    struct lks__proof proof = {.magic = {'L', 'K', 'S', 'T', 'O', 'R', 'E', '1'}};
    assert_int_equal(recv(fd, &hello, sizeof hello, MSG_WAITALL), sizeof hello);
    lks__prove(token, "client", hello.nonce, proof.nonce, proof.mac);
    int other = stranger(server);
    assert_int_equal(send(other, &proof, sizeof proof, 0), sizeof proof);
    expect_end(other, 5);
    /* ... and the server's own proof. */
    lks__prove(token, "server", hello.nonce, proof.nonce, proof.mac);
    assert_int_equal(send(fd, &proof, sizeof proof, 0), sizeof proof);
    expect_end(fd, 5);
    lks__store_close(a);
    lks__store_stop(server);
}

/* Members that break the protocol affect only their own connection. */
TEST(test_broken_requests)
{
    static const struct lks__request bad[] = {
        {LKS__OP_SET, 0, 0},
        {LKS__OP_SET, LKS__STORE_KEY_BYTES, 0},
        {LKS__OP_SET, UINT32_MAX, UINT32_MAX},
        {LKS__OP_SET, 1, LKS__STORE_VALUE_BYTES + 1},
        {LKS__OP_SET, 1, UINT32_MAX},
        {77, 1, 1},
        {LKS__OP_GET, 1, 3},
        {LKS__OP_ADD, 1, 7},
        {0, 1, 0},
    };
    lks__store_server *server = serve();
    lks__store *a = join(server);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char rest[16] = "kvvvvvvvvvvvvvv";
        int fd = member(server);
        assert_int_equal(send(fd, &bad[i], sizeof bad[i], 0), sizeof bad[i]);
        (void)!send(
            fd, rest,
            bad[i].key_bytes + bad[i].value_bytes < 16 ? bad[i].key_bytes + bad[i].value_bytes : 16,
            MSG_NOSIGNAL);
        expect_end(fd, 5);
    }
    int fd = member(server); /* a 0 byte within the key */
    struct lks__request r = {LKS__OP_SET, 3, 0};
    assert_int_equal(send(fd, &r, sizeof r, 0), sizeof r);
    assert_int_equal(send(fd, "a\0b", 3, 0), 3);
    expect_end(fd, 5);
    fd = member(server); /* half a request, then nothing: that is allowed */
    r = (struct lks__request){LKS__OP_SET, 4, 4};
    assert_int_equal(send(fd, &r, sizeof r, 0), sizeof r);
    assert_int_equal(send(fd, "half", 4, 0), 4);
    assert_int_equal(lks__store_set(a, "k", "v", 1), LKS_OK);
    void *data;
    size_t bytes;
    assert_int_equal(lks__store_get(a, "half", 0, &data, &bytes), LKS_ERR_TIMEOUT);
    assert_int_equal(send(fd, "bits", 4, 0), 4);
    expect_stored(a, "half", "bits");
    close(fd);
    lks__store_close(a);
    lks__store_stop(server);
}

/* Has the server ended the connection by now? */
static bool has_ended(int fd)
{
    char skipped[4096];
    ssize_t n;
    while ((n = recv(fd, skipped, sizeof skipped, MSG_DONTWAIT)) > 0)
        continue;
    return n == 0 || errno != EAGAIN;
}

/* Of two deadlines the earlier one counts: a member's get ends long before a silent stranger. */
TEST(test_deadlines)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    int fd = stranger(server);
    void *data = NULL;
    size_t bytes;
    assert_int_equal(lks__store_set(a, "k", "v", 1), LKS_OK); /* it has been accepted by now */
    assert_int_equal(lks__store_get(a, "never", 0.1, &data, &bytes), LKS_ERR_TIMEOUT);
    assert_false(has_ended(fd));
    close(fd);
    lks__store_close(a);
    lks__store_stop(server);
}

/* Many silent strangers: members stay, and a newcomer with the token still gets in. The newcomer is
 * accepted after the whole crowd. By then the oldest have been dropped, and the newest are still
 * there: so it wasn't the time limit that ended them. */
TEST(test_crowd)
{
    enum { CROWD = 300, ROOM = 64 };
    lks__store_server *server = serve();
    lks__store *a = join(server);
    int fds[CROWD], left = 0;
    for (int i = 0; i < CROWD; i++)
        fds[i] = stranger(server);
    assert_int_equal(lks__store_set(a, "k", "v", 1), LKS_OK);
    lks__store *b = join(server);
    expect_stored(b, "k", "v");
    for (int i = 0; i < CROWD; i++)
        left += !has_ended(fds[i]);
    assert_true(has_ended(fds[0]) && has_ended(fds[CROWD - ROOM - 1]));
    assert_false(has_ended(fds[CROWD - 1]));
    assert_in_range(left, ROOM - 2, ROOM);
    /* The last one is dropped after its time limit. */
    expect_end(fds[CROWD - 1], 8);
    for (int i = 0; i < CROWD - 1; i++)
        close(fds[i]);
    lks__store_close(a);
    lks__store_close(b);
    lks__store_stop(server);
}

/* No descriptors left: strangers are dropped in favour of members. */
TEST(test_few_descriptors)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    int crowd[20];
    int n = 0;
    for (; n < 20; n++) {
        crowd[n] = stranger(server);
        struct lks__hello hello; /* the server has accepted this one: all descriptors are counted */
        assert_int_equal(recv(crowd[n], &hello, sizeof hello, MSG_WAITALL), sizeof hello);
    }
    assert_false(lks__store_is_full(server));
    int next = dup(0);
    close(next);
    few = before;
    few.rlim_cur = (rlim_t)next + 1; /* for the client's end: the server runs in this process */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    lks__store *b = NULL;
    lks_status st = lks__store_open("127.0.0.1", lks__store_port(server), token, 10, &b);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(st, LKS_OK);
    assert_true(lks__store_is_full(server));
    assert_int_equal(lks__store_set(b, "k", "v", 1), LKS_OK);
    expect_stored(a, "k", "v");
    while (n-- > 0)
        close(crowd[n]);
    lks__store_close(a);
    lks__store_close(b);
    lks__store_stop(server);
}

/* With nobody to drop, a client has to wait; the server knows why. */
TEST(test_no_descriptor)
{
    lks__store_server *server = serve();
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    const int next = dup(0);
    close(next);
    few = before;
    few.rlim_cur = (rlim_t)next + 1; /* for the client's end: the server runs in this process */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    lks__store *a = NULL;
    const lks_status st = lks__store_open("127.0.0.1", lks__store_port(server), token, 1, &a);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(st, LKS_ERR_TIMEOUT);
    assert_true(lks__store_is_full(server));
    lks__store_stop(server);
}

/* A member that sends requests and never reads the answers. */
TEST(test_deaf_member)
{
    lks__store_server *server = serve();
    lks__store *a = join(server);
    static char large[LKS__STORE_VALUE_BYTES];
    assert_int_equal(lks__store_set(a, "large", large, sizeof large), LKS_OK);
    int fd = member(server);
    struct {
        struct lks__request r;
        char key[5];
        unsigned char wait[4];
    } __attribute__((packed)) ask = {{LKS__OP_GET, 5, 4}, {'l', 'a', 'r', 'g', 'e'}, {0}};
    bool ended = false;
    uint64_t before = lks__sys_proc_bytes("/proc/self/status", "VmRSS");
    for (int i = 0; i < lks_test_tries(5000) && !ended; i++) {
        ended = send(fd, &ask, sizeof ask, MSG_NOSIGNAL) < 0;
        usleep(1000);
    }
    assert_true(ended); /* and without using all memory */
    assert_true(lks__sys_proc_bytes("/proc/self/status", "VmHWM") < before + (512 << 20));
    close(fd);
    assert_int_equal(lks__store_set(a, "k", "v", 1), LKS_OK);
    lks__store_close(a);
    lks__store_stop(server);
}
