#include "session/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"

/* Some hundred steps of a small model; 1.5 MiB per rank. */
enum { RING_EVENTS = 1 << 16 };

/* Buckets in flight overlap the rank's other work, so they have separate rows. */
static bool overlaps(const lks__trace_event *e)
{
    return e->span == LKS__SPAN_BUCKET;
}

lks_status lks__trace_file_start(lks__trace_file *f, const char *path)
{
    *f = (lks__trace_file){.path = path};
    return path[0] == '\0' ? LKS_OK : lks__trace_open(RING_EVENTS, &f->recorder);
}

static lks_status open_file(lks__trace_file *f)
{
    LKS__TRY(lks__sys_may_replace(f->path, "[\n{\"ph\":"));
    int fd = lks__sys_open(f->path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    f->made = fd >= 0;
    /* O_NONBLOCK: opening a pipe without a reader must not block; writing may. */
    if (fd < 0 && errno == EEXIST && (fd = lks__sys_open(f->path, O_WRONLY | O_NONBLOCK, 0)) >= 0)
        fcntl(fd, F_SETFL, 0);
    f->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && f->file == NULL)
        lks__sys_close(fd);
    return f->file != NULL ? LKS_OK : lks__sys_fail("can't write the trace", f->path);
}

lks_status lks__trace_file_open(lks__trace_file *f, lks__session *s)
{
    if (f->recorder == NULL)
        return LKS_OK;
    return lks__session_agree(s, s->world.rank == 0 ? open_file(f) : LKS_OK);
}

void lks__trace_file_close(lks__trace_file *f)
{
    if (f->recorder == NULL)
        return;
    if (f->file != NULL) {
        fclose(f->file);
        if (f->made)
            lks__sys_unlink(f->path);
    }
    lks__trace_close(f->recorder);
    *f = (lks__trace_file){.file = NULL};
}

/* --- writing ---------------------------------------------------------------------------------- */

/* A rank's events. */
struct head {
    uint64_t n, dropped;
    double opened, met; /* met: its clock when all ranks were at the same barrier */
};

static void put_rank(FILE *out, int rank, const struct head *h)
{
    fprintf(out,
            "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank "
            "%d\"}},\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":"
            "{\"sort_index\":%d}},\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_labels\","
            "\"args\":{\"labels\":\"%" PRIu64 " events, %" PRIu64 " older ones dropped\"}}",
            rank == 0 ? "[" : ",", rank, rank, rank, rank, rank, h->n, h->dropped);
}

/* Times are in microseconds, as the format requires. Async entries (b, e) form the rows of
 * overlapping spans. */
static void put_event(FILE *out, int rank, double origin, const lks__trace_event *e)
{
    char name[48];
    const char *text = lks__span_name((lks__trace_span)e->span);
    const char *part = lks__trace_part_name(lks__span_part((lks__trace_span)e->span));
    if (e->index >= 0)
        snprintf(name, sizeof name, "%s %" PRId32, text, e->index);
    else
        snprintf(name, sizeof name, "%s", text);
    double ts = (e->start - origin) * 1e6, dur = e->seconds * 1e6;
    if (!overlaps(e)) {
        fprintf(out,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\","
                "\"cat\":\"%s\"}",
                rank, ts, dur, name, part);
        return;
    }
    for (int end = 0; end < 2; end++)
        fprintf(out,
                ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"id\":%" PRId32
                ",\"name\":\"%s\",\"cat\":\"%s\"}",
                end ? "e" : "b", rank, end ? ts + dur : ts, e->index, name, part);
}

static bool names_a_span(const lks__trace_event *e)
{
    return e->span >= 0 && e->span < LKS__N_SPANS;
}

/* Ranks of one host share a clock. Another host's clock has a different origin; the barrier that
 * all ranks passed together gives the difference from rank 0's clock. */
static double shift_of(const lks__session *s, const struct head *heads, int rank)
{
    return s->world.local_world_size == s->world.world_size ? 0.0 : heads[0].met - heads[rank].met;
}

static double origin_of(const lks__session *s, const struct head *heads)
{
    double first = heads[0].opened;
    for (int r = 1; r < s->world.world_size; r++) {
        double opened = heads[r].opened + shift_of(s, heads, r);
        first = opened < first ? opened : first;
    }
    return first;
}

/* Write one rank after the other: this needs the memory of only two rings, for any number of
 * ranks. */
static lks_status write_all(lks__trace_file *f, lks__session *s, const struct head *heads,
                            lks__trace_event *events)
{
    double origin = origin_of(s, heads);
    for (int r = 0; r < s->world.world_size; r++) {
        size_t n;
        if (r == s->world.rank)
            lks__trace_events(f->recorder, events, &n);
        LKS__TRY(lks_comm_broadcast(s->comm, events, heads[r].n * sizeof *events, LKS_UINT8, r));
        if (s->world.rank != 0)
            continue;
        put_rank(f->file, r, &heads[r]);
        for (uint64_t i = 0; i < heads[r].n; i++)
            if (names_a_span(&events[i]))
                put_event(f->file, r, origin - shift_of(s, heads, r), &events[i]);
    }
    return LKS_OK;
}

/* Until now the file has its old contents; only a regular file can be truncated. */
static lks_status finish_file(lks__trace_file *f)
{
    fputs("\n]\n", f->file);
    bool failed = ferror(f->file) != 0;
    errno = EIO;
    failed |= fclose(f->file) != 0; /* tries once more to write, so errno is the reason */
    f->file = NULL;
    const int err = errno;
    if (failed && f->made)
        lks__sys_unlink(f->path);
    errno = err;
    return failed ? lks__sys_fail("can't write the trace", f->path) : LKS_OK;
}

lks_status lks__trace_file_write(lks__trace_file *f, lks__session *s, uint64_t *dropped_p)
{
    *dropped_p = 0;
    if (f->recorder == NULL)
        return LKS_OK;
    size_t W = (size_t)s->world.world_size, n;
    struct head mine = {.dropped = lks__trace_events(f->recorder, NULL, &n),
                        .opened = lks__trace_opened(f->recorder)};
    lks__trace_current = NULL; /* gathering is not part of the run's trace */
    mine.n = n;
    struct head *heads = calloc(W, sizeof *heads);
    lks__trace_event *events = calloc(RING_EVENTS, sizeof *events);
    lks_status st = LKS_OK;
    if (heads == NULL || events == NULL)
        st = lks__no_memory("to gather the trace");
    else if (f->file != NULL && lks__sys_truncate(fileno(f->file), 0) != 0 && errno != EINVAL)
        st = lks__sys_fail("can't write the trace", f->path);
    st = lks__session_agree(s, st);
    LKS__THEN(st, lks_comm_barrier(s->comm));
    mine.met = lks__sys_now();
    LKS__THEN(st, lks_comm_all_gather(s->comm, &mine, heads, sizeof mine, LKS_UINT8));
    for (size_t r = 0; r < W && st == LKS_OK; r++) {
        if (heads[r].n > RING_EVENTS)
            st =
                lks__fail(LKS_ERR_PEER, "rank %zu reports %" PRIu64 " trace events", r, heads[r].n);
        *dropped_p += heads[r].dropped;
    }
    LKS__THEN(st, write_all(f, s, heads, events));
    LKS__THEN(st, lks__session_agree(s, s->world.rank == 0 ? finish_file(f) : LKS_OK));
    free(heads);
    free(events);
    return st;
}
