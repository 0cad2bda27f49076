#include "launch/output/writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"

struct record {
    int sink;
    unsigned n;
};

struct sink {
    int fd, err;
    size_t lost, lost_lines; /* counts of the output that was lost when its write failed */
};

struct lks__writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    int event;
    size_t capacity, chunk;
    char *ring; /* [capacity] records, each followed by its bytes */
    size_t first, used;
    struct sink *sinks;
    int n_sinks, sink_out;
    char *out; /* [capacity] the output that is being written, for one sink */
    size_t n_out, done;
    double progress;
    bool refused, quit;
    bool in_write;  /* the thread is in write(), without the lock */
    bool abandoned; /* only the thread still uses this structure */
};

/* --- the ring ----------------------------------------------------------------------------- */

static void put(lks__writer *w, const void *data, size_t n)
{
    size_t at = (w->first + w->used) % w->capacity, part = w->capacity - at;
    if (n == 0)
        return;
    if (part > n)
        part = n;
    memcpy(w->ring + at, data, part);
    memcpy(w->ring, (const char *)data + part, n - part);
    w->used += n;
}

static void peek(const lks__writer *w, size_t offset, void *data, size_t n)
{
    size_t at = (w->first + offset) % w->capacity, part = w->capacity - at;
    if (part > n)
        part = n;
    memcpy(data, w->ring + at, part);
    memcpy((char *)data + part, w->ring, n - part);
}

static void skip(lks__writer *w, size_t n)
{
    w->first = (w->first + n) % w->capacity;
    w->used -= n;
}

/* Take records of one sink, as many as fit into one write. */
static int take_some(lks__writer *w)
{
    struct record r;
    int sink = -1;
    w->n_out = w->done = 0;
    while (w->used > 0) {
        peek(w, 0, &r, sizeof r);
        if (sink >= 0 && (r.sink != sink || w->n_out + r.n > w->chunk))
            break;
        sink = r.sink;
        peek(w, sizeof r, w->out + w->n_out, r.n);
        w->n_out += r.n;
        skip(w, sizeof r + r.n);
    }
    return sink;
}

/* --- the thread --------------------------------------------------------------------------- */

static void notify(const lks__writer *w)
{
    uint64_t one = 1;
    (void)!write(w->event, &one, sizeof one);
}

static size_t ends_of_lines(const char *text, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines;
}

/* Call it with the lock, which is released during the write itself. */
static void write_out(lks__writer *w, int sink)
{
    while (w->done < w->n_out && w->sinks[sink].err == 0 && !w->abandoned) {
        int fd = w->sinks[sink].fd;
        w->in_write = true;
        pthread_mutex_unlock(&w->lock);
        ssize_t n = write(fd, w->out + w->done, w->n_out - w->done);
        int err = n < 0 ? errno : 0;
        if (err == EAGAIN) { /* another process has made it non-blocking */
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            poll(&p, 1, 100);
        }
        pthread_mutex_lock(&w->lock);
        w->in_write = false;
        if (n >= 0) {
            w->done += (size_t)n;
            w->progress = lks__sys_now();
        } else if (err != EINTR && err != EAGAIN) {
            w->sinks[sink].err = err;
            notify(w);
        }
    }
    struct sink *s = &w->sinks[sink];
    s->lost += w->n_out - w->done;
    s->lost_lines += ends_of_lines(w->out + w->done, w->n_out - w->done);
    w->n_out = w->done = 0;
}

static void release(lks__writer *w)
{
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->work);
    free(w->ring);
    free(w->out);
    free(w->sinks);
    free(w);
}

static void *writer_main(void *arg)
{
    lks__writer *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        if (w->used == 0) {
            pthread_cond_wait(&w->work, &w->lock);
            continue;
        }
        w->sink_out = take_some(w);
        write_out(w, w->sink_out);
        if (!w->quit && (w->used == 0 || (w->refused && w->used < w->capacity / 2))) {
            w->refused = false;
            notify(w);
        }
    }
    bool abandoned = w->abandoned;
    pthread_mutex_unlock(&w->lock);
    if (abandoned)
        release(w);
    return NULL;
}

/* --- the caller's side -------------------------------------------------------------------- */

