#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/sys.h"
#include "base/trace.h"
#include "comm/shm/shm.h"

enum {
    SLICE_MS = 50,    /* length of a sleep between checks for failures */
    NAME_BYTES = 300, /* size of the text of name_rank() */
    LOOKS_PER_CLOCK = 64,
    MAX_NAMED = 8, /* missing ranks that a message names */
};

/* If a slice takes this much longer, this process or the whole machine was stopped. */
static const double STOPPED_S = 1.0;

/* --- failures ----------------------------------------------------------------------------- */

lks_status lks__shm_failure(const lks_comm *comm)
{
    const struct lks__shm *g = comm->state;
    lks_status st;
    int rank;
    char text[1536];
    lks__segment_failure(g->segment, &st, &rank, text, sizeof text);
    return lks__fail(st, "%s%s", text,
                     comm->whole != NULL
                         ? "; this is a part of a group: lks_comm_split() numbers its ranks from 0"
                         : "");
}

lks_status lks__shm_abort(struct lks__shm *g, lks_status status, int rank, const char *text)
{
    lks__segment_abort(g->segment, status, rank, text);
    return lks__shm_failure(g->comm);
}

lks_status lks__shm_fail(lks_comm *comm, lks_status st, int rank, int late_elsewhere,
                         const char *text)
{
    struct lks__shm *g = comm->state;
    if (st != LKS_ERR_TIMEOUT)
        return lks__shm_abort(g, st, rank, text);
    char report[LKS__SHM_REPORT];
    g->late_elsewhere = late_elsewhere;
    lks__shm_table(g, report, sizeof report);
    if (lks__segment_abort_report(g->segment, st, rank, text, report))
        lks__explain(report);
    return lks__shm_failure(g->comm);
}

/* --- counters ----------------------------------------------------------------------------- */

/* The value of a slot's counters when all have counted operation `seq`. All ranks arrive at every
 * operation. The operations that ranks also finish are the same on all ranks, and each rank counts
 * them itself. */
static uint32_t arrive_goal(const struct lks__shm *g, uint64_t seq)
{
    return (uint32_t)((seq / LKS__SHM_SLOTS + 1) * (uint64_t)g->world_size);
}

static uint32_t finish_goal(const struct lks__shm *g, uint64_t seq)
{
    return g->finishes[seq % LKS__SHM_SLOTS] * (uint32_t)g->world_size;
}

static bool reached(const atomic_uint *counter, uint32_t goal)
{
    return (int32_t)(atomic_load_explicit(counter, memory_order_acquire) - goal) >= 0;
}

/* Count this rank in, and only then publish that it has done operation `seq`: a rank that ends in
 * between has counted or is missing, so waits for it end. */
