/* lockstep plan: predicts the memory, traffic and time of a run on 1 to 1,024 hosts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../progress.h"
#include "../tool.h"
#include "base/number/units.h"
#include "base/system/memory.h"
#include "base/text/jsonw.h"
#include "plan/bytes/advice.h"
#include "plan/bytes/process.h"
#include "plan/time/forecast.h"
#include "report/record/leaves.h"
#include "train/procedure/procedure.h"
#include "train/setup/dryrun.h"

static const char usage[] =
    "Usage: lockstep plan [config/NAME.conf] [--machine=FILE] [--nnodes=N]\n"
    "                     [--nproc_per_node=R] [--json]\n"
    "\n"
    "Predicts the memory and communication of a run on 1, 2, 4 … N hosts with R ranks\n"
    "each. With a machine file (`lockstep bench machine`) it also predicts the time\n"
    "of a step. It starts no rank, and accepts all settings of train. With\n"
    "--device=cuda it also counts the memory of a GPU, of size --memory. It needs no\n"
    "GPU for that, and prints no times.\n"
    "\n"
    "  lockstep bench machine --out=machine.json --nproc_per_node=2 train_gpt2\n"
    "  lockstep plan train_gpt2 --machine=machine.json --nnodes=8 --nproc_per_node=2\n";

enum { MOST_POINTS = 12, JSON_BYTES = 64 << 10, MOST_VIRTUAL = 1024 };

struct point {
    int nodes;
    bool possible;
    char why[1024]; /* if it isn't possible */
    lks__needs needs;
    lks__traffic traffic;
    double leaves; /* bytes that a step adds to leaves.bin */
    bool timed, weak_timed;
    lks__forecast time, weak; /* weak: `nodes` times the tokens per step */
};

struct plan {
    lks__settings s;
    lks__device device;
    uint32_t vocab;
    bool has_machine;
    lks__machine machine;
    lks__room rooms[2]; /* of a host, and of a device with its own memory */
    int n_rooms;
    lks__process process[2];
    struct point points[MOST_POINTS];
    int n;
};

/* --- computing -------------------------------------------------------------------------------- */

/* The data's vocabulary, or the procedure's default if no data were named and they are missing. */
static lks_status find_vocabulary(const lks__settings *s, uint32_t *size_p)
{
    char dir[LKS__SETTING_STR + 8];
    lks__meta meta = {0};
    bool found;
    *size_p = s->vocab_size != 0 ? (uint32_t)s->vocab_size : lks__procedure_of(s)->vocab_size;
    if (s->vocab_size != 0)
        return LKS_OK;
    lks_status st = lks__settings_data_dir(s, dir);
    LKS__THEN(st, lks__procedure_meta(s, dir, false, &found, &meta));
    if (st == LKS_OK)
        *size_p = meta.vocab_size;
    lks__meta_free(&meta);
    return s->from[LKS__SETTING_dataset] == LKS__FROM_ARG ? st : LKS_OK;
}

static lks_status forecast(const struct plan *p, const lks__settings *s, const lks__place *place,
                           const lks__traffic *traffic, lks__forecast *time, bool *timed)
{
    *timed = p->has_machine && (place->n_hosts == 1 || p->machine.has_link);
    return *timed ? lks__forecast_step(s, p->vocab, place, &p->machine, traffic, time) : LKS_OK;
}

/* Forecast a step with n times the micro-batches and virtual ranks. */
static lks_status weak_forecast(const struct plan *p, const lks__place *place, struct point *point)
{
    lks__settings s = p->s;
    lks__traffic traffic;
    LKS__TRY(lks__settings_complete(&s, place->local));
    s.gradient_accumulation_steps *= place->n_hosts;
    s.virtual_ranks *= place->n_hosts;
    if (s.virtual_ranks > MOST_VIRTUAL) /* one per rank, with more micro-batches */
        s.virtual_ranks = lks__place_world(place);
    if (s.virtual_ranks > MOST_VIRTUAL || s.gradient_accumulation_steps % s.virtual_ranks != 0)
        return LKS_OK;
    LKS__TRY(lks__traffic_find(&s, p->vocab, place, &traffic));
    lks_status st = forecast(p, &s, place, &traffic, &point->weak, &point->weak_timed);
    lks__traffic_close(&traffic);
    return st;
}

