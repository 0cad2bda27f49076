/* The store's server: a connection sends the input in pieces, while another client waits for a key.
 * The first byte chooses the length of pieces, the second whether the sender is a member already or
 * must prove the token first. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/store/store_conn.h"
#include "fuzz.h"

static char token[] = FUZZ_TOKEN;

const char *const fuzz_words[] = {
    "\x01\0\0\0", "key", "list", "list/1", LKS__NET_MAGIC, "\xff\xff\xff\xff", NULL,
};

/* --- seeds -------------------------------------------------------------------------------- */

static uint8_t seed[4096];
static size_t n_seed;

static void add(const void *data, size_t bytes)
{
    FUZZ_HOLDS(n_seed + bytes <= sizeof seed);
    memcpy(seed + n_seed, data, bytes);
    n_seed += bytes;
}

static void ask(enum lks__store_op op, const char *key, const void *value, size_t bytes)
{
    struct lks__request r = {(uint32_t)op, (uint32_t)strlen(key), (uint32_t)bytes};
    add(&r, sizeof r);
    add(key, strlen(key));
    add(value, bytes);
}

static void all_requests(void)
{
    static const uint32_t no_wait = 0, for_ever = UINT32_MAX;
    static const int64_t five = 5;
    static char longest[LKS__STORE_KEY_BYTES], value[600];
    memset(longest, 'k', sizeof longest - 1);
    ask(LKS__OP_SET, "key", "value", 5);
    ask(LKS__OP_GET, "key", &for_ever, sizeof for_ever);
    ask(LKS__OP_GET, "none", &no_wait, sizeof no_wait);
    ask(LKS__OP_ADD, "sum", &five, sizeof five);
    ask(LKS__OP_ADD, "sum", &five, sizeof five);
    ask(LKS__OP_POST, "list", "news", 4);
    ask(LKS__OP_WILL, "list", "last", 4);
    ask(LKS__OP_WILL, "key", "last", 4);
    ask(LKS__OP_SET, longest, value, sizeof value); /* leaves room for a longer key */
    ask(LKS__OP_GET, "never", &for_ever, sizeof for_ever);
}

void fuzz_seeds(void)
{
    static const uint8_t member_at_once[] = {0, 1}, member_in_pieces[] = {7, 1},
                         stranger[] = {0, 0};
    static const unsigned char server_nonce[LKS__NONCE_BYTES];
    add(member_at_once, 2);
    all_requests();
    fuzz_seed(seed, n_seed);
    n_seed = 0;
    add(member_in_pieces, 2);
    all_requests();
    fuzz_seed(seed, n_seed);
    struct lks__proof proof = {.magic = LKS__NET_MAGIC};
    lks__prove(token, "client", server_nonce, proof.nonce, proof.mac);
    n_seed = 0;
    add(stranger, 2);
    add(&proof, sizeof proof);
    all_requests();
    fuzz_seed(seed, n_seed);
}

/* --- one end ------------------------------------------------------------------------------ */

struct end {
    struct lks__conn *conn; /* the server's side; NULL once it has closed it */
    int fd;                 /* the client's side */
    uint8_t *got;
    size_t n_got, cap;
};

static void begin(lks__store_server *s, struct end *e, bool member)
{
    int pair[2];
    FUZZ_HOLDS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    *e = (struct end){.conn = calloc(1, sizeof *e->conn), .fd = pair[1]};
    FUZZ_HOLDS(e->conn != NULL);
    e->conn->fd = pair[0];
    e->conn->member = member;
    s->conns[s->n_conns++] = e->conn;
}

static void end(lks__store_server *s, struct end *e)
{
    size_t i = 0;
    while (s->conns[i] != e->conn)
        i++;
    s->conns[i] = s->conns[--s->n_conns];
    if (e->conn->will_list != NULL)
        lks__store_server_post(s, e->conn->will_list, e->conn->will, e->conn->will_bytes);
    lks__conn_free(e->conn);
    e->conn = NULL;
}

/* Receive what the server has sent to this client so far. */
static void receive(lks__store_server *s, struct end *e)
{
    size_t before;
    do {
        before = e->n_got;
        if (e->conn != NULL && (e->conn->n_out > 0 || e->conn->closing) &&
            !lks__conn_flush(e->conn))
            end(s, e);
        for (;;) {
            if (e->cap - e->n_got < 1 << 16) {
                e->cap = 2 * e->cap + (1 << 17);
                e->got = realloc(e->got, e->cap);
                FUZZ_HOLDS(e->got != NULL);
            }
            ssize_t n = read(e->fd, e->got + e->n_got, e->cap - e->n_got);
            if (n <= 0)
                break;
            e->n_got += (size_t)n;
        }
    } while (e->n_got > before);
}

