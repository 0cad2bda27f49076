#include "played_store.h"

#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/store/handshake.h"

struct player {
    int fd;
    const char *token;
    const char *const *list;
    size_t n;
};

static void *play(void *arg)
{
    const struct player *p = arg;
    struct lks__hello hello = {.magic = {'L', 'K', 'S', 'T', 'O', 'R', 'E', '1'}};
    struct lks__proof proof;
    struct lks__verdict verdict = {.refused = 0};
    char bytes[8192];
    size_t n = sizeof verdict;
    (void)!send(p->fd, &hello, sizeof hello, MSG_NOSIGNAL);
    (void)!recv(p->fd, &proof, sizeof proof, MSG_WAITALL);
    lks__prove(p->token, "server", hello.nonce, proof.nonce, verdict.mac);
    memcpy(bytes, &verdict, sizeof verdict);
    for (size_t i = 0; i < p->n; i++) {
        struct lks__reply reply = {LKS__ANSWER_OK, (uint32_t)strlen(p->list[i])};
        memcpy(bytes + n, &reply, sizeof reply);
        memcpy(bytes + n + sizeof reply, p->list[i], reply.value_bytes);
        n += sizeof reply + reply.value_bytes;
    }
    (void)!send(p->fd, bytes, n, MSG_NOSIGNAL);
    return NULL;
}

lks__store *played_store(const char *token, const char *const *list, size_t n, int *other_end_p)
{
    int pair[2];
    pthread_t thread;
    lks__store *store = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
    struct player p = {pair[1], token, list, n};
    assert_int_equal(pthread_create(&thread, NULL, play, &p), 0);
    lks_status st = lks__store_on(pair[0], "there", token, 10, &store);
    pthread_join(thread, NULL);
    assert_ok(st);
    *other_end_p = pair[1];
    return store;
}