static lks_status find_point(struct plan *p, int nodes)
{
    struct point *point = &p->points[p->n++];
    const lks__place place = {nodes, (int)p->s.nproc_per_node};
    lks__settings s = p->s;
    *point = (struct point){.nodes = nodes};
    if (lks__settings_complete(&s, lks__place_world(&place)) != LKS_OK)
        snprintf(point->why, sizeof point->why, "%s", lks_last_error());
    else if (s.zero != 0 && nodes == 1)
        snprintf(point->why, sizeof point->why,
                 "zero=1 divides the state over hosts: leave --zero out for one host");
    else
        point->possible = true;
    if (point->possible) {
        LKS__TRY(
            lks__needs_on(&p->device, &s, p->vocab, &place, &p->process[nodes > 1], &point->needs));
        LKS__TRY(lks__traffic_find(&s, p->vocab, &place, &point->traffic));
        if (!lks__needs_has_device(&point->needs))
            point->leaves = (double)lks__leaves_step_bytes((int)s.virtual_ranks);
        LKS__TRY(forecast(p, &s, &place, &point->traffic, &point->time, &point->timed));
    }
    return weak_forecast(p, &place, point);
}

static lks_status find_all(struct plan *p)
{
    const int most = (int)p->s.nnodes;
    for (int i = 0; i < 2; i++)
        LKS__TRY(lks__process_measure(&p->s, &(lks__place){i + 1, (int)p->s.nproc_per_node},
                                      &p->process[i]));
    for (int nodes = 1; nodes < most; nodes *= 2)
        LKS__TRY(find_point(p, nodes));
    return find_point(p, most);
}

/* --- derived figures -------------------------------------------------------------------------- */

static double tokens_a_second(const lks__forecast *f)
{
    return f->tokens / f->at.step;
}

/* The first point with a time: with --zero=1 it has at least two hosts. NULL: none. */
static const struct point *first_timed(const struct plan *p)
{
    for (int i = 0; i < p->n; i++)
        if (p->points[i].timed)
            return &p->points[i];
    return NULL;
}

/* The last point that is possible, or has a time. NULL: none. */
static const struct point *last_of(const struct plan *p, bool timed)
{
    for (int i = p->n - 1; i >= 0; i--)
        if (timed ? p->points[i].timed : p->points[i].possible)
            return &p->points[i];
    return NULL;
}

/* Speed relative to the first timed point's speed for each host. */
static double efficiency(const struct plan *p, const lks__forecast *f, int nodes)
{
    const struct point *first = first_timed(p);
    return first != NULL
               ? tokens_a_second(f) * first->nodes / (tokens_a_second(&first->time) * nodes)
               : 0.0;
}

/* The last point whose further hosts add at least half of their share of the previous point's
 * speed. Returns its hosts; *found_p: a later point adds less. */
static int knee(const struct plan *p, bool *found_p)
{
    const struct point *a = NULL;
    *found_p = false;
    for (int i = 0; i < p->n; i++) {
        const struct point *b = &p->points[i];
        if (!b->timed)
            continue;
        const double gain = a ? tokens_a_second(&b->time) / tokens_a_second(&a->time) - 1 : 0;
        *found_p = a && gain < 0.5 * ((double)b->nodes / a->nodes - 1);
        if (*found_p)
            break;
        a = b;
    }
    return a ? a->nodes : 1;
}

static double checkpoint_seconds(const struct plan *p, const struct point *point)
{
    const lks__needs *n = &point->needs;
    return (n->params + n->moments + n->checkpoint) / p->machine.write_bandwidth.value;
}

/* --- printing --------------------------------------------------------------------------------- */

static void print_times(const struct plan *p, const char *title, bool weak)
{
    printf("\n%s\n%6s %6s %12s %21s %12s %10s %10s\n", title, "hosts", "ranks", "step",
           "from .. to", "tokens/s", "efficiency", "exposed");
    for (int i = 0; i < p->n; i++) {
        const struct point *point = &p->points[i];
        const lks__forecast *f = weak ? &point->weak : &point->time;
        if (!(weak ? point->weak_timed : point->timed))
            continue;
        const bool long_step = f->at.step >= 1000; /* print seconds */
        const double unit = long_step ? 1 : 1e3;
        const int digits = long_step ? 0 : 1;
        printf("%6d %6d %9.*f %s %8.*f .. %8.*f %12.0f %9.0f%% %7.1f ms%s%s%s%s\n", point->nodes,
               point->nodes * (int)p->s.nproc_per_node, digits, f->at.step * unit,
               long_step ? "s " : "ms", digits, f->low * unit, digits, f->high * unit,
               tokens_a_second(f), 100 * efficiency(p, f, point->nodes), f->at.exposed * 1e3,
               f->model || f->ranks || f->network ? "  extrapolated:" : "",
               f->model ? " model" : "", f->ranks ? " ranks" : "", f->network ? " network" : "");
    }
}

