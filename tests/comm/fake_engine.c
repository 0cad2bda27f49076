#include "comm/fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/hier/hier.h"

enum { NOTES = 4 };

struct member {
    int host;
    uint64_t started, tested; /* operations; they complete in order */
};

static struct {
    pthread_mutex_t lock;
    int n, local[FAKE_MAX_HOSTS];
    lks__engine_op op[FAKE_MAX_HOSTS][LKS__ENGINE_SLOTS];
    uint64_t started[FAKE_MAX_HOSTS], copied[FAKE_MAX_HOSTS];
    bool cut[FAKE_MAX_HOSTS], broken[FAKE_MAX_HOSTS];
    bool hangs;
    int refuses[FAKE_MAX_HOSTS];
    struct fake_deeds deeds[FAKE_MAX_HOSTS];
    double told_s[FAKE_MAX_HOSTS];
    double slow_until[FAKE_MAX_HOSTS];
    double heard_from[FAKE_MAX_HOSTS]; /* messages of a host are withheld until this time */
    struct {
        int n;
        unsigned char bytes[NOTES][LKS__ENGINE_MESSAGE];
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
    memset(bus.refuses, 0, sizeof bus.refuses);
    memset(bus.deeds, 0, sizeof bus.deeds);
    for (int h = 0; h < n_hosts; h++) {
        bus.deeds[h].left = -1;
        bus.deeds[h].gap_s = INFINITY;
    }
    memset(bus.slow_until, 0, sizeof bus.slow_until);
    memset(bus.heard_from, 0, sizeof bus.heard_from);
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

void fake_engine_break_late(int host, double late_s)
{
    pthread_mutex_lock(&bus.lock);
    bus.heard_from[host] = lks__sys_now() + late_s;
    bus.broken[host] = true;
    pthread_mutex_unlock(&bus.lock);
}

void fake_engine_slow(int host, double late_s)
{
    pthread_mutex_lock(&bus.lock);
    bus.slow_until[host] = lks__sys_now() + late_s;
    pthread_mutex_unlock(&bus.lock);
}

void fake_engine_refuse(int host, int n)
{
    pthread_mutex_lock(&bus.lock);
    bus.refuses[host] = n;
    pthread_mutex_unlock(&bus.lock);
}

static void send_note(int from, const void *note)
{
    for (int i = 0; i < bus.n; i++)
        if (i != from && !bus.cut[from] && !bus.cut[i])
            memcpy(bus.notes[i][from].bytes[bus.notes[i][from].n++], note, LKS__ENGINE_MESSAGE);
}

static bool has_room(int from)
{
    for (int i = 0; i < bus.n; i++)
        if (bus.notes[i][from].n == NOTES)
            return false;
    return true;
}

void fake_engine_forge(int host, const void *note)
{
    for (bool sent = false; !sent; usleep(1000)) {
        pthread_mutex_lock(&bus.lock);
        sent = has_room(host);
        if (sent)
            send_note(host, note);
        pthread_mutex_unlock(&bus.lock);
    }
}

void fake_engine_hang(void)
{
    set(&bus.hangs);
}

void fake_engine_deeds(int host, struct fake_deeds *deeds)
{
    pthread_mutex_lock(&bus.lock);
    *deeds = bus.deeds[host];
    bus.deeds[host].gap_s = INFINITY;
    bus.deeds[host].got = bus.deeds[host].most = 0;
    pthread_mutex_unlock(&bus.lock);
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
    while (bus.hangs)
        pause();
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
    pthread_mutex_lock(&bus.lock);
    bus.deeds[m->host].left = orderly;
    pthread_mutex_unlock(&bus.lock);
    free(engine);
}

/* Is a connection that `me` needs known to be closed? */
static bool any_broken(int me, char *why, size_t why_bytes)
{
    bool any = false;
    for (int i = 0; i < bus.n; i++)
        any = any || (bus.broken[i] && !bus.cut[i] && !bus.cut[me]);
    if (any)
        snprintf(why, why_bytes, "the connection is broken");
    return any;
}

static int fake_start(void *engine, int slot, const lks__engine_op *op, char *why, size_t why_bytes)
{
    struct member *m = engine;
    pthread_mutex_lock(&bus.lock);
    if (any_broken(m->host, why, why_bytes)) {
        pthread_mutex_unlock(&bus.lock);
        return -1;
    }
    if (slot != (int)(m->started % LKS__ENGINE_SLOTS) ||
        m->started - m->tested == LKS__ENGINE_SLOTS)
        abort();
    if (op->kind == LKS__ENGINE_ALL_TO_ALL && op->send == op->recv && op->send != NULL)
        abort();
    bus.op[m->host][slot] = *op;
    bus.started[m->host] = ++m->started;
    for (int i = 0; i < bus.n && op->kind == LKS__ENGINE_ALL_TO_ALL; i++) {
        const size_t sent = op->send_at[i] + op->send_bytes[i];
        const size_t got = op->recv_at[i] + op->recv_bytes[i];
        size_t *most = &bus.deeds[m->host].most;
        *most = sent > *most ? sent : *most;
        *most = got > *most ? got : *most;
    }
    pthread_mutex_unlock(&bus.lock);
    return 0;
}

/* Copy everything that host i sends to `me`. */
static void copy_from(int i, int me, int slot)
{
    const lks__engine_op *mine = &bus.op[me][slot], *theirs = &bus.op[i][slot];
    bool all_to_all = mine->kind == LKS__ENGINE_ALL_TO_ALL;
    if (i == me || (mine->kind == LKS__ENGINE_BROADCAST && i != mine->root))
        return;
    int piece = mine->kind == LKS__ENGINE_BROADCAST ? 0 : i, there = all_to_all ? me : piece;
    const char *from = all_to_all ? theirs->send : theirs->recv;
    const size_t *at = all_to_all ? theirs->send_at : theirs->recv_at;
    const size_t *bytes = all_to_all ? theirs->send_bytes : theirs->recv_bytes;
    if (mine->kind != theirs->kind || bytes[there] != mine->recv_bytes[piece])
        abort();
    if (bytes[there] != sizeof(struct lks__shm_descriptor))
        bus.deeds[me].got += bytes[there];
    if (bytes[there] > 0)
        memcpy((char *)mine->recv + mine->recv_at[piece], from + at[there], bytes[there]);
}

static bool all_reach(const uint64_t *counts, uint64_t seq)
{
    for (int i = 0; i < bus.n; i++)
        if (counts[i] < seq || bus.cut[i])
            return false;
    return true;
}

static int fake_test(void *engine, int slot, char *why, size_t why_bytes)
{
    struct member *m = engine;
    int st = 0;
    pthread_mutex_lock(&bus.lock);
    if (slot != (int)(m->tested % LKS__ENGINE_SLOTS))
        abort();
    if (all_reach(bus.started, m->tested + 1)) {
        if (bus.copied[m->host] == m->tested)
            for (int i = 0; i < bus.n; i++)
                copy_from(i, m->host, slot);
        bus.copied[m->host] = m->tested + 1;
        st = all_reach(bus.copied, m->tested + 1) && lks__sys_now() >= bus.slow_until[m->host];
    }
    m->tested += st > 0;
    if (st == 0 && any_broken(m->host, why, why_bytes))
        st = -1;
    pthread_mutex_unlock(&bus.lock);
    return st;
}

static int fake_tell(void *engine, const void *note)
{
    struct member *m = engine;
    pthread_mutex_lock(&bus.lock);
    bool sent = bus.refuses[m->host] == 0 && has_room(m->host);
    if (sent) {
        struct fake_deeds *d = &bus.deeds[m->host];
        double now = lks__sys_now();
        d->gap_s = d->told > 0 ? fmin(d->gap_s, now - bus.told_s[m->host]) : INFINITY;
        bus.told_s[m->host] = now;
        d->told++;
        memcpy(d->note, note, sizeof d->note);
        send_note(m->host, note);
    } else if (bus.refuses[m->host] > 0) {
        bus.refuses[m->host]--;
    }
    pthread_mutex_unlock(&bus.lock);
    return sent;
}

static int fake_hear(void *engine, int host, void *note, char *why, size_t why_bytes)
{
    struct member *m = engine;
    int st = 0;
    pthread_mutex_lock(&bus.lock);
    if (lks__sys_now() < bus.heard_from[host]) {
        st = 0;
    } else if (bus.notes[m->host][host].n > 0) {
        memcpy(note, bus.notes[m->host][host].bytes[0], LKS__ENGINE_MESSAGE);
        memmove(bus.notes[m->host][host].bytes[0], bus.notes[m->host][host].bytes[1],
                (NOTES - 1) * (size_t)LKS__ENGINE_MESSAGE);
        bus.notes[m->host][host].n--;
        st = 1;
    } else if (bus.broken[host] && !bus.cut[host] && !bus.cut[m->host]) {
        snprintf(why, why_bytes, "the connection is broken");
        st = -1;
    }
    pthread_mutex_unlock(&bus.lock);
    return st;
}

const lks__engine fake_engine = {.version = LKS__ENGINE_VERSION,
                                 .name = "fake",
                                 .most_bytes = 16384, /* more than all hosts' descriptors */
                                 .probe = fake_probe,
                                 .join = fake_join,
                                 .leave = fake_leave,
                                 .start = fake_start,
                                 .test = fake_test,
                                 .tell = fake_tell,
                                 .hear = fake_hear};

/* --- groups ------------------------------------------------------------------------------- */

static const struct lks_comm_ops fake_ops = {.name = "fake", LKS__HIER_OPS};

int fake_ranks(const char *hosts, struct fake_rank ranks[FAKE_MAX_RANKS])
{
    int n_hosts = (int)strlen(hosts), W = 0, rank = 0, local[FAKE_MAX_HOSTS] = {0};
    for (int h = 0; h < n_hosts; h++) {
        local[h] = hosts[h] - '0';
        W += local[h];
    }
    if (W > FAKE_MAX_RANKS)
        abort();
    fake_engine_hosts(n_hosts, local);
    for (int h = 0; h < n_hosts; h++) {
        lks__segment *segment;
        if (lks__segment_create(local[h], &segment) != LKS_OK)
            abort();
        for (int i = 0; i < local[h]; i++, rank++)
            ranks[rank] = (struct fake_rank){{rank, W, i, local[h]}, lks__segment_ref(segment)};
        lks__segment_close(segment);
    }
    return W;
}

lks_status fake_open(const struct fake_rank *rank, double timeout_s, lks_comm **comm_p)
{
    lks_comm *comm;
    LKS__TRY(lks__comm_new(&fake_ops, &rank->world, timeout_s, &comm));
    lks_status st = lks__hier_open(comm, &fake_engine, rank->segment, NULL);
    if (st != LKS_OK) {
        lks_comm_close(comm);
        return st;
    }
    *comm_p = comm;
    return LKS_OK;
}