static void count_in(atomic_uint *counter, atomic_uint *sleepers, uint32_t goal, atomic_uint *done,
                     uint64_t seq)
{
    /* Sequentially consistent on both sides: either we see a sleeper, or the sleeper sees our
     * increment. */
    if (atomic_fetch_add(counter, 1) + 1 == goal && atomic_load(sleepers) != 0)
        syscall(SYS_futex, counter, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    atomic_store_explicit(done, (uint32_t)seq + 1, memory_order_release);
}

lks_status lks__shm_arrive(struct lks__shm *g, const struct lks__shm_descriptor *desc,
                           const void *payload, size_t n, uint64_t *seq_p)
{
    if (lks__segment_aborted(g->segment))
        return lks__shm_failure(g->comm);
    uint64_t seq = g->seq++;
    struct lks__shm_descriptor *m = lks__segment_descriptor(g->segment, g->rank, (uint32_t)seq);
    struct lks__shm_slot *slot = lks__segment_slot(g->segment, (uint32_t)seq);
    m->seq = (uint32_t)seq;
    m->kind = desc->kind;
    m->size = desc->size;
    memcpy(m->args, desc->args, sizeof m->args);
    m->n_parts = desc->n_parts;
    lks__shm_sign(m, g->comm);
    if (n > 0)
        memcpy(m->payload, payload, n);
    lks__shm_beat_all(g);
    count_in(&slot->arrived, &slot->arrive_sleepers, arrive_goal(g, seq), &g->line->posted, seq);
    *seq_p = seq;
    return LKS_OK;
}

bool lks__shm_all_arrived(const struct lks__shm *g, uint64_t seq)
{
    return reached(&lks__segment_slot(g->segment, (uint32_t)seq)->arrived, arrive_goal(g, seq));
}

void lks__shm_finish(struct lks__shm *g, uint64_t seq)
{
    struct lks__shm_slot *slot = lks__segment_slot(g->segment, (uint32_t)seq);
    g->finishes[seq % LKS__SHM_SLOTS]++;
    count_in(&slot->finished, &slot->finish_sleepers, finish_goal(g, seq), &g->line->finished, seq);
}

bool lks__shm_shares_done(const lks_comm *comm, const struct lks__shm_between *task)
{
    const struct lks__shm *g = comm->state;
    return reached(&lks__segment_slot(g->segment, (uint32_t)task->seq)->finished,
                   task->finish_goal);
}

bool lks__shm_all_finished(const struct lks__shm *g, uint64_t seq)
{
    return reached(&lks__segment_slot(g->segment, (uint32_t)seq)->finished, finish_goal(g, seq));
}

void lks__shm_between_done(lks_comm *comm, uint64_t seq)
{
    struct lks__shm *g = comm->state;
    struct lks__shm_slot *slot = lks__segment_slot(g->segment, (uint32_t)seq);
    count_in(&slot->between, &slot->between_sleepers, atomic_load(&slot->between) + 1,
             &g->line->between, seq);
}

bool lks__shm_all_between(const struct lks__shm *g, uint64_t seq, uint32_t goal)
{
    return reached(&lks__segment_slot(g->segment, (uint32_t)seq)->between, goal);
}

/* --- calls that don't match --------------------------------------------------------------- */

/* Ranks that join through different backends start different operations. With "auto" the cause is
 * another number of ranks. */
static void name_backends(const struct lks__shm_descriptor *a, int rank_a,
                          const struct lks__shm_descriptor *b, int rank_b, char *text, size_t bytes)
{
    char host[65] = "localhost";
    gethostname(host, sizeof host - 1);
    const char *shown = lks__shown(host, 4 * sizeof host);
    if (a->n_parts != b->n_parts) {
        snprintf(
            text, bytes,
            "WORLD_SIZE differs between ranks: rank %d (host %s) has %u, rank %d (host %s) has "
            "%u: it must be the same everywhere",
            rank_a, shown, a->n_parts, rank_b, shown, b->n_parts);
        return;
    }
    snprintf(text, bytes,
             "backend differs between ranks: rank %d (host %s) has %.*s, rank %d (host %s) has "
             "%.*s: start all ranks with the same settings and data",
             rank_a, shown, (int)sizeof a->args, (const char *)a->args, rank_b, shown,
             (int)sizeof b->args, (const char *)b->args);
}

static void name_calls(const struct lks__shm_descriptor *a, int rank_a,
                       const struct lks__shm_descriptor *b, int rank_b, char *text, size_t bytes)
{
    char call_a[256], call_b[256];
    lks__shm_describe(a, b, call_a, sizeof call_a);
    lks__shm_describe(b, a, call_b, sizeof call_b);
    snprintf(text, bytes,
             "ranks disagree on operation %llu: rank %d called %s, rank %d called %s; all ranks "
             "must start the same operations with the same sizes in the same order",
             (unsigned long long)a->seq, rank_a, call_a, rank_b, call_b);
}

lks_status lks__shm_check_descriptors(struct lks__shm *g, uint64_t seq)
{
    const int first = g->comm->first_rank;
    const struct lks__shm_descriptor *mine =
        lks__segment_descriptor(g->segment, g->rank, (uint32_t)seq);
    for (int r = 0; r < g->world_size; r++) {
        const struct lks__shm_descriptor *m = lks__segment_descriptor(g->segment, r, (uint32_t)seq);
        if (lks__shm_same_call(m, mine))
            continue;
        char text[768];
        const bool low = r < g->rank; /* so that all ranks give the same text */
        const bool join = m->kind == LKS__OP_JOIN && mine->kind == LKS__OP_JOIN;
        (join ? name_backends : name_calls)(low ? m : mine, first + (low ? r : g->rank),
                                            low ? mine : m, first + (low ? g->rank : r), text,
                                            sizeof text);
        return lks__shm_abort(g, LKS_ERR_ARG, -1, text);
    }
    return LKS_OK;
}

/* --- waiting ------------------------------------------------------------------------------ */

/* A wait for one of the counters. */
struct wait {
    uint64_t seq;
    uint32_t goal;
    unsigned what; /* the counter: LKS__WAIT_... */
    atomic_uint *counter, *sleepers;
};

static bool missing(const struct lks__shm *g, const struct wait *w, int rank)
{
    return w->what == LKS__WAIT_DEVICES || lks__shm_is_behind(g, rank, w->what, (uint32_t)w->seq);
}

static void name_wait(const struct lks__shm *g, const struct wait *w, char *text, size_t bytes)
{
    lks__shm_name_wait(w->what == LKS__WAIT_DEVICES
                           ? NULL
                           : lks__segment_descriptor(g->segment, g->rank, (uint32_t)w->seq),
                       w->seq, text, bytes);
}

/* True if a process has ended. Also works for zombies, and with other launchers. Keeps no
 * descriptor, because the program may close all that it doesn't know: if another process has got
 * the number since the last look, only the deadline ends the wait. */
static bool process_ended(pid_t pid)
{
    if (pid <= 0 || pid == getpid())
        return false;
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0); /* always close-on-exec */
    if (fd < 0)
        return errno == ESRCH;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    const bool ended = poll(&p, 1, 0) == 1;
    lks__sys_close(fd);
    return ended;
}

