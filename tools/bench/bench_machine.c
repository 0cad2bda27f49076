/* lockstep bench machine: measures what `lockstep plan` needs, and writes it to a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../progress.h"
#include "base/system/memory.h"
#include "base/system/sys.h"
#include "base/trace.h"
#include "bench.h"
#include "plan/time/forecast.h"

enum {
    TURNS = 15, /* at most; of a long step fewer are measured */
    MIN_TURNS = 3,
    STEPS_SECONDS = 60,
    ADD_FLOATS = 4 << 20,
    WRITE_BYTES = 32 << 20,
    REDUCE_FLOATS = 2 << 20,
    /* The last micro-batch of a step also sends gradients. That takes time from a host without
     * spare cores, and the plan counts it separately. More micro-batches make it count less. */
    MICRO_BATCHES = 4,
    TRACE_EVENTS = 1 << 16,
};

/* Median, 10th and 90th percentile. Sorts `values`. */
static lks__figure figure_of(double *values, int n)
{
    const double median = bench_median(values, n); /* sorts them */
    return (lks__figure){median, values[n / 10], values[n - 1 - n / 10]};
}

static lks__figure scaled(lks__figure f, double by)
{
    return (lks__figure){f.value * by, f.low * by, f.high * by};
}

/* Rates at which `work` was done in each of `seconds`. */
static lks__figure rate_of(double *seconds, int n, double work)
{
    for (int i = 0; i < n; i++)
        seconds[i] = work / (seconds[i] > 0 ? seconds[i] : 1e-9);
    return figure_of(seconds, n);
}

static lks_status measure_peak(lks__trainer *t, lks__figure *figure)
{
    double values[TURNS];
    for (int i = 0; i < TURNS; i++)
        LKS__TRY(lks__session_peak(&t->ses, t->ses.threads, 5, &values[i]));
    *figure = figure_of(values, TURNS);
    return LKS_OK;
}

/* Bytes per second of additions while all ranks add: two arrays are read, and one is written. */
static lks_status measure_add(lks__trainer *t, lks__machine *m)
{
    double seconds[TURNS];
    float *y = calloc(2 * (size_t)ADD_FLOATS, sizeof *y);
    LKS__MEMORY(y, "to measure additions");
    memset(y, 1, 2 * (size_t)ADD_FLOATS * sizeof *y); /* touch its pages before the first turn */
    lks_status st = lks_comm_barrier(t->ses.comm);
    for (int i = 0; i < TURNS; i++) {
        const double began = lks__sys_now();
        lks__layers_cpu.accumulate(&t->ses.ex, y, y + ADD_FLOATS, ADD_FLOATS);
        seconds[i] = lks__sys_now() - began;
    }
    free(y);
    m->add_bandwidth = rate_of(seconds, TURNS, (double)ADD_FLOATS * sizeof *y);
    m->memory_bandwidth = scaled(m->add_bandwidth, 3.0 * m->ranks);
    return st;
}

/* One host: bytes per second that its ranks add in shared memory. Several: bytes that a host sends
 * per CPU second of its first rank. */
static lks_status measure_reduce(lks__trainer *t, lks__machine *m)
{
    double seconds[TURNS], cpu_seconds[TURNS];
    const double bytes = (double)REDUCE_FLOATS * sizeof(float);
    const int n_hosts = t->ses.world.world_size / t->ses.world.local_world_size;
    if (t->ses.world.world_size == 1)
        return LKS_OK;
    LKS__TRY(bench_reduce_times(t->ses.comm, REDUCE_FLOATS, TURNS, seconds, cpu_seconds));
    if (n_hosts == 1)
        m->reduce_bandwidth = rate_of(seconds, TURNS, bytes);
    else
        m->engine_bandwidth = rate_of(cpu_seconds, TURNS, 2 * bytes * (n_hosts - 1) / n_hosts);
    return LKS_OK;
}

static lks_status write_once(const char *path, const char *bytes)
{
    int fd = lks__sys_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return lks__sys_fail("can't write", path);
    const bool written = lks__sys_write_all(fd, bytes, WRITE_BYTES) == 0 && lks__sys_fsync(fd) == 0;
    const int error = errno;
    lks__sys_close(fd);
    errno = error;
    return written ? LKS_OK : lks__sys_fail("can't write", path);
}