lks_status lks__writer_open(size_t capacity, size_t chunk, int event, lks__writer **writer_p)
{
    lks__writer *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->ring = malloc(capacity);
        w->out = malloc(capacity);
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->work, NULL);
    }
    if (w == NULL || w->ring == NULL || w->out == NULL) {
        if (w != NULL)
            release(w);
        return lks__no_memory("for the ranks' output");
    }
    w->capacity = capacity;
    w->chunk = chunk;
    w->event = event;
    int err = lks__thread_start(&w->thread, writer_main, w);
    if (err != 0) {
        release(w);
        return lks__fail(LKS_ERR_NOMEM, "can't start a thread for the ranks' output: %s",
                         lks__sys_start_reason(err));
    }
    *writer_p = w;
    return LKS_OK;
}

int lks__writer_sink(lks__writer *w, int fd)
{
    pthread_mutex_lock(&w->lock);
    struct sink *more = realloc(w->sinks, ((size_t)w->n_sinks + 1) * sizeof *more);
    int sink = more == NULL ? -1 : w->n_sinks++;
    if (more != NULL) {
        more[sink] = (struct sink){.fd = fd};
        w->sinks = more;
    }
    pthread_mutex_unlock(&w->lock);
    return sink;
}

bool lks__writer_add(lks__writer *w, int sink, const char *head, size_t n_head, const char *text,
                     size_t n, size_t spare)
{
    struct record r = {.sink = sink, .n = (unsigned)(n_head + n)};
    pthread_mutex_lock(&w->lock);
    bool fits = w->used + sizeof r + r.n + spare <= w->capacity;
    if (fits) {
        if (w->used == 0) {
            if (w->n_out == 0)
                w->progress = lks__sys_now();
            pthread_cond_broadcast(&w->work);
        }
        put(w, &r, sizeof r);
        put(w, head, n_head);
        put(w, text, n);
    } else {
        w->refused = true;
    }
    pthread_mutex_unlock(&w->lock);
    return fits;
}

bool lks__writer_has_room(lks__writer *w, size_t n)
{
    pthread_mutex_lock(&w->lock);
    bool fits = w->used + sizeof(struct record) + n <= w->capacity;
    w->refused |= !fits;
    pthread_mutex_unlock(&w->lock);
    return fits;
}

int lks__writer_error(lks__writer *w, int sink)
{
    pthread_mutex_lock(&w->lock);
    int err = w->sinks[sink].err;
    pthread_mutex_unlock(&w->lock);
    return err;
}

double lks__writer_waits_s(lks__writer *w)
{
    pthread_mutex_lock(&w->lock);
    bool idle = w->used == 0 && w->n_out == 0;
    double waits_s = idle ? -1 : lks__sys_now() - w->progress;
    pthread_mutex_unlock(&w->lock);
    return waits_s;
}

void lks__writer_left(lks__writer *w, int sink, size_t *bytes_p, size_t *lines_p)
{
    pthread_mutex_lock(&w->lock);
    *bytes_p = w->sinks[sink].lost;
    *lines_p = w->sinks[sink].lost_lines;
    if (w->n_out > 0 && w->sink_out == sink) {
        *bytes_p += w->n_out - w->done;
        *lines_p += ends_of_lines(w->out + w->done, w->n_out - w->done);
    }
    for (size_t at = 0; at < w->used;) {
        struct record r;
        peek(w, at, &r, sizeof r);
        at += sizeof r;
        *bytes_p += r.sink == sink ? r.n : 0;
        for (size_t i = 0; i < r.n && r.sink == sink; i++)
            *lines_p += w->ring[(w->first + at + i) % w->capacity] == '\n';
        at += r.n;
    }
    pthread_mutex_unlock(&w->lock);
}

bool lks__writer_close(lks__writer *w)
{
    if (w == NULL)
        return true;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    w->abandoned = w->in_write;
    pthread_cond_broadcast(&w->work);
    bool abandoned = w->abandoned;
    pthread_t thread = w->thread;
    pthread_mutex_unlock(&w->lock);
    if (abandoned) {
        pthread_detach(thread);
        return false;
    }
    pthread_join(thread, NULL);
    release(w);
    return true;
}