int lks__shm_ended(const lks_comm *comm)
{
    const struct lks__shm *g = comm->state;
    for (int r = 0; r < g->world_size; r++) {
        struct lks__rank_line *line = lks__segment_line(g->segment, r);
        if (process_ended((pid_t)atomic_load(&line->pid)) &&
            atomic_load(&line->state) != LKS__RANK_LEFT)
            return r;
    }
    return -1;
}

int lks__shm_rank_of(const lks_comm *comm, pid_t pid)
{
    const struct lks__shm *g = comm->state;
    int r = g->world_size - 1;
    while (r >= 0 && (pid_t)atomic_load(&lks__segment_line(g->segment, r)->pid) != pid)
        r--;
    return r;
}

void lks__shm_lost(lks_comm *comm, lks_status st, pid_t pid, const char *text)
{
    const struct lks__shm *g = comm->state;
    const int rank = lks__shm_rank_of(comm, pid);
    lks__rank_status s;
    if (rank < 0)
        return;
    lks__segment_status(g->segment, rank, &s);
    const bool active = s.waiting || s.beat_age_s < comm->timeout_s / 2;
    if (s.state == LKS__RANK_JOINED && !(st == LKS_ERR_TIMEOUT && active))
        (void)lks__shm_fail(comm, st, rank, -1, text);
}

bool lks__shm_failed(const lks_comm *comm, lks_status *st_p, char *text, size_t bytes)
{
    const struct lks__shm *g = comm->state;
    int rank;
    if (!lks__segment_aborted(g->segment))
        return false;
    lks__segment_failure(g->segment, st_p, &rank, text, bytes);
    return true;
}

/* "rank 2 (", or in a part "rank 1 (rank 2 of its part, " */
static void name_number(const struct lks__shm *g, int rank, pid_t pid, char text[64])
{
    const int first = lks__comm_number_in_whole(g->comm, pid), own = g->comm->first_rank + rank;
    if (first >= 0)
        snprintf(text, 64, "rank %d (rank %d of its part, ", first, own);
    else
        snprintf(text, 64, "rank %d (", own);
}

