#include "base/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"

enum { MAX_DEPTH = 16 };

struct open_span {
    lks__trace_span span;
    int32_t index;
    double start, inside; /* inside: seconds of the spans inside it */
};

struct lks__trace {
    struct open_span stack[MAX_DEPTH];
    int depth; /* may exceed MAX_DEPTH: deeper spans count for the deepest kept */
    double parts[LKS__N_PARTS];
    double opened;
    uint64_t n_seen;
    size_t n_events;
    lks__trace_event events[];
};

_Thread_local lks__trace *lks__trace_current;

static const char *const part_names[] = {
#define X(name, text) text,
    LKS__PART_MAP(X)
#undef X
};

static const struct {
    const char *name;
    lks__trace_part part;
} spans[] = {
#define X(name, text, part) {text, LKS__PART_##part},
    LKS__SPAN_MAP(X)
#undef X
};

const char *lks__trace_part_name(lks__trace_part part)
{
    return part_names[part];
}

const char *lks__span_name(lks__trace_span span)
{
    return spans[span].name;
}

lks__trace_part lks__span_part(lks__trace_span span)
{
    return spans[span].part;
}

lks_status lks__trace_open(size_t n_events, lks__trace **trace_p)
{
    lks__trace *t = calloc(1, sizeof *t + n_events * sizeof t->events[0]);
    LKS__MEMORY(t, "for a trace of %zu events", n_events);
    t->n_events = n_events;
    t->opened = lks__sys_now();
    lks__trace_current = *trace_p = t;
    return LKS_OK;
}

void lks__trace_close(lks__trace *trace)
{
    if (trace != NULL && lks__trace_current == trace)
        lks__trace_current = NULL;
    free(trace);
}

void lks__trace_take_parts(lks__trace *trace, double seconds[LKS__N_PARTS])
{
    memcpy(seconds, trace->parts, sizeof trace->parts);
    memset(trace->parts, 0, sizeof trace->parts);
}

double lks__trace_opened(const lks__trace *trace)
{
    return trace->opened;
}

uint64_t lks__trace_events(const lks__trace *trace, lks__trace_event *out, size_t *n_p)
{
    uint64_t kept = trace->n_seen < trace->n_events ? trace->n_seen : trace->n_events;
    uint64_t dropped = trace->n_seen - kept;
    for (size_t i = 0; i < kept && out != NULL; i++)
        out[i] = trace->events[(dropped + i) % trace->n_events];
    *n_p = (size_t)kept;
    return dropped;
}

static void keep(lks__trace *t, lks__trace_span span, int64_t index, double start, double seconds)
{
    if (t->n_events > 0)
        t->events[t->n_seen++ % t->n_events] =
            (lks__trace_event){start, seconds, (int32_t)span, (int32_t)index};
}

void lks__trace_begin(lks__trace_span span, int64_t index)
{
    lks__trace *t = lks__trace_current;
    if (t != NULL && t->depth++ < MAX_DEPTH)
        t->stack[t->depth - 1] = (struct open_span){span, (int32_t)index, lks__sys_now(), 0.0};
}

void lks__trace_end(void)
{
    lks__trace *t = lks__trace_current;
    if (t == NULL || t->depth == 0 || t->depth-- > MAX_DEPTH)
        return;
    const struct open_span *s = &t->stack[t->depth];
    double seconds = lks__sys_now() - s->start;
    t->parts[spans[s->span].part] += seconds - s->inside;
    if (t->depth > 0)
        t->stack[t->depth - 1].inside += seconds;
    keep(t, s->span, s->index, s->start, seconds);
}

void lks__trace_past(lks__trace_span span, int64_t index, double start)
{
    if (lks__trace_current != NULL)
        keep(lks__trace_current, span, index, start, lks__sys_now() - start);
}
