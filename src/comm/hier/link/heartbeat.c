/* The messages that leaders exchange outside operations: heartbeats several times a second, with
 * progress, the rank that has been silent for longest, and failures. They report the cause of every
 * failure. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/hier/hier.h"

enum { MAGIC = 0x6c6b7349 }; /* another one for each form of struct lks__hier_heartbeat */

static const double FRESH_S = 1.0;   /* maximal age of a heartbeat that counts */
static const double STOPPED_S = 1.0; /* after a pause this long, this process itself was stopped */
static const double LAST_SEND_S = 0.5;
static const double LEAVE_S = 5.0;  /* time for the others to leave, too */
static const double REPORT_S = 0.5; /* time for a host to report the end of its rank itself */
static const double CAUSE_S = 3.0;  /* time for the cause of an engine's error to arrive */

/* --- failures ----------------------------------------------------------------------------- */

lks_status lks__hier_fail(struct lks__hier *h, lks_status st, int rank, const char *text)
{
    return lks__shm_fail(h->local, st, rank, h->late, text);
}

/* A host's name, or its number if it hasn't sent its name yet. */
static const char *name_of(const struct lks__hier *h, int host, char number[16])
{
    const struct lks__hier_heartbeat *last = &h->hosts[host].last;
    snprintf(number, 16, "%d", host);
    return host == h->host ? h->name : last->magic == MAGIC ? last->name : number;
}

/* "host b (ranks 2 to 3)" */
static void name_host(const struct lks__hier *h, int host, char *text, size_t bytes)
{
    int first = h->first[host], last = h->first[host + 1] - 1;
    char number[16];
    const char *name = name_of(h, host, number);
    if (h->first[h->n_hosts] == 0) /* not known yet */
        snprintf(text, bytes, "host %s", name);
    else if (first == last)
        snprintf(text, bytes, "host %s (rank %d)", name, first);
    else
        snprintf(text, bytes, "host %s (ranks %d to %d)", name, first, last);
}

/* "rank 2 (the first of host b)", whose process has the connections to other hosts */
static void name_leader(const struct lks__hier *h, int host, char *text, size_t bytes)
{
    char number[16];
    const char *name = name_of(h, host, number);
    if (h->first[h->n_hosts] == 0) /* not known yet */
        snprintf(text, bytes, "the first rank of host %s", name);
    else
        snprintf(text, bytes, "rank %d (the first of host %s)", h->first[host], name);
}

/* "host a (rank 0) has had no heartbeat from host b (rank 1) for more than 5 s, …": if a network
 * fails in part, either side may be the cause. */
static void describe_silence(const struct lks__hier *h, int host, double limit, const char *in,
                             char text[768])
{
    char us[LKS__HIER_WHO], who[LKS__HIER_WHO], number[16];
    name_host(h, h->host, us, sizeof us);
    name_host(h, host, who, sizeof who);
    snprintf(
        text, 768,
        "%s has had no heartbeat from %s for more than %g s, in %s: the processes of host %s are "
        "stopped, or the network between the two hosts fails",
        us, who, limit, in, name_of(h, host, number));
}

static void name_late(const struct lks__hier_host *other, double limit, const char *in,
                      const char *who, char text[768])
{
    const struct lks__hier_heartbeat *last = &other->last;
    char at[96] = "";
    if (last->phase[0] != '\0')
        snprintf(at, sizeof at, " (at step %llu, phase %s)", (unsigned long long)last->step,
                 last->phase);
    snprintf(text, 768, "no answer for %g s in %s from rank %d on %s%s", limit, in, last->rank, who,
             at);
}

/* --- heartbeats --------------------------------------------------------------------------- */

/* Find the rank of this host that computes (doesn't wait) and has been silent for longest. */
static void find_silent(const struct lks__hier *h, struct lks__hier_heartbeat *beat)
{
    lks__segment *segment = lks__shm_segment(h->local);
    beat->rank = -1;
    for (int r = 0; r < h->join.local_world_size; r++) {
        lks__rank_status s;
        lks__segment_status(segment, r, &s);
        if (s.state != LKS__RANK_JOINED || s.waiting || s.beat_age_s < beat->age_s)
            continue;
        beat->rank = h->first[h->host] + r;
        beat->age_s = s.beat_age_s;
        beat->step = s.step;
        memcpy(beat->phase, s.phase, sizeof beat->phase);
    }
}