static bool fits(const struct plan *p, const lks__needs *n)
{
    return lks__rooms_lack(p->rooms, p->n_rooms, n) == NULL;
}

static void print_points(const struct plan *p)
{
    const bool own = p->n_rooms == 2;
    printf("\nmemory of a rank and of a host; a step's bytes between hosts\n");
    printf("%6s %6s %12s %12s%s %7s %12s %12s %9s %7s\n", "hosts", "ranks", "a rank", "a host",
           own ? "        a GPU" : "", "bytes/p", "sent by one", "2(n-1)/n", "messages", "delays");
    for (int i = 0; i < p->n; i++) {
        const struct point *point = &p->points[i];
        const int ranks = point->nodes * (int)p->s.nproc_per_node;
        if (!point->possible) {
            printf("%6d %6d impossible: %s\n", point->nodes, ranks, point->why);
            continue;
        }
        printf("%6d %6d %12s %12s", point->nodes, ranks, lks__units_memory(point->needs.rank_bytes),
               lks__units_memory(point->needs.host_bytes));
        if (own)
            printf(" %12s", lks__units_memory(point->needs.device.total));
        printf(" %7.1f %12s %12s %9.0f %7d%s\n", lks__needs_per_parameter(&point->needs),
               lks__units_bytes(point->traffic.bytes), lks__units_bytes(point->traffic.ring_bytes),
               point->traffic.messages, point->traffic.delays,
               fits(p, &point->needs) ? "" : "  doesn't fit");
    }
}

static void print_run(const struct plan *p)
{
    const struct point *last = last_of(p, true);
    const double steps = (double)lks__procedure_of(&p->s)->n_steps(&p->s);
    if (last == NULL)
        return;
    bool found;
    const int nodes = knee(p, &found);
    printf(found ? "\nknee: %d host%s; each further host adds less than half of its speed\n"
                 : "\nno knee up to %d host%s: more hosts may still be worth it\n",
           nodes, nodes == 1 ? "" : "s");
    const double hours = steps * last->time.at.step / 3600;
    const int u = hours < 100 ? 0 : hours < 24 * 3652.5 ? 1 : 2;
    const double unit = (const double[]){3600, 86400, 365.25 * 86400}[u];
    const int digits = u == 0 ? 2 : 0;
    printf("%.0f steps on %d host%s: %.*f %s (%.*f to %.*f)\n", steps, last->nodes,
           last->nodes == 1 ? "" : "s", digits, steps * last->time.at.step / unit,
           (const char *[]){"hours", "days", "years"}[u], digits, steps * last->time.low / unit,
           digits, steps * last->time.high / unit);
    if (p->s.mtbf_hours > 0) {
        const double mtbf = p->s.mtbf_hours * 3600 / last->nodes;
        const double every = lks__forecast_checkpoint_every(checkpoint_seconds(p, last), mtbf);
        const double steps_between = fmax(1.0, floor(every / last->time.at.step));
        printf("checkpoint: %.1f s to write; --checkpoint_interval=%.0f loses the least time if a "
               "host fails every %g hours\n",
               checkpoint_seconds(p, last), steps_between, p->s.mtbf_hours);
    }
}

static void print_limits(const struct plan *p)
{
    struct rlimit files;
    const struct point *last = &p->points[p->n - 1];
    /* Gloo's connections to each host: data in both directions, and heartbeats; 64 for the rest */
    const double need = 3.0 * (last->nodes - 1) + 64;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && (double)files.rlim_cur < need)
        printf("open files: the first rank of a host needs about %.0f, the limit is %.0f: raise "
               "`ulimit -n`\n",
               need, (double)files.rlim_cur);
    if (p->n_rooms == 2 && p->s.machine[0] != '\0')
        printf("times aren't planned for --device=%s: a machine file only describes processors\n",
               p->s.device);
    if (p->n_rooms == 1 && p->s.machine[0] == '\0')
        printf("times%s need --machine=FILE: `lockstep bench machine --out=FILE` measures this "
               "machine\n",
               p->s.mtbf_hours > 0 ? " and the checkpoint interval" : "");
    if (p->has_machine && last->nodes > 1 && !p->machine.has_link)
        printf("the time on several hosts is unknown, since the machine file has no link: add "
               "link_bandwidth (bytes/s) and round_trip_s\n");
}