/* "rank 1 (pid 12, GPU 1 (…), stopped by a signal, at step 3, phase backward, last heartbeat 2.1 s
 * ago)" */
static void name_rank(const struct lks__shm *g, int rank, char text[NAME_BYTES])
{
    lks__rank_status s;
    lks__segment_status(g->segment, rank, &s);
    char where[80] = "", number[64];
    name_number(g, rank, s.pid, number);
    if (s.phase[0] != '\0')
        snprintf(where, sizeof where, ", at step %llu, phase %s", (unsigned long long)s.step,
                 s.phase);
    if (s.state == LKS__RANK_ABSENT)
        snprintf(text, NAME_BYTES, "%snever joined)", number);
    else
        snprintf(text, NAME_BYTES, "%spid %d%s%s%s%s, last heartbeat %.1f s ago%s)", number,
                 (int)s.pid, s.device[0] != '\0' ? ", " : "", s.device,
                 lks__shm_is_stopped(s.pid) ? ", stopped by a signal" : "", where, s.beat_age_s,
                 s.waiting ? ", waiting itself" : "");
}

static lks_status timed_out(struct lks__shm *g, const struct wait *w, int culprit)
{
    char text[1024], in[96], who[NAME_BYTES];
    name_wait(g, w, in, sizeof in);
    snprintf(text, sizeof text, "no answer for %g s in %s from ", g->comm->timeout_s, in);
    int named = 0;
    for (int r = 0; r < g->world_size; r++) {
        if (w->what == LKS__WAIT_DEVICES ? r != culprit : !missing(g, w, r))
            continue;
        if (named == MAX_NAMED) {
            lks__append(text, sizeof text, "", " and others");
            break;
        }
        if (strlen(text) > sizeof text - NAME_BYTES) /* there is no room for more */
            break;
        name_rank(g, r, who);
        lks__append(text, sizeof text, named++ > 0 ? ", " : "", "%s", who);
    }
    if (g->comm->whole != NULL)
        lks__append(text, sizeof text, "; ", "perhaps it waits in another group");
    const pid_t pid = (pid_t)atomic_load(&lks__segment_line(g->segment, culprit)->pid);
    lks__comm_lost_in_whole(g->comm, LKS_ERR_TIMEOUT, pid, text);
    return lks__shm_fail(g->comm, LKS_ERR_TIMEOUT, culprit, g->late_elsewhere, text);
}

/* Note a check of the others. A stop counts as one slice, so that a wait ends even if the machine
 * stalls again and again. */
static void note_look(struct lks__shm_clock *c, double now)
{
    if (now - c->looked > STOPPED_S) {
        c->stopped += now - c->looked - 1e-3 * SLICE_MS;
        c->back = now;
    }
    c->looked = now;
}

/* Seconds of the wait since that heartbeat, without those in which this process was stopped: then
 * the others may have been, too. */
static double silence(const struct lks__shm_clock *c, double beat)
{
    const double age = c->looked - (beat > c->start ? beat : c->start);
    return beat > c->back ? age : age - c->stopped;
}