/* A rank of this host that has ended, by its number in the world; -1: none. Calls of this host that
 * wait for it notice that themselves. Other hosts wait for this host, and the opening of a part
 * waits inside an engine. */
static int find_ended(const struct lks__hier *h)
{
    const int r = lks__shm_ended(h->local);
    if (r < 0 || h->first[h->n_hosts] == 0)
        return -1;
    lks__segment_has_ended(lks__shm_segment(h->local), h->first[h->host] + r);
    return h->first[h->host] + r;
}

static bool send_heartbeat(struct lks__hier *h, bool leaves)
{
    unsigned char bytes[LKS__ENGINE_MESSAGE] = {0};
    lks__segment *segment = lks__shm_segment(h->local);
    struct lks__hier_heartbeat beat = {.magic = MAGIC,
                                       .left = leaves,
                                       .begun = h->begun,
                                       .ended = find_ended(h),
                                       .stop_signal = lks__segment_asked_stop(segment),
                                       .saving = lks__segment_saving(segment, false)};
    bool failed = lks__segment_aborted(segment);
    if (failed) {
        lks_status st;
        int rank;
        lks__segment_failure(segment, &st, &rank, beat.text, sizeof beat.text);
        beat.status = st;
        beat.rank = rank >= 0 ? h->first[h->host] + rank : h->late;
    } else {
        find_silent(h, &beat);
    }
    memcpy(beat.name, h->name, sizeof beat.name);
    memcpy(bytes, &beat, sizeof beat);
    if (h->ops->tell(h->engine, bytes) == 0)
        return false;
    h->sent_s = lks__sys_now();
    h->sent_failure |= failed;
    h->sent_stop = beat.stop_signal;
    h->sent_saving = beat.saving;
    return true;
}

static lks_status take_heartbeat(struct lks__hier *h, int host, const unsigned char *bytes,
                                 double now)
{
    struct lks__hier_host *other = &h->hosts[host];
    char who[LKS__HIER_WHO];
    name_host(h, host, who, sizeof who);
    memcpy(&other->last, bytes, sizeof other->last);
    other->last.phase[sizeof other->last.phase - 1] = '\0';
    other->last.name[sizeof other->last.name - 1] = '\0';
    other->last.text[sizeof other->last.text - 1] = '\0';
    other->last_s = now;
    if (other->last.magic != MAGIC) {
        char text[256];
        snprintf(text, sizeof text, "%s runs another build of lockstep: use the same everywhere",
                 who);
        return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
    }
    if (other->last.ended >= 0 && other->ended_s == 0) {
        other->ended_s = now;
        other->ended = other->last.ended;
    }
    if (other->last.ended >= 0)
        lks__segment_has_ended(lks__shm_segment(h->local), other->last.ended);
    if (other->last.stop_signal != 0)
        lks__segment_ask_stop(lks__shm_segment(h->local), other->last.stop_signal);
    h->late = other->last.status != LKS_OK ? other->last.rank : h->late;
    if (other->last.status != LKS_OK) { /* escaped when it is printed */
        bool ours = h->late >= h->first[h->host] && h->late < h->first[h->host + 1];
        return lks__hier_fail(h, (lks_status)other->last.status,
                              ours ? h->late - h->first[h->host] : -1, other->last.text);
    }
    return LKS_OK;
}