/* Measure writing in the folder of the file `out`. */
static lks_status measure_write(const char *out, lks__figure *figure)
{
    enum { TIMES = 3 };
    double seconds[TIMES];
    char path[LKS__SETTING_STR + 8];
    char *bytes = calloc(1, WRITE_BYTES);
    lks_status st = bytes == NULL ? lks__no_memory("to measure a disk") : LKS_OK;
    snprintf(path, sizeof path, "%s.disk", out);
    for (int i = 0; i < TIMES && st == LKS_OK; i++) {
        const double began = lks__sys_now();
        st = write_once(path, bytes);
        seconds[i] = lks__sys_now() - began;
    }
    lks__sys_unlink(path);
    free(bytes);
    if (st == LKS_OK)
        *figure = rate_of(seconds, TIMES, WRITE_BYTES);
    return st;
}

/* Seconds of layers in forward and backward since `began`. */
static lks_status layers_since(double began, double *forward, double *backward)
{
    size_t n;
    lks__trace_events(lks__trace_current, NULL, &n);
    lks__trace_event *events = malloc((n + 1) * sizeof *events);
    LKS__MEMORY(events, "for a trace of %zu events", n);
    lks__trace_events(lks__trace_current, events, &n);
    *forward = *backward = 0;
    for (size_t i = 0; i < n; i++) {
        const lks__trace_event *e = &events[i];
        if (e->start < began)
            continue;
        if (e->span == LKS__SPAN_FORWARD_LAYER || e->span == LKS__SPAN_AGAIN_LAYER)
            *forward += e->seconds;
        if (e->span == LKS__SPAN_BACKWARD_LAYER)
            *backward += e->seconds;
    }
    free(events);
    return LKS_OK;
}

/* Rank 0's first step, which took `seconds`, decides how many follow: `warm_up` and `turns`. */
static lks_status choose_turns(lks__trainer *t, double seconds, int *warm_up, int *turns)
{
    const double fit = STEPS_SECONDS / seconds;
    int chosen[2] = {fit < TURNS ? 1 : 3, fit < MIN_TURNS ? MIN_TURNS
                                          : fit < TURNS   ? (int)fit
                                                          : TURNS};
    LKS__TRY(lks_comm_broadcast(t->ses.comm, chosen, 2, LKS_INT32, 0));
    *warm_up = chosen[0];
    *turns = chosen[1];
    return LKS_OK;
}

static lks_status measure_steps(lks__trainer *t, lks__machine *m)
{
    int warm_up = 1, turns = MIN_TURNS;
    double parts[TURNS][LKS__N_PARTS], one[TURNS], forward[TURNS], backward[TURNS];
    lks__step_result result;
    for (int i = 0; i < warm_up + turns; i++) {
        const int at = i < warm_up ? 0 : i - warm_up;
        progress_text("step %d of %d", i + 1, warm_up + turns);
        const double began = lks__sys_now();
        LKS__TRY(lks__train_step(t, &result));
        lks__trace_take_parts(lks__trace_current, parts[at]);
        LKS__TRY(layers_since(began, &forward[at], &backward[at]));
        if (i == 0)
            LKS__TRY(choose_turns(t, lks__sys_now() - began, &warm_up, &turns));
    }
    const double n_layers = (double)MICRO_BATCHES * m->layers;
    m->layer_forward_s = scaled(figure_of(forward, turns), 1 / n_layers);
    m->layer_backward_s = scaled(figure_of(backward, turns), 1 / n_layers);
    static const struct {
        lks__trace_part part;
        size_t at;
    } rows[] = {{LKS__PART_FORWARD, offsetof(lks__machine, forward_s)},
                {LKS__PART_HEAD, offsetof(lks__machine, head_s)},
                {LKS__PART_BACKWARD, offsetof(lks__machine, backward_s)}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (int i = 0; i < turns; i++)
            one[i] = parts[i][rows[r].part] / MICRO_BATCHES;
        *(lks__figure *)(void *)((char *)m + rows[r].at) = figure_of(one, turns);
    }
    /* Between hosts the rest of a step is the exchange of losses, which the plan counts separately.
     */
    const bool alone = t->ses.world.world_size == t->ses.world.local_world_size;
    for (int i = 0; i < turns; i++)
        one[i] = parts[i][LKS__PART_DATA] + (alone ? parts[i][LKS__PART_OTHER] : 0);
    m->other_s = figure_of(one, turns);
    for (int i = 0; i < turns; i++)
        one[i] = parts[i][LKS__PART_UPDATE];
    const int sharers = t->run.shared ? t->ses.world.local_world_size : 1;
    m->update_rate = rate_of(one, turns, (double)t->run.table.trained_params / sharers);
    return LKS_OK;
}

