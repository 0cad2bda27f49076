/* The status table of all ranks, which is printed if a rank makes no progress. */
#include <stdio.h>
#include <string.h>

#include "base/system/sys.h"
#include "comm/shm/shm.h"

enum { LINE = 192, MAX_NAMED = 6 };

bool lks__shm_is_stopped(pid_t pid)
{
    char state = pid > 0 ? lks__sys_process_state(pid) : 0;
    return state == 'T' || state == 't';
}

/* The state of a rank's process, in one word. */
static const char *state_word(const lks__rank_status *s)
{
    if (s->state == LKS__RANK_ABSENT)
        return "absent";
    switch (lks__sys_process_state(s->pid)) {
    case 0:
    case 'Z':
    case 'X':
        return "dead";
    case 'T':
    case 't':
        return "stopped";
    case 'D':
        return "disk wait";
    default:
        return s->state == LKS__RANK_LEFT ? "left" : s->waiting ? "waiting" : "running";
    }
}

bool lks__shm_is_behind(const struct lks__shm *g, int rank, unsigned what, uint32_t seq)
{
    struct lks__rank_line *line = lks__segment_line(g->segment, rank);
    if (what == LKS__WAIT_DEVICES)
        return atomic_load(&line->waiting) == LKS__WAIT_NONE;
    if (what == LKS__WAIT_BETWEEN && rank != 0)
        return false; /* the leader counts for all ranks */
    uint32_t done = atomic_load(what == LKS__WAIT_BETWEEN  ? &line->between
                                : what == LKS__WAIT_FINISH ? &line->finished
                                                           : &line->posted);
    return (int32_t)(done - (seq + 1)) < 0;
}

/* The ranks that a rank waits for: "1, 3". They include ranks that were stopped or died during a
 * wait. */
static void waits_for(const struct lks__shm *g, int rank, char *text, size_t bytes)
{
    struct lks__rank_line *line = lks__segment_line(g->segment, rank);
    unsigned what = atomic_load(&line->waiting);
    uint32_t seq = atomic_load(&line->wait_seq);
    int named = 0;
    if (what == LKS__WAIT_BETWEEN) { /* other hosts: their tables name the rank */
        const int late = g->late_elsewhere;
        if (late >= 0)
            snprintf(text, bytes, "%d", late);
        else
            snprintf(text, bytes, "other hosts");
        return;
    }
    /* "-": all have arrived meanwhile */
    snprintf(text, bytes, "%s", what == LKS__WAIT_DEVICES ? "other GPUs" : "-");
    for (int r = 0; r < g->world_size && what != LKS__WAIT_NONE; r++) {
        if (r == rank || !lks__shm_is_behind(g, r, what, seq))
            continue;
        if (named == MAX_NAMED) {
            lks__append(text, bytes, ", ", "...");
            break;
        }
        if (named++ == 0)
            text[0] = '\0';
        lks__append(text, bytes, ", ", "%d", g->comm->first_rank + r);
    }
}

/* "57 reduction": the operation that a rank waits in, or the last one that it arrived at. */
static void operation(const struct lks__shm *g, int rank, const lks__rank_status *s, char *text,
                      size_t bytes)
{
    struct lks__rank_line *line = lks__segment_line(g->segment, rank);
    uint32_t seq = s->waiting ? atomic_load(&line->wait_seq) : s->posted - 1;
    if (s->among_devices)
        snprintf(text, bytes, "exchange between GPUs");
    else if (s->posted == 0)
        snprintf(text, bytes, "-");
    else
        snprintf(text, bytes, "%s%u %s", s->waiting ? "" : "after ", seq,
                 lks__shm_call_name(lks__segment_descriptor(g->segment, rank, seq)));
}

static size_t row(const struct lks__shm *g, int rank, char text[LINE])
{
    lks__rank_status s;
    lks__segment_status(g->segment, rank, &s);
    char step[24] = "-", op[48], age[24] = "-", waits[64] = "-";
    bool there = s.state != LKS__RANK_ABSENT;
    if (s.phase[0] != '\0')
        snprintf(step, sizeof step, "%llu", (unsigned long long)s.step);
    if (there)
        snprintf(age, sizeof age, "%.1f s", s.beat_age_s);
    operation(g, rank, &s, op, sizeof op);
    if (strcmp(state_word(&s), "waiting") == 0)
        waits_for(g, rank, waits, sizeof waits);
    int n = snprintf(text, LINE, "%5d  %8d  %-9s  %8s  %-20s  %-24s  %9s  %s\n",
                     g->comm->first_rank + rank, there ? (int)s.pid : 0, state_word(&s), step,
                     s.phase[0] != '\0' ? s.phase : "-", op, age, waits);
    return (size_t)(n < LINE ? n : LINE - 1);
}

/* Waiting ranks are alike and can be many, so print them last: the text may not have room for
 * all. */
void lks__shm_table(const struct lks__shm *g, char *text, size_t bytes)
{
    char line[LINE];
    int left_out = 0;
    bool all = (size_t)(g->world_size + 2) * LINE <= bytes;
    size_t used =
        (size_t)snprintf(text, bytes, "%5s  %8s  %-9s  %8s  %-20s  %-24s  %9s  %s\n", "rank", "pid",
                         "state", "step", "phase", "collective", "last beat", "waits for rank");
    for (int pass = 0; pass < (all ? 1 : 2); pass++)
        for (int r = 0; r < g->world_size; r++) {
            unsigned waiting = atomic_load(&lks__segment_line(g->segment, r)->waiting);
            if (!all && (waiting != LKS__WAIT_NONE) != (pass == 1))
                continue;
            size_t n = row(g, r, line);
            if (used + n + LINE > bytes) {
                left_out++;
                continue;
            }
            memcpy(text + used, line, n + 1);
            used += n;
        }
    if (left_out > 0)
        snprintf(text + used, bytes - used, "  ... and %d more\n", left_out);
}

void lks__segment_table(const lks__segment *segment, int world_size, int first_rank, char *text,
                        size_t bytes)
{
    lks_comm comm = {.first_rank = first_rank};
    const struct lks__shm g = {.comm = &comm,
                               .segment = (lks__segment *)(uintptr_t)segment,
                               .world_size = world_size,
                               .late_elsewhere = -1};
    lks__shm_table(&g, text, bytes);
}
