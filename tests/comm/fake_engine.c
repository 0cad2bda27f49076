#include "comm/fake_engine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOTES = 4 };

struct member {
    int host;
    uint64_t seq;
    bool copied;
};

static struct {
    pthread_mutex_t lock;
    int n, local[FAKE_MAX_HOSTS];
    lks__engine_op op[FAKE_MAX_HOSTS];
    uint64_t started[FAKE_MAX_HOSTS], copied[FAKE_MAX_HOSTS];
    bool cut[FAKE_MAX_HOSTS], broken[FAKE_MAX_HOSTS];
    struct {
        int n;
        unsigned char bytes[NOTES][LKS__ENGINE_NOTE];
    } notes[FAKE_MAX_HOSTS][FAKE_MAX_HOSTS]; /* [to][from] */
} bus = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fake_engine_hosts(int n_hosts, const int *local)
{
    pthread_mutex_lock(&bus.lock);
    bus.n = n_hosts;
    for (int h = 0; h < n_hosts; h++)
        bus.local[h] = local[h];
    memset(bus.started, 0, sizeof bus.started);
    memset(bus.copied, 0, sizeof bus.copied);
    memset(bus.cut, 0, sizeof bus.cut);
    memset(bus.broken, 0, sizeof bus.broken);
    memset(bus.notes, 0, sizeof bus.notes);
    pthread_mutex_unlock(&bus.lock);
}

static void set(bool *flag)
{
    pthread_mutex_lock(&bus.lock);
    *flag = true;
    pthread_mutex_unlock(&bus.lock);
}

void fake_engine_cut(int host)
{
    set(&bus.cut[host]);
}

void fake_engine_break(int host)
{
    set(&bus.broken[host]);
}

static int fake_probe(char *why, size_t why_bytes)
{
    return 1;
}

static void *fake_join(lks__engine_join *join, int *host_p, int *n_hosts_p, char *why,
                       size_t why_bytes)
{
    struct member *m = calloc(1, sizeof *m);
    int first = 0;
    while (first + bus.local[m->host] <= join->rank)
        first += bus.local[m->host++];
    *host_p = m->host;
    *n_hosts_p = bus.n;
    return m;
}

static void fake_leave(void *engine, int orderly)
{
    struct member *m = engine;
    if (!orderly)
        fake_engine_break(m->host);
    free(engine);
}

static int fake_start(void *engine, const lks__engine_op *op, char *why, size_t why_bytes)
{
    struct member *m = engine;
    pthread_mutex_lock(&bus.lock);
    bus.op[m->host] = *op;
    bus.started[m->host] = ++m->seq;
    pthread_mutex_unlock(&bus.lock);
    m->copied = false;
    return 0;
}

/* Everything that comes to `me` from host i. */
static void copy_from(int i, int me)
{
    const lks__engine_op *mine = &bus.op[me], *theirs = &bus.op[i];
    size_t from = 0, to = 0, bytes = mine->recv_bytes[mine->kind == LKS__ENGINE_BROADCAST ? 0 : i];
    if (mine->kind == LKS__ENGINE_BROADCAST && (i != mine->root || i == me))
        return;
    if (mine->kind != LKS__ENGINE_BROADCAST && i == me) /* all-to-all need not copy it either */
        return;
    const char *source = theirs->recv;
    if (mine->kind != LKS__ENGINE_BROADCAST)
        for (int k = 0; k < i; k++)
            to += mine->recv_bytes[k];
    if (mine->kind == LKS__ENGINE_ALL_GATHER)
        from = to;
    if (mine->kind == LKS__ENGINE_ALL_TO_ALL) {
        source = theirs->send;
        for (int k = 0; k < me; k++)
            from += theirs->send_bytes[k];
        if (theirs->send_bytes[me] != bytes)
            abort();
    }
    if (bytes > 0)
        memcpy((char *)mine->recv + to, source + from, bytes);
}

static bool all_reach(const uint64_t *counts, uint64_t seq)
{
    for (int i = 0; i < bus.n; i++)
        if (counts[i] < seq || bus.cut[i])
            return false;
    return true;
}

static int fake_test(void *engine, char *why, size_t why_bytes)
{
    struct member *m = engine;
    int st = 0;
    pthread_mutex_lock(&bus.lock);
    if (all_reach(bus.started, m->seq)) {
        if (!m->copied)
            for (int i = 0; i < bus.n; i++)
                copy_from(i, m->host);
        m->copied = true;
        bus.copied[m->host] = m->seq;
        st = all_reach(bus.copied, m->seq);
    }
    for (int i = 0; i < bus.n && st == 0; i++)
        if (bus.broken[i] && !bus.cut[i] && !bus.cut[m->host]) {
            snprintf(why, why_bytes, "the connection is broken");
            st = -1;
        }
    pthread_mutex_unlock(&bus.lock);
    return st;
}

static int fake_tell(void *engine, const void *note)
{
    struct member *m = engine;
    bool sent = true;
    pthread_mutex_lock(&bus.lock);
    for (int i = 0; i < bus.n; i++)
        sent = sent && bus.notes[i][m->host].n < NOTES;
    for (int i = 0; i < bus.n && sent; i++)
        if (i != m->host && !bus.cut[m->host] && !bus.cut[i])
            memcpy(bus.notes[i][m->host].bytes[bus.notes[i][m->host].n++], note, LKS__ENGINE_NOTE);
    pthread_mutex_unlock(&bus.lock);
    return sent;
}

static int fake_hear(void *engine, int host, void *note, char *why, size_t why_bytes)
{
    struct member *m = engine;
    int st = 0;
    pthread_mutex_lock(&bus.lock);
    if (bus.notes[m->host][host].n > 0) {
        memcpy(note, bus.notes[m->host][host].bytes[0], LKS__ENGINE_NOTE);
        memmove(bus.notes[m->host][host].bytes[0], bus.notes[m->host][host].bytes[1],
                (NOTES - 1) * (size_t)LKS__ENGINE_NOTE);
        bus.notes[m->host][host].n--;
        st = 1;
    } else if (bus.broken[host] && !bus.cut[host] && !bus.cut[m->host]) {
        snprintf(why, why_bytes, "the connection is broken");
        st = -1;
    }
    pthread_mutex_unlock(&bus.lock);
    return st;
}

const lks__engine fake_engine = {LKS__ENGINE_VERSION, "fake",    0,          0,
                                 fake_probe,          fake_join, fake_leave, fake_start,
                                 fake_test,           fake_tell, fake_hear};
