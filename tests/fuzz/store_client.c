/* The store's client, with a server that it trusts, or another program that listens there. The
 * first byte chooses how the server sends, the second which calls are made; the server sends the
 * rest. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/store/handshake.h"
#include "comm/store/store.h"
#include "fuzz.h"

enum {
    STRANGER = 1, /* the input also replaces the handshake */
    PIECES = 2,   /* the bytes arrive one by one, and the client polls */
};

const char *const fuzz_words[] = {
    "\0\0\0\0", "\x01\0\0\0", "\x08\0\0\0", LKS__NET_MAGIC, "\xff\xff\xff\xff", NULL,
};

static size_t reply(uint8_t *out, enum lks__answer answer, const void *value, size_t bytes)
{
    struct lks__reply r = {(uint32_t)answer, (uint32_t)bytes};
    memcpy(out, &r, sizeof r);
    memcpy(out + sizeof r, value, bytes);
    return sizeof r + bytes;
}

void fuzz_seeds(void)
{
    static const int64_t sum = 12;
    uint8_t data[512];
    for (int how = 0; how < 4; how++) {
        size_t n = 0;
        data[n++] = (uint8_t)how;
        data[n++] = 0;
        if ((how & STRANGER) != 0)
            n += fuzz_greeting(data + n);
        n += reply(data + n, LKS__ANSWER_OK, "", 0);
        n += reply(data + n, LKS__ANSWER_OK, "value", 5);
        n += reply(data + n, LKS__ANSWER_OK, &sum, sizeof sum);
        n += reply(data + n, LKS__ANSWER_FULL, "", 0);
        n += reply(data + n, LKS__ANSWER_OK, "", 0);
        n += reply(data + n, LKS__ANSWER_TIMEOUT, "", 0);
        fuzz_seed(data, n);
    }
}

static void use(void *data, size_t bytes)
{
    FUZZ_HOLDS(data != NULL && bytes <= LKS__STORE_VALUE_BYTES && ((char *)data)[bytes] == '\0');
    free(data);
}

/* One of the calls. A post doesn't wait for its answer: the next call does. */
static lks_status call(lks__store *s, unsigned which)
{
    void *data = NULL;
    size_t bytes = 0;
    int64_t sum;
    lks_status st;
    switch (which % 5) {
    case 0:
        return lks__store_set(s, "key", "value", 5);
    case 1:
        st = lks__store_get(s, "key", 1e6, &data, &bytes);
        if (st == LKS_OK)
            use(data, bytes);
        return st;
    case 2:
        return lks__store_add(s, "sum", 5, &sum);
    case 3:
        return lks__store_post_later(s, "list", "news", 4);
    default:
        return lks__store_will(s, "list", "last", 4);
    }
}

/* A get whose answer arrives byte by byte. */
static lks_status look(lks__store *s, int fd, const uint8_t **at, const uint8_t *end)
{
    void *data = NULL;
    size_t bytes = 0;
    lks_status st = lks__store_ask(s, "key");
    while (st == LKS_OK && (st = lks__store_answer(s, &data, &bytes)) == LKS_IN_PROGRESS) {
        if (*at < end)
            FUZZ_HOLDS(send(fd, (*at)++, 1, 0) == 1);
        else
            shutdown(fd, SHUT_WR);
        st = LKS_OK;
    }
    if (st == LKS_OK)
        use(data, bytes);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { LONGEST_IN_PIECES = 2000 };
    int pair[2];
    uint8_t greeting[FUZZ_GREETING_BYTES];
    lks__store *s = NULL;
    if (bytes < 2)
        return 0;
    unsigned how = data[0], which = data[1];
    const uint8_t *at = data + 2, *end = data + bytes;
    bool pieces = (how & PIECES) != 0 && bytes < LONGEST_IN_PIECES;
    FUZZ_HOLDS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    if ((how & STRANGER) == 0) {
        size_t n = fuzz_greeting(greeting);
        FUZZ_HOLDS(send(pair[1], greeting, n, 0) == (ssize_t)n);
    }
    if (!pieces || (how & STRANGER) != 0) {
        while (at < end) { /* bytes that the socket doesn't take are never sent */
            ssize_t n = send(pair[1], at, (size_t)(end - at), 0);
            if (n < 0)
                break;
            at += n;
        }
        end = at;
        shutdown(pair[1], SHUT_WR);
    }
    if (lks__store_on(pair[0], "there", FUZZ_TOKEN, 5, &s) == LKS_OK) {
        lks_status st = LKS_OK;
        for (int i = 0; st != LKS_ERR_PEER && i < 1000; i++)
            st = pieces ? look(s, pair[1], &at, end) : call(s, which + (unsigned)i);
        lks__store_close(s);
    } else {
        FUZZ_HOLDS((how & STRANGER) != 0);
    }
    close(pair[1]);
    return 0;
}
