/* Messages between the launchers of one job, one on each line, to a coordinator or, unless the
 * input begins with 'c', to another node. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "launch/nodes/nodes.h"
#include "launch/nodes/nodes_state.h"

#define HELLO(key, nproc) HELLO_AS(key, nproc, "-1")
#define HELLO_AS(key, nproc, rank)                                                                 \
    "{\"is\":\"hello\",\"key\":\"" key "\",\"host\":\"here\",\"address\":\"127.0.0.1\","           \
    "\"nproc\":" nproc ",\"rank\":" rank ",\"version\":\"" LKS_VERSION_TEXT                        \
    "\",\"nnodes\":\"2:4\","                                                                       \
    "\"run_id\":\"none\",\"max_restarts\":\"2\"}\n"
#define ROUND                                                                                      \
    "{\"is\":\"round\",\"round\":0,\"attempt\":0,\"world\":3,\"groups\":2,\"port\":29500,"         \
    "\"job\":\"x\",\"members\":[{\"node\":0,\"group\":0,\"first\":0,\"ranks\":2},"                 \
    "{\"node\":1,\"group\":1,\"first\":2,\"ranks\":1}]}\n"
#define VERDICT(node, ok)                                                                          \
    "{\"is\":\"verdict\",\"node\":" node ",\"round\":0,\"ok\":" ok ",\"by_signal\":false,"         \
    "\"code\":1,\"user_signal\":0,\"text\":\"rank 1 (pid 7, host a) failed\",\"tail\":\"    "      \
    "x\"}\n"
#define END                                                                                        \
    "{\"is\":\"end\",\"round\":0,\"again\":true,\"code\":1,\"text\":\"\\u001b[2J\",\"tail\":"      \
    "\"x\"}\n"

const char *const fuzz_words[] = {
    HELLO("b", "1"),
    ROUND,
    VERDICT("1", "true"),
    END,
    "\"lost\"",
    "\"refuse\"",
    "\"down\"",
    "\"signal\"",
    "-1",
    "2147483647",
    "9999999999",
    "null",
    "[]",
    "{}",
    "\\u001b[2J",
    "\xc2\x9b[2J",
    "\"node\":0",
    NULL,
};

void fuzz_seeds(void)
{
    fuzz_seed_text("c" HELLO("a", "2") HELLO("b", "1") ROUND VERDICT("0", "true")
                       VERDICT("1", "false") END ROUND);
    fuzz_seed_text("n" HELLO("b", "2") HELLO("a", "1") ROUND
                   "{\"is\":\"down\",\"node\":0,\"round\":0}\n"
                   "{\"is\":\"lost\",\"key\":\"b\"}\n" VERDICT("1", "true") END);
    fuzz_seed_text("n" HELLO("a", "2") "{\"is\":\"refuse\",\"node\":0,\"why\":\"\\u009b2J\"}\n"
                                       "{\"is\":\"signal\",\"node\":0,\"signal\":15}\n");
    fuzz_seed_text(
        "n" HELLO("a", "2") "{\"is\":\"refuse\",\"node\":0,\"why\":\"\\u007f\\u0001\"}\n");
    fuzz_seed_text(
        "n" HELLO("a", "2") ROUND
        "{\"is\":\"end\",\"round\":0,\"again\":false,\"code\":1,\"text\":\"x\\u007f\\n\"}\n");
    fuzz_seed_text("c" HELLO_AS("a", "1", "0") HELLO_AS("b", "1", "3") HELLO_AS("c", "1", "4"));
    fuzz_seed_text("c" HELLO_AS("a", "1", "0") HELLO_AS("b", "1", "2") HELLO_AS("c", "1", "2"));
}

/* A connection to a store that has ended before the first message. */
static lks__store *dead_store(void)
{
    int pair[2];
    uint8_t greeting[FUZZ_GREETING_BYTES];
    size_t n = fuzz_greeting(greeting);
    lks__store *store = NULL;
    FUZZ_HOLDS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    FUZZ_HOLDS(send(pair[1], greeting, n, 0) == (ssize_t)n);
    FUZZ_HOLDS(lks__store_on(pair[0], "there", FUZZ_TOKEN, 5, &store) == LKS_OK);
    close(pair[1]);
    return store;
}

static bool is_plain(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f || strncmp(text, "\xc2\x9b", 2) == 0)
            return false;
    return true;
}

/* A coordinator has taken in only node ranks that exist, and each of them once. */
static bool ranks_fit(const struct lks__nodes *n)
{
    bool taken[4] = {false};
    for (int i = 0; i < n->n_nodes; i++) {
        const int rank = n->nodes[i].wanted_rank;
        if (!n->nodes[i].here || rank < 0)
            continue;
        if (rank >= n->max || taken[rank])
            return false;
        taken[rank] = true;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *const argv[] = {"true", NULL};
    const lks__launch_options options = {
        .argv = argv, .min_nodes = 2, .max_nodes = 4, .max_restarts = 2};
    struct lks__job job = {
        .options = &options, .given_id = "none", .role = "default", .store_host = "127.0.0.1"};
    if (bytes == 0)
        return 0;
    struct lks__nodes *n = calloc(1, sizeof *n);
    FUZZ_HOLDS(n != NULL);
    n->job = &job;
    n->say = dead_store();
    n->self = -1;
    n->min = options.min_nodes;
    n->max = options.max_nodes;
    n->key[0] = 'a';
    n->coordinator = data[0] == 'c';
    const char *at = (const char *)data + 1, *end = (const char *)data + bytes;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline != NULL ? newline : end) - at);
        FUZZ_HOLDS(lks__nodes_hear(n, at, length) == LKS_OK);
        at += length + 1;
        FUZZ_HOLDS(n->self < n->n_nodes && n->part.nproc >= 0 && n->event.signal >= 0);
        FUZZ_HOLDS(n->verdict.exit_code >= 0 && n->verdict.exit_code < 256);
        lks__nodes_try_to_decide(n);
    }
    FUZZ_HOLDS(is_plain(n->verdict.text) && is_plain(n->refused));
    FUZZ_HOLDS(!n->coordinator || ranks_fit(n));
    for (int i = 0; i < n->n_nodes; i++)
        FUZZ_HOLDS(is_plain(n->nodes[i].key) && is_plain(n->nodes[i].host));
    n->coordinator = false; /* so that it waits for no node */
    lks__nodes_close(n);
    return 0;
}