/* Measure between the first ranks of the first two hosts. */
static lks_status measure_link(lks__trainer *t, lks__machine *m)
{
    enum { TIMES = 3 };
    double rates[TIMES], rounds[TIMES], windows[TIMES], bursts[TIMES];
    const lks_world *w = &t->ses.world;
    m->has_link = w->world_size > w->local_world_size;
    for (int i = 0; i < TIMES && m->has_link; i++) {
        struct bench_link link = {0};
        LKS__TRY(bench_link(t->ses.comm, w->local_world_size, false, &link));
        m->has_link = link.rate > 0;
        rates[i] = link.rate;
        rounds[i] = link.round_s;
        windows[i] = link.window;
        bursts[i] = link.burst;
    }
    if (w->world_size > w->local_world_size && !m->has_link && w->rank == 0)
        fputs("lockstep bench machine: the link isn't measured, as the second host can't reach a "
              "free port of the first\n",
              stderr);
    if (m->has_link) {
        m->link_bandwidth = figure_of(rates, TIMES);
        m->round_trip_s = figure_of(rounds, TIMES);
        m->link_window = figure_of(windows, TIMES);
        m->link_burst = figure_of(bursts, TIMES);
    }
    return LKS_OK;
}

static lks_status measure(lks__trainer *t, const char *out, lks__machine *m)
{
    const double tokens = (double)(t->run.s.batch_size * t->run.s.block_size);
    *m = (lks__machine){
        .cores = lks__cpu_count(),
        .ranks = t->ses.world.local_world_size,
        .threads = t->ses.threads,
        .layers = (int)t->run.s.n_layer,
        .memory_bytes = (double)lks__memory_available(),
        .micro_batch_flops =
            lks__model_flops_per_token(&t->run.model_config, &t->run.table) * tokens,
        .micro_batch_tokens = tokens,
    };
    double layer;
    LKS__TRY(lks__forecast_layer_flops(&t->run.model_config, &layer));
    m->layer_flops = (lks__figure){layer * tokens, layer * tokens, layer * tokens};
    LKS__TRY(lks__session_same(&t->ses, "the number of cores", (uint64_t)m->cores));
    LKS__TRY(measure_steps(t, m));
    progress_text("the peak, additions and the disk");
    LKS__TRY(measure_peak(t, &m->peak_flops));
    LKS__TRY(measure_add(t, m));
    LKS__TRY(measure_reduce(t, m));
    LKS__TRY(measure_link(t, m));
    return lks__session_agree(
        &t->ses, t->ses.world.rank == 0 ? measure_write(out, &m->write_bandwidth) : LKS_OK);
}

static lks_status report(const lks__machine *m, const char *out)
{
    char text[LKS__MACHINE_TEXT];
    LKS__TRY(lks__machine_write(m, text));
    LKS__TRY(lks__sys_write_file(out, text, strlen(text)));
    printf("%s: a micro-batch takes %.1f ms forward and backward on each of %d rank%s%s\n",
           lks__shown(out, LKS__SETTING_STR),
           (m->forward_s.value + m->head_s.value + m->backward_s.value) * 1e3, m->ranks,
           m->ranks == 1 ? "" : "s", m->has_link ? "; with the link between hosts" : "");
    return LKS_OK;
}

lks_status bench_machine(lks__settings *s)
{
    lks__trainer t;
    lks__machine m;
    if (s->out[0] == '\0')
        return lks__fail(LKS_ERR_CONFIG,
                         "give a file to write: `lockstep bench machine --out=FILE`");
    LKS__TRY(bench_print_model(s));
    LKS__TRY(bench_open_trainer(s, MICRO_BATCHES, &t));
    lks__trace *parts = NULL;
    lks_status st = lks__trace_current == NULL ? lks__trace_open(TRACE_EVENTS, &parts) : LKS_OK;
    LKS__THEN(st, measure(&t, s->out, &m));
    progress_end();
    if (st == LKS_OK && t.ses.world.rank == 0)
        st = report(&m, s->out);
    lks__trace_close(parts);
    lks__session_fail(&t.ses, st);
    lks__trainer_close(&t);
    return st;
}