static lks_status receive_heartbeats(struct lks__hier *h, double now)
{
    unsigned char bytes[LKS__ENGINE_MESSAGE];
    char why[256] = "";
    bool saving = false;
    for (int i = 0; i < h->n_hosts; i++) {
        struct lks__hier_host *other = &h->hosts[i];
        while (i != h->host && !other->gone) {
            int heard = h->ops->hear(h->engine, i, bytes, why, sizeof why);
            if (heard == 0)
                break;
            other->gone = heard < 0;
            if (heard > 0)
                LKS__TRY(take_heartbeat(h, i, bytes, now));
        }
        saving |= i != h->host && other->last.saving != 0;
        if (!other->gone || other->last.left)
            continue;
        char who[LKS__HIER_WHO], text[512];
        name_leader(h, i, who, sizeof who);
        snprintf(text, sizeof text, "%s ended, or its host or the network to it is lost: %s", who,
                 why);
        return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
    }
    lks__segment_saves_elsewhere(lks__shm_segment(h->local), saving);
    return LKS_OK;
}

/* Report a rank of another host that has ended, if an operation needs it. */
static lks_status look_for_end(struct lks__hier *h, double now)
{
    for (int i = 0; i < h->n_hosts; i++) {
        const struct lks__hier_host *other = &h->hosts[i];
        char who[LKS__HIER_WHO], text[256];
        if (other->ended_s == 0 || now - other->ended_s < REPORT_S || other->last.left ||
            other->last.begun > h->number || !lks__hier_is_busy(h))
            continue;
        h->late = other->ended;
        name_host(h, i, who, sizeof who);
        snprintf(text, sizeof text,
                 "rank %d on %s ended before it left the group, and other ranks wait for it",
                 h->late, who);
        return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
    }
    return LKS_OK;
}

static bool waits_for_devices(const struct lks__hier *h)
{
    lks__rank_status s = {.among_devices = false};
    for (int r = 0; r < h->join.local_world_size && !s.among_devices; r++)
        lks__segment_status(lks__shm_segment(h->local), r, &s);
    return s.among_devices;
}

/* Seconds of silence of the host's rank that has been silent for longest, without those in which
 * this process was stopped. */
static double age_of(const struct lks__hier *h, const struct lks__hier_host *other)
{
    const double age = other->last.age_s;
    return other->last_s - age > h->back_s ? age : age - h->stopped_s;
}

/* During an operation that makes no progress, or an exchange between devices: report a host that
 * has been silent for the deadline, or a rank of a host, if the operation has also waited for so
 * long: ranks may all compute for longer than that. If a host has begun the operation, its ranks
 * have done their part, and it may leave before its last data arrive. */
static lks_status look_for_silence(struct lks__hier *h, double now, bool operation)
{
    double limit = h->comm->timeout_s + (operation ? 0 : LKS__OWN_WORD_S);
    const bool waited = !operation || now - h->began_s > limit;
    char who[LKS__HIER_WHO], in[96], text[768];
    /* Omit its number among hosts: the status table has the numbers within each host. */
    if (operation)
        lks__shm_title(&h->descs[h->host], in + snprintf(in, sizeof in, "the "), sizeof in - 4);
    else
        lks__shm_name_wait(NULL, 0, in, sizeof in);
    for (int i = 0; i < h->n_hosts; i++) {
        const struct lks__hier_host *other = &h->hosts[i];
        double silent = now - other->last_s;
        if (i == h->host)
            continue;
        const bool begun = operation && other->last.begun > h->number;
        const bool left = operation && other->last.left && !begun;
        (left ? name_leader : name_host)(h, i, who, sizeof who);
        if (left)
            snprintf(text, sizeof text, "%s left the group before %s was complete", who, in);
        else if (other->last.left && !begun)
            continue;
        else if (silent > limit)
            describe_silence(h, i, limit, in, text);
        else if (waited && !begun && other->last.rank >= 0 && age_of(h, other) > limit &&
                 silent < FRESH_S)
            name_late(other, limit, in, who, text);
        else
            continue;
        h->late = silent > limit ? -1 : other->last.rank;
        return lks__hier_fail(h, left ? LKS_ERR_PEER : LKS_ERR_TIMEOUT, -1, text);
    }
    return LKS_OK;
}

/* True if the other hosts must learn of a change at once. */
static bool is_urgent(const struct lks__hier *h)
{
    const lks__segment *s = lks__shm_segment(h->local);
    return lks__segment_asked_stop(s) != h->sent_stop ||
           lks__segment_saving(s, false) != (h->sent_saving != 0);
}