/* Fail for all ranks, because rank r has ended or left without its part in the operation. */
static lks_status fail_ended(struct lks__shm *g, const struct wait *w, int r, int state, pid_t pid)
{
    char who[NAME_BYTES], number[64], in[96], text[1536];
    lks_status st;
    /* A rank leaves the part, too, because the whole group has failed: that is the reason. */
    if (state == LKS__RANK_LEFT && lks__comm_whole_failed(g->comm, &st, text, sizeof text))
        return lks__shm_abort(g, st, r, text);
    name_number(g, r, pid, number);
    name_rank(g, r, who);
    name_wait(g, w, in, sizeof in);
    const bool joined = atomic_load(&lks__segment_line(g->segment, r)->posted) > 0;
    if (!joined)
        snprintf(text, sizeof text, "%spid %d) ended without joining the group", number, (int)pid);
    else
        snprintf(text, sizeof text, "%s %s before %s was complete", who,
                 state == LKS__RANK_LEFT ? "left the group" : "ended", in);
    if (process_ended(pid))
        lks__comm_lost_in_whole(g->comm, LKS_ERR_PEER, pid, text);
    /* A rank that hasn't joined may have had a signal, which others had, too: then it is no failure
     * for them (lks__comm_not_opened()). */
    return lks__shm_abort(g, joined ? LKS_ERR_PEER : LKS_ERR_STOPPED, r, text);
}

/* Check the ranks that we wait for. A rank with heartbeats is not late, however long its work
 * takes. A rank without one for the deadline is. */
static lks_status look_for_failures(struct lks__shm *g, const struct wait *w,
                                    const struct lks__shm_clock *clock)
{
    const bool devices = w->what == LKS__WAIT_DEVICES;
    /* A first rank that hasn't joined itself names the ranks that it waits for (share.c). */
    const bool offers = atomic_load(&lks__segment_line(g->segment, 0)->state) == LKS__RANK_ABSENT;
    const double limit = g->comm->timeout_s + (devices || offers ? LKS__OWN_WORD_S : 0);
    int late = -1, late_waiting = -1;
    for (int r = 0; r < g->world_size; r++) {
        if (r == g->rank || !missing(g, w, r))
            continue;
        struct lks__rank_line *line = lks__segment_line(g->segment, r);
        int state = (int)atomic_load(&line->state);
        pid_t pid = (pid_t)atomic_load(&line->pid);
        /* A rank that has left in order has completed its device's transfers. */
        if ((state == LKS__RANK_LEFT && !devices) ||
            (state != LKS__RANK_LEFT && process_ended(pid))) {
            /* The rank may have arrived, or left, and ended only then. */
            if (!missing(g, w, r) || (devices && atomic_load(&line->state) == LKS__RANK_LEFT))
                continue;
            return fail_ended(g, w, r, state, pid);
        }
        const bool waiting = atomic_load(&line->waiting); /* its heartbeat precedes its end */
        if (silence(clock, (double)atomic_load(&line->beat_us) * 1e-6) < limit)
            continue;
        if (!waiting && late < 0)
            late = r;
        else if (late_waiting < 0 && !devices)
            late_waiting = r;
    }
    if (late >= 0)
        return timed_out(g, w, late);
    /* A waiting rank will itself name the rank that it waits for; give it time for that. */
    if (late_waiting >= 0 && silence(clock, 0) > g->comm->timeout_s + 1)
        return timed_out(g, w, late_waiting);
    return LKS_OK;
}

/* True if the goal was reached while polling, without sleeping. */
static bool spin(const struct lks__shm *g, const struct wait *w)
{
    if (g->spin_s <= 0) { /* ranks share cores: let another one run instead */
        for (int i = 0; i < 2; i++) {
            sched_yield();
            if (reached(w->counter, w->goal))
                return true;
        }
        return false;
    }
    double end = lks__sys_now() + g->spin_s;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (reached(w->counter, w->goal))
                return true;
            lks__cpu_relax();
        }
        sched_yield(); /* the other rank may need this core */
    } while (!lks__segment_aborted(g->segment) && lks__sys_now() < end);
    return false;
}

