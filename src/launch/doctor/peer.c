/* Two doctors on two hosts. One serves a store, as a job would (store/store.h), and keeps facts
 * about its host in it. The other reads the facts, and measures the connection. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/system/memory.h"
#include "comm/store/address.h"
#include "comm/store/store.h"
#include "launch/doctor/doctor.h"
#include "launch/doctor/stream.h"

#include "base/system/early.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"

enum { DEFAULT_PORT = 29500, CLOCK_MS = 100, N_ROUNDS = 20 };

/* The value of "stream" in a served store. */
struct stream_door {
    int32_t port;
    uint8_t secret[LKS__STREAM_SECRET];
};

static const double CONNECT_S = 5, MEASURE_S = 1.5;
static const double CLOCK_OFF_S = 1.0; /* far more than the delay of a round trip */

/* --- facts -------------------------------------------------------------------------------- */

static char *facts_of(const lks__doctor *d)
{
    char print[17] = "";
    if (d->has_kernels)
        snprintf(print, sizeof print, "%016" PRIx64, lks__kernels_fingerprint(&d->kernels, false));
    uint64_t room = lks__memory_available();
    json_t *facts =
        json_pack("{s:s, s:s, s:s, s:s, s:f}", "version", LKS_VERSION_TEXT, "level",
                  lks__cpu_level_name(d->level), "gemm",
                  d->has_kernels ? lks__kernels_gemm_library(&d->kernels) : "", "fingerprint",
                  print, "memory", room == UINT64_MAX ? 0.0 : (double)room);
    char *text = facts != NULL ? lks__json_dump(facts, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(facts);
    return text;
}

/* --- serving ------------------------------------------------------------------------------ */

static volatile sig_atomic_t stopped;

static void on_stop(int signo)
{
    stopped = signo;
}

/* Publish the facts once and the clock repeatedly, until a signal stops us. */
static lks_status keep_facts(const lks__doctor *d, lks__store *store)
{
    char *facts = facts_of(d);
    LKS__MEMORY(facts, "for this host's facts");
    lks_status st = lks__store_set(store, "facts", facts, strlen(facts));
    free(facts);
    while (st == LKS_OK && stopped == 0) {
        double now = lks__sys_wall();
        st = lks__store_set(store, "clock", &now, sizeof now);
        poll(NULL, 0, CLOCK_MS);
    }
    return stopped != 0 ? LKS_OK : st;
}

/* Accept streams, only from hosts that can read the store. */
static lks_status open_stream(lks__store *store, const char *host, lks__stream_sink **sink_p)
{
    struct stream_door door;
    if (getrandom(door.secret, sizeof door.secret, 0) != (ssize_t)sizeof door.secret)
        return lks__fail(LKS_ERR_IO, "no random numbers: %s", strerror(errno));
    LKS__TRY(lks__stream_serve(host, door.secret, sink_p));
    door.port = lks__stream_port(*sink_p);
    return lks__store_set(store, "stream", &door, sizeof door);
}

lks_status lks__doctor_serve(lks__doctor *d, const char *address)
{
    char host[256], token[LKS__TOKEN_BYTES], where[LKS__ADDRESS_BYTES];
    int port = DEFAULT_PORT;
    LKS__TRY(lks__address_parse("--serve", address, host, sizeof host, &port));
    LKS__TRY(lks__token_new(token));
    lks__store_server *server;
    lks__store *store;
    lks__stream_sink *sink = NULL;
    struct sigaction stop = {.sa_handler = on_stop};
    static const int stops[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
        if (!lks__signal_is_ignored(stops[i]))
            sigaction(stops[i], &stop, NULL);
    LKS__TRY(lks__store_serve(host, port, token, &server));
    d->served = true;
    lks__address_text(where, host, lks__store_port(server));
    fprintf(d->out,
            "waiting at %s until Ctrl-C. On the other hosts:\n"
            "    LOCKSTEP_TOKEN=%s lockstep doctor %s\n",
            where, token, where);
    fflush(d->out);
    lks_status st = lks__store_open(host, lks__store_port(server), token, CONNECT_S, &store);
    if (st == LKS_OK) {
        st = open_stream(store, host, &sink);
        LKS__THEN(st, keep_facts(d, store));
        lks__store_close(store);
    }
    lks__stream_stop(sink);
    lks__store_stop(server);
    return st;
}

/* --- visiting ----------------------------------------------------------------------------- */

static void compare_clock(lks__doctor *d, lks__store *store, const char *where)
{
    void *data;
    size_t bytes;
    double theirs = 0;
    if (lks__store_get(store, "clock", CONNECT_S, &data, &bytes) != LKS_OK)
        return;
    if (bytes == sizeof theirs)
        memcpy(&theirs, data, sizeof theirs);
    free(data);
    double off = fabs(lks__sys_wall() - theirs);
    bool apart = !(off < CLOCK_OFF_S);
    lks__doctor_say(d, apart ? LKS__NOTE : LKS__FINE, "clocks",
                    "synchronize both with a time server: runs don't depend on it, but their logs "
                    "can't be compared",
                    apart ? "%s is %.1f s from this host" : "%s agrees with this host", where, off);
}

static const char *fact(const json_t *facts, const char *key)
{
    const char *text = json_string_value(json_object_get(facts, key));
    return text != NULL ? text : "?";
}

static void compare_text(lks__doctor *d, const json_t *mine, const json_t *theirs, const char *key,
                         lks__finding otherwise, const char *advice, const char *where)
{
    const char *a = fact(mine, key), *b = fact(theirs, key);
    bool same = strcmp(a, b) == 0;
    const char *shown = lks__shown(b, 120);
    if (same)
        lks__doctor_say(d, LKS__FINE, key, NULL, "%s here and on %s", a, where);
    else
        lks__doctor_say(d, otherwise, key, advice, "%s here, %s on %s", a, shown, where);
}

static void compare_facts(lks__doctor *d, const json_t *mine, const json_t *theirs,
                          const char *where)
{
    compare_text(d, mine, theirs, "version", LKS__PROBLEM,
                 "install one version on all hosts: ranks of different versions don't run together",
                 where);
    compare_text(d, mine, theirs, "level", LKS__NOTE,
                 "bytes in float32 don't depend on it; each host computes at its own speed", where);
    compare_text(d, mine, theirs, "gemm", LKS__NOTE,
                 "bytes don't depend on it; the slower hosts need the library", where);
    compare_text(d, mine, theirs, "fingerprint", LKS__PROBLEM,
                 "kernels give different bits, so a host refuses to run: see its own doctor; "
                 "LOCKSTEP_CPU=plain may work",
                 where);
    double a = json_number_value(json_object_get(mine, "memory"));
    double b = json_number_value(json_object_get(theirs, "memory"));
    bool unequal = fmin(a, b) < 0.5 * fmax(a, b);
    lks__doctor_say(d, unequal ? LKS__NOTE : LKS__FINE, "memory",
                    "a run needs the same memory on each host for the same number of ranks: the "
                    "smaller one is the limit",
                    "%.1f GB are available here, %.1f GB on %s", a / 1e9, b / 1e9, where);
}

static void read_facts(lks__doctor *d, lks__store *store, const char *where)
{
    void *data = NULL;
    size_t bytes = 0;
    json_error_t error;
    char *text = facts_of(d);
    json_t *mine = NULL, *theirs = NULL;
    if (text != NULL)
        mine = lks__json_load(text, strlen(text), 0, &error);
    if (mine != NULL && lks__store_get(store, "facts", CONNECT_S, &data, &bytes) == LKS_OK)
        theirs = lks__json_load(data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (json_is_object(theirs))
        compare_facts(d, mine, theirs, where);
    else if (mine == NULL || (data != NULL && lks__json_no_memory(&error)))
        lks__doctor_say(d, LKS__PROBLEM, "facts", "free memory on this host",
                        "no memory to compare this host with %s", where);
    else
        lks__doctor_say(d, LKS__PROBLEM, "facts", "start `lockstep doctor --serve` there",
                        "the program at %s doesn't describe its host", where);
    json_decref(mine);
    json_decref(theirs);
    free(text);
    free(data);
}

/* The other side's port for streams, and its secret; false: it accepts none. */
static bool find_stream(lks__store *store, struct stream_door *door)
{
    void *data = NULL;
    size_t bytes = 0;
    bool found = lks__store_get(store, "stream", CONNECT_S, &data, &bytes) == LKS_OK &&
                 bytes == sizeof *door;
    if (found)
        memcpy(door, data, sizeof *door);
    free(data);
    return found && door->port > 0 && door->port < 65536;
}

/* Measure round trips of 8 bytes, and a stream: the rate that a step's gradients get on an idle
 * network. */
static void measure(lks__doctor *d, lks__store *store, const char *host, const char *where)
{
    static const char advice[] =
        "a step sends 4 bytes per parameter and host: use a faster network or interface, or "
        "larger steps (gradient_accumulation_steps)";
    int64_t sum;
    double least = INFINITY, started, rate = 0;
    struct stream_door door;
    lks_status st;
    for (int i = 0; i < N_ROUNDS; i++) {
        started = lks__sys_now();
        if (lks__store_add(store, "rounds", 1, &sum) != LKS_OK) {
            lks__doctor_say(d, LKS__PROBLEM, "link",
                            "the connection breaks: cable, or a firewall's limits", "to %s: %s",
                            where, lks_last_error());
            return;
        }
        least = fmin(least, lks__sys_now() - started);
    }
    if (!find_stream(store, &door))
        lks__doctor_say(d, LKS__NOTE, "link", "start the same version of lockstep there",
                        "to %s: round trip %.2f ms; it accepts no streams, so the rate is unknown",
                        where, least * 1e3);
    else if ((st = lks__stream_send(host, door.port, door.secret, MEASURE_S, &rate)) != LKS_OK)
        lks__doctor_say(d, st == LKS_ERR_PEER ? LKS__PROBLEM : LKS__NOTE, "link",
                        "let firewalls pass all TCP traffic between the hosts, as ranks listen on "
                        "ports that the system chooses; use one MTU on all hosts and switches",
                        "to %s: round trip %.2f ms; the rate is unknown: %s", where, least * 1e3,
                        lks_last_error());
    else
        lks__doctor_say(d, rate < 50e6 ? LKS__NOTE : LKS__FINE, "link", advice,
                        "to %s: round trip %.2f ms, %.*f MB/s from here on one connection", where,
                        least * 1e3, rate < 10e6 ? 2 : 0, rate / 1e6);
}

void lks__doctor_peer(lks__doctor *d, const char *address)
{
    char host[256], where[LKS__ADDRESS_BYTES];
    int port = DEFAULT_PORT;
    const char *token = getenv(LKS__TOKEN_ENV);
    lks__store *store;
    if (lks__address_parse("doctor", address, host, sizeof host, &port) != LKS_OK) {
        lks__doctor_say(d, LKS__PROBLEM, "host", "give HOST:PORT", "%s", lks_last_error());
        return;
    }
    lks__address_text(where, host, port);
    if (token == NULL) {
        lks__doctor_say(
            d, LKS__PROBLEM, "host",
            "start `lockstep doctor --serve=ADDRESS:PORT` there: it prints the command for this "
            "host",
            "%s: LOCKSTEP_TOKEN is not set, so this host can't prove that it belongs to the job",
            where);
        return;
    }
    lks_status st = lks__store_open(host, port, token, CONNECT_S, &store);
    if (st != LKS_OK) {
        lks__doctor_say(
            d, LKS__PROBLEM, "host",
            st == LKS_ERR_CONFIG
                ? "give the name and the LOCKSTEP_TOKEN that the other doctor printed"
                : "is `lockstep doctor --serve` running there, at that address? \"Connection "
                  "refused\" means that no program listens there; no answer means that a firewall "
                  "drops it (open the port for TCP) or that the address belongs to another network",
            "%s can't be reached: %s", where, lks_last_error());
        return;
    }
    compare_clock(d, store, where);
    read_facts(d, store, where);
    measure(d, store, host, where);
    d->n_peers++;
    lks__store_close(store);
}