/* After a stop of this process: its time doesn't count, except for a short one, so that a wait ends
 * even if the machine stalls again and again. A rank that was silent before stops longer ago than
 * the deadline has been reported. */
static void omit_stop(struct lks__hier *h, double now)
{
    const double stop = now - h->looked_s - LKS__HIER_HEARTBEAT_S;
    const bool again = h->looked_s - h->back_s < h->comm->timeout_s + LKS__OWN_WORD_S;
    h->stopped_s = stop + (again ? h->stopped_s : 0);
    h->back_s = now;
    h->began_s += stop;
    for (int i = 0; i < h->n_hosts; i++)
        h->hosts[i].last_s += stop;
}

lks_status lks__hier_look(struct lks__hier *h, bool waits)
{
    lks__segment *segment = lks__shm_segment(h->local);
    double now = lks__sys_now();
    if (h->looked_s > 0 && now - h->looked_s > STOPPED_S)
        omit_stop(h, now);
    h->looked_s = now;
    if (!waits)
        h->began_s = now;
    bool failed = lks__segment_aborted(segment);
    if (failed ? !h->sent_failure : now - h->sent_s >= LKS__HIER_HEARTBEAT_S || is_urgent(h))
        send_heartbeat(h, false);
    if (failed)
        return lks__shm_failure(h->local);
    LKS__TRY(receive_heartbeats(h, now));
    LKS__TRY(look_for_end(h, now));
    if (waits)
        lks_comm_beat(h->local); /* so that our ranks don't report us: we all wait for others */
    return waits || waits_for_devices(h) ? look_for_silence(h, now, waits) : LKS_OK;
}

/* The engine reports an error. Its connections for operations and for heartbeats fail at different
 * times, so wait until a heartbeat, or the end of heartbeats, names the rank or host that failed.
 * Without either, name at least the other host if there are two. */
lks_status lks__hier_engine_failed(struct lks__hier *h, const char *why)
{
    char text[768], at[96], who[LKS__HIER_WHO + 8] = "between hosts";
    for (double end = lks__sys_now() + CAUSE_S; lks__sys_now() < end; usleep(5000))
        LKS__TRY(lks__hier_look(h, true));
    if (h->n_hosts == 2) {
        size_t used = (size_t)snprintf(who, sizeof who, "with ");
        name_host(h, 1 - h->host, who + used, sizeof who - used);
    }
    lks__shm_name_wait(&h->descs[h->host], h->number, at, sizeof at);
    snprintf(text, sizeof text, "%s failed %s at %s: %s", h->ops->name, who, at, why);
    return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
}

/* --- leaving ------------------------------------------------------------------------------- */

/* True if all others have reported that they leave, or have gone. If one has failed, the end isn't
 * orderly. */
static bool all_have_left(struct lks__hier *h, bool *orderly_p)
{
    unsigned char bytes[LKS__ENGINE_MESSAGE];
    char why[256];
    bool all = true;
    for (int i = 0; i < h->n_hosts; i++) {
        struct lks__hier_host *other = &h->hosts[i];
        for (int heard = 1; i != h->host && !other->gone && !other->last.left && heard != 0;) {
            heard = h->ops->hear(h->engine, i, bytes, why, sizeof why);
            other->gone = heard < 0;
            if (heard > 0)
                memcpy(&other->last, bytes, sizeof other->last);
        }
        all = all && (i == h->host || other->gone || other->last.left);
        *orderly_p = *orderly_p && other->last.status == LKS_OK;
    }
    return all;
}

/* In an orderly end each host closes only after all have received its data: closing a connection
 * can lose unread bytes. */
void lks__hier_end_engine(struct lks__hier *h, bool orderly)
{
    double end = lks__sys_now() + LAST_SEND_S;
    while ((orderly || !h->sent_failure) && !send_heartbeat(h, orderly) && lks__sys_now() < end)
        usleep(1000);
    for (end = lks__sys_now() + LEAVE_S;
         orderly && !all_have_left(h, &orderly) && lks__sys_now() < end;)
        usleep(200);
    h->ops->leave(h->engine, orderly);
    h->engine = NULL;
}