static lks_status print_advice(const struct plan *p)
{
    const struct point *last = &p->points[p->n - 1];
    const lks__needs *needs = &last->needs;
    char text[LKS__ADVICE_TEXT];
    lks__settings s = p->s;
    if (!last->possible || fits(p, needs))
        return LKS_OK;
    LKS__TRY(lks__settings_complete(&s, lks__place_world(&needs->place)));
    for (const lks__room *end = p->rooms + p->n_rooms, *room = p->rooms;
         (room = lks__rooms_lack(room, (int)(end - room), needs)) != NULL; room++) {
        lks__advice_find(room, &s, p->vocab, &needs->place, &p->process[last->nodes > 1], text);
        printf("it doesn't fit: %s of %s per %s%s%s\n",
               lks__units_memory(lks__room_needs(room, needs)), lks__units_memory(room->bytes),
               room->ranks == 0 ? "host" : "GPU", text[0] != '\0' ? "; these fit: " : "", text);
    }
    return LKS_OK;
}

static void print_all(const struct plan *p)
{
    const struct point *last = last_of(p, false);
    const double steps = (double)lks__procedure_of(&p->s)->n_steps(&p->s);
    if (last != NULL)
        lks__needs_print(&last->needs);
    if (last != NULL && last->leaves > 0)
        printf("leaves.bin:        %s on the disk after %.0f steps\n",
               lks__units_bytes(steps * last->leaves), steps);
    print_points(p);
    if (p->has_machine) {
        print_times(p, "strong scaling: the same run on more hosts", false);
        print_times(p,
                    "weak scaling: gradient_accumulation_steps grow with the hosts, which is a "
                    "different run",
                    true);
    }
    print_run(p);
    print_limits(p);
}

/* --- JSON ------------------------------------------------------------------------------------- */

struct number {
    const char *key;
    double value;
};

static void write_numbers(lks__jsonw *w, size_t n, const struct number *numbers)
{
    for (size_t i = 0; i < n; i++)
        lks__jsonw_double(w, numbers[i].key, numbers[i].value);
}

#define NUMBERS(w, ...)                                                                            \
    write_numbers((w), sizeof((const struct number[]){__VA_ARGS__}) / sizeof(struct number),       \
                  (const struct number[]){__VA_ARGS__})

static void write_memory(lks__jsonw *w, const struct plan *p, const lks__needs *n)
{
    const lks__device_needs *d = &n->device;
    lks__jsonw_object(w, "memory");
    NUMBERS(w, {"rank_bytes", n->rank_bytes}, {"host_bytes", n->host_bytes},
            {"parameters", n->params}, {"moments", n->moments}, {"gradients", n->gradients},
            {"untouched", n->untouched}, {"staging", n->staging}, {"activations", n->activations},
            {"process", n->process}, {"libraries", n->libraries}, {"control", n->control},
            {"inter_host", n->inter_host}, {"samples", n->samples}, {"checkpoint", n->checkpoint},
            {"bytes_per_parameter", lks__needs_per_parameter(n)});
    lks__jsonw_bool(w, "fits", fits(p, n));
    if (lks__needs_has_device(n)) {
        lks__jsonw_object(w, "device");
        NUMBERS(w, {"bytes", d->total}, {"parameters", d->params}, {"moments", d->moments},
                {"gradients", d->gradients}, {"activations", d->activations}, {"work", d->work},
                {"buffers", d->buffers}, {"exchange", d->exchange}, {"samples", d->samples},
                {"opened", d->opened});
        lks__jsonw_end(w);
    }
    lks__jsonw_end(w);
}

static void write_network(lks__jsonw *w, const lks__traffic *t)
{
    lks__jsonw_object(w, "network");
    NUMBERS(w, {"bytes_per_step_host", t->bytes}, {"mean_bytes_per_step_host", t->mean_bytes},
            {"ring_bytes", t->ring_bytes}, {"messages", t->messages});
    lks__jsonw_int(w, "delays", t->delays);
    lks__jsonw_double(w, "heartbeat_bytes_per_s", t->heartbeat_rate);
    lks__jsonw_end(w);
}

static void write_time(lks__jsonw *w, const struct plan *p, const char *key, const lks__forecast *f,
                       int nodes)
{
    lks__jsonw_object(w, key);
    NUMBERS(w, {"step_ms", f->at.step * 1e3}, {"low_ms", f->low * 1e3}, {"high_ms", f->high * 1e3},
            {"compute_ms", f->at.compute * 1e3}, {"exposed_ms", f->at.exposed * 1e3},
            {"update_ms", f->at.update * 1e3}, {"tokens_per_s", tokens_a_second(f)},
            {"efficiency", efficiency(p, f, nodes)});
    lks__jsonw_bool(w, "extrapolated", f->model || f->ranks || f->network);
    lks__jsonw_end(w);
}