/* Send it; when this returns, the server has processed it. */
static void say(lks__store_server *s, struct end *e, const void *data, size_t bytes)
{
    for (size_t done = 0; e->conn != NULL && done < bytes;) {
        ssize_t n = send(e->fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        FUZZ_HOLDS(n > 0 || errno == EAGAIN);
        done += n > 0 ? (size_t)n : 0;
        if (!e->conn->closing && !lks__conn_take(s, e->conn))
            end(s, e);
        receive(s, e);
        if (n < 0 && e->conn != NULL && e->conn->closing)
            break;
    }
}

/* Check that the answers from `at` on are complete, and that there are at most `most`. */
static size_t check_answers(const struct end *e, size_t at, size_t most)
{
    size_t n = 0;
    for (struct lks__reply r; at < e->n_got; at += sizeof r + r.value_bytes, n++) {
        FUZZ_HOLDS(e->n_got - at >= sizeof r);
        memcpy(&r, e->got + at, sizeof r);
        FUZZ_HOLDS(r.answer <= LKS__ANSWER_BAD && r.value_bytes <= LKS__STORE_VALUE_BYTES);
        FUZZ_HOLDS(r.answer == LKS__ANSWER_OK || r.value_bytes == 0);
        FUZZ_HOLDS(e->n_got - at - sizeof r >= r.value_bytes);
    }
    FUZZ_HOLDS(n <= most);
    return n;
}

/* --- the input ---------------------------------------------------------------------------- */

static size_t kept;

static void count_kept(const void *node, VISIT visit, int depth)
{
    if (visit == postorder || visit == leaf)
        kept += sizeof(struct lks__value) + (*(struct lks__value *const *)node)->bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct lks__conn *conns[2];
    lks__store_server s = {.token = token, .conns = conns, .cap_conns = 2};
    struct end other, honest;
    if (bytes < 2)
        return 0;
    bool member = data[1] & 1;
    size_t piece = data[0], total = bytes - 2;
    if (piece == 0 || total / piece > 500)
        piece = total > 0 ? total : 1;
    begin(&s, &honest, true);
    begin(&s, &other, member);
    n_seed = 0;
    ask(LKS__OP_GET, "key", &(uint32_t){UINT32_MAX}, sizeof(uint32_t));
    say(&s, &honest, seed, n_seed);
    for (size_t done = 0; other.conn != NULL && done < total; done += piece)
        say(&s, &other, data + 2 + done, piece < total - done ? piece : total - done);

    bool cut = other.conn == NULL || other.conn->closing; /* it may have left answers unread */
    size_t head = member ? 0 : sizeof(struct lks__verdict);
    if (!member && (other.n_got == 0 || other.got[0] != 0))
        FUZZ_HOLDS(other.n_got == 0 || other.n_got == head); /* no proof, no answer */
    else if (!cut)
        check_answers(&other, head, total / (sizeof(struct lks__request) + 1));
    if (other.conn != NULL)
        end(&s, &other);
    receive(&s, &honest);
    size_t n = check_answers(&honest, 0, 1);
    FUZZ_HOLDS((n == 1) == (lks__values_find(&s.values, "key") != NULL));

    /* In any case the other client is still served. */
    n_seed = 0;
    if (n == 0)
        ask(LKS__OP_SET, "key", "", 0);
    ask(LKS__OP_SET, "mine", "value", 5);
    ask(LKS__OP_GET, "mine", &(uint32_t){0}, sizeof(uint32_t));
    honest.conn->waiting = false;
    say(&s, &honest, seed, n_seed);
    FUZZ_HOLDS(honest.conn != NULL && check_answers(&honest, 0, 4) >= 3);
    FUZZ_HOLDS(memcmp(honest.got + honest.n_got - 5, "value", 5) == 0);
    end(&s, &honest);
    kept = 0;
    twalk(s.values.tree, count_kept);
    FUZZ_HOLDS(kept == s.values.total && kept <= LKS__STORE_TOTAL_BYTES);

    lks__values_free(&s.values);
    close(other.fd);
    close(honest.fd);
    free(other.got);
    free(honest.got);
    return 0;
}