static lks_status sleep_until(struct lks__shm *g, const struct wait *w, double start)
{
    struct lks__shm_clock clock = {.start = start, .looked = start};
    while (!reached(w->counter, w->goal)) {
        if (lks__segment_aborted(g->segment))
            return lks__shm_failure(g->comm);
        struct timespec slice = {0, SLICE_MS * 1000000L};
        atomic_fetch_add(w->sleepers, 1);
        uint32_t seen = atomic_load(w->counter);
        if ((int32_t)(seen - w->goal) < 0)
            syscall(SYS_futex, w->counter, FUTEX_WAIT, seen, &slice, NULL, 0);
        atomic_fetch_sub(w->sleepers, 1);
        if (reached(w->counter, w->goal))
            break;
        double now = lks__sys_now();
        if (now - clock.looked < 0.5e-3 * SLICE_MS) /* arrivals of others can end a slice early */
            continue;
        note_look(&clock, now);
        lks__comm_beat_whole(g->comm);
        LKS__TRY(look_for_failures(g, w, &clock));
        if (w->seq == 0 && w->what == LKS__WAIT_ARRIVE) /* others don't depend on it yet */
            LKS__TRY(lks__sys_give_up_check());
    }
    return LKS_OK;
}

static lks_status wait_for(struct lks__shm *g, const struct wait *w)
{
    if (reached(w->counter, w->goal))
        return LKS_OK;
    double start = lks__sys_now();
    lks_status st = LKS_OK;
    lks__trace_begin(LKS__SPAN_WAIT, -1);
    if (!spin(g, w)) {
        atomic_store_explicit(&g->line->wait_seq, (uint32_t)w->seq, memory_order_relaxed);
        atomic_store_explicit(&g->line->waiting, w->what, memory_order_release);
        st = sleep_until(g, w, start);
        atomic_store_explicit(&g->line->waiting, LKS__WAIT_NONE, memory_order_relaxed);
    }
    lks__trace_end();
    if (g->timing)
        g->comm->wait_s += lks__sys_now() - start;
    return st;
}

lks_status lks__shm_wait_arrived(struct lks__shm *g, uint64_t seq)
{
    struct lks__shm_slot *slot = lks__segment_slot(g->segment, (uint32_t)seq);
    struct wait w = {seq, arrive_goal(g, seq), LKS__WAIT_ARRIVE, &slot->arrived,
                     &slot->arrive_sleepers};
    LKS__TRY(wait_for(g, &w));
    return lks__shm_check_descriptors(g, seq);
}

lks_status lks__shm_wait_finished(struct lks__shm *g, uint64_t seq)
{
    struct lks__shm_slot *slot = lks__segment_slot(g->segment, (uint32_t)seq);
    struct wait w = {seq, finish_goal(g, seq), LKS__WAIT_FINISH, &slot->finished,
                     &slot->finish_sleepers};
    return wait_for(g, &w);
}

lks_status lks__shm_wait_between(struct lks__shm *g, uint64_t seq, uint32_t goal)
{
    struct lks__shm_slot *slot = lks__segment_slot(g->segment, (uint32_t)seq);
    struct wait w = {seq, goal, LKS__WAIT_BETWEEN, &slot->between, &slot->between_sleepers};
    return wait_for(g, &w);
}

lks_status lks__shm_among_devices(lks_comm *comm, bool waits)
{
    static const struct wait w = {.what = LKS__WAIT_DEVICES};
    struct lks__shm *g = comm->state;
    const double now = waits ? lks__sys_now() : 0;
    if (waits != (g->among.start > 0)) {
        g->among = (struct lks__shm_clock){.start = now, .looked = now};
        lks__shm_beat_all(g);
        atomic_store(&g->line->waiting, waits ? LKS__WAIT_DEVICES : LKS__WAIT_NONE);
    }
    if (!waits || now - g->among.looked < 1e-3 * SLICE_MS)
        return LKS_OK;
    note_look(&g->among, now);
    return look_for_failures(g, &w, &g->among);
}

void lks__shm_wait_for_hosts(lks_comm *comm, bool waits)
{
    struct lks__shm *g = comm->state;
    if (waits)
        atomic_store_explicit(&g->line->wait_seq, atomic_load(&g->line->posted) - 1,
                              memory_order_relaxed);
    atomic_store_explicit(&g->line->waiting, waits ? LKS__WAIT_BETWEEN : LKS__WAIT_NONE,
                          memory_order_release);
}