static lks_status print_json(const struct plan *p)
{
    char *text = malloc(JSON_BYTES);
    size_t len = 0;
    lks__jsonw w;
    LKS__MEMORY(text, "for the plan's text");
    lks__jsonw_open(&w, text, JSON_BYTES);
    lks__jsonw_object(&w, NULL);
    lks__jsonw_int(&w, "lockstep_plan", 1);
    lks__jsonw_int(&w, "ranks_per_host", p->s.nproc_per_node);
    if (first_timed(p) != NULL)
        lks__jsonw_int(&w, "knee", knee(p, &(bool){false}));
    lks__jsonw_array(&w, "points");
    for (int i = 0; i < p->n; i++) {
        const struct point *point = &p->points[i];
        lks__jsonw_object(&w, NULL);
        lks__jsonw_int(&w, "nodes", point->nodes);
        lks__jsonw_int(&w, "ranks", point->nodes * p->s.nproc_per_node);
        if (point->possible) {
            write_memory(&w, p, &point->needs);
            write_network(&w, &point->traffic);
            lks__jsonw_double(&w, "leaves_bytes_per_step", point->leaves);
        } else {
            lks__jsonw_str(&w, "impossible", point->why);
        }
        if (point->timed)
            write_time(&w, p, "time", &point->time, point->nodes);
        if (point->weak_timed)
            write_time(&w, p, "weak_time", &point->weak, point->nodes);
        lks__jsonw_end(&w);
    }
    lks__jsonw_end(&w);
    lks__jsonw_end(&w);
    lks_status st = lks__jsonw_close(&w, &len);
    if (st == LKS_OK)
        fputs(text, stdout);
    free(text);
    return st;
}

/* Choose the batch size as a run on the first number of hosts would. For a GPU elsewhere this
 * host's memory doesn't count. */
static lks_status choose_batch(struct plan *p)
{
    const double host_bytes = p->n_rooms == 2 ? INFINITY : p->rooms[0].bytes;
    lks__settings s = p->s;
    LKS__TRY(lks__settings_complete(&s, (int)s.nproc_per_node));
    LKS__TRY(lks__plan_choose_batch(&s, p->vocab, (int)s.nproc_per_node, host_bytes));
    p->s.batch_size = s.batch_size;
    p->s.gradient_accumulation_steps = s.gradient_accumulation_steps;
    p->s.auto_batch = 0;
    return LKS_OK;
}

static lks_status plan(const lks__settings *s, struct plan *p)
{
    uint64_t limit = 0;
    *p = (struct plan){.s = *s, .has_machine = s->machine[0] != '\0'};
    LKS__TRY(lks__settings_memory(s, &limit));
    if (s->auto_batch != 0 && limit == 0)
        return lks__fail(LKS_ERR_CONFIG, "batch_size=auto is chosen when a run starts: give plan a "
                                         "number, or the size of the memory as --memory");
    LKS__TRY(lks__session_describe(s->device, &p->device));
    LKS__TRY(find_vocabulary(s, &p->vocab));
    double host_bytes = (double)lks__memory_available();
    if (p->has_machine) {
        LKS__TRY(lks__machine_read(s->machine, &p->machine));
        host_bytes = p->machine.memory_bytes;
    }
    p->n_rooms = lks__rooms_find(&p->device, host_bytes, limit, p->rooms);
    if (p->n_rooms == 2)
        p->has_machine = false; /* a machine file describes processors only */
    if (s->auto_batch != 0)
        LKS__TRY(choose_batch(p));
    progress_begin("lockstep plan", "computing");
    const lks_status found = find_all(p);
    progress_end();
    LKS__TRY(found);
    if (s->json)
        return print_json(p);
    print_all(p);
    return print_advice(p);
}

int tool_plan(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("plan", LKS__CMD_PLAN | LKS__CMD_TRAIN, usage, argc, argv, 0, &s, &args,
                       &code))
        return code;
    tool_print_notes("plan", &args);
    struct plan *p = calloc(1, sizeof *p);
    lks_status st = p == NULL ? lks__no_memory("for a plan") : plan(&s, p);
    for (int i = 0; p != NULL && i < p->n; i++)
        lks__traffic_close(&p->points[i].traffic);
    free(p);
    return st == LKS_OK ? TOOL_OK : tool_fail("plan", st);
}
