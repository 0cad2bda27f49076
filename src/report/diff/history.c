#include "report/diff/history.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"

enum { CHUNK = 1 << 20 }; /* a run's lines are shorter than 64 KiB */

static lks_status open_file(lks__history *h, const char *run)
{
    struct stat info;
    char shown[512];
    h->fd = lks__sys_open(h->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (h->fd < 0 && errno == ENOENT)
        return lks__fail(LKS_ERR_CONFIG, "%s is not a run's folder: it contains no metrics.jsonl",
                         lks__escape(shown, sizeof shown, run, strlen(run)));
    if (h->fd < 0 || fstat(h->fd, &info) != 0)
        return lks__sys_fail("can't read", h->path);
    if (!S_ISREG(info.st_mode))
        return lks__fail(LKS_ERR_IO, "%s is not a regular file",
                         lks__escape(shown, sizeof shown, h->path, strlen(h->path)));
    h->bytes = (uint64_t)info.st_size;
    h->chunk = malloc(CHUNK);
    h->changed = json_object();
    if (h->chunk == NULL || h->changed == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to read a run's metrics");
    return LKS_OK;
}

lks_status lks__history_open(const char *run, lks__history *h)
{
    *h = (lks__history){.fd = -1};
    snprintf(h->path, sizeof h->path, "%s/metrics.jsonl", run);
    const lks_status st = open_file(h, run);
    if (st != LKS_OK)
        lks__history_close(h);
    return st;
}

void lks__history_close(lks__history *h)
{
    if (h->path[0] == '\0')
        return;
    if (h->fd >= 0)
        lks__sys_close(h->fd);
    free(h->chunk);
    json_decref(h->settings);
    json_decref(h->host);
    json_decref(h->changed);
    json_decref(h->line);
    *h = (lks__history){.fd = -1};
}

static lks_status bad_line(const lks__history *h, const char *what)
{
    char shown[512];
    return lks__fail(
        LKS_ERR_FORMAT, "%s: the line at offset %" PRIu64 " %s, so no run has written it",
        lks__escape(shown, sizeof shown, h->path, strlen(h->path)), h->offset + h->at, what);
}

/* Move the rest of the chunk to its beginning, and fill it. */
static lks_status fill(lks__history *h)
{
    memmove(h->chunk, h->chunk + h->at, h->have - h->at);
    h->offset += h->at;
    h->have -= h->at;
    h->at = 0;
    const uint64_t next = h->offset + h->have, left = h->bytes - next;
    const size_t room = CHUNK - h->have, n = left < room ? (size_t)left : room;
    if (n > 0 && lks__sys_read_at(h->fd, h->chunk + h->have, n, next) != 0)
        return lks__sys_fail("can't read", h->path);
    h->have += n;
    return LKS_OK;
}

/* Find the next complete line; *text_p is NULL if there is none. */
static lks_status next_text(lks__history *h, const char **text_p, size_t *bytes_p)
{
    const char *end = memchr(h->chunk + h->at, '\n', h->have - h->at);
    if (end == NULL) {
        LKS__TRY(fill(h));
        end = memchr(h->chunk, '\n', h->have);
    }
    *text_p = end != NULL ? h->chunk + h->at : NULL;
    if (end != NULL)
        *bytes_p = (size_t)(end - *text_p);
    return end == NULL && h->have == CHUNK ? bad_line(h, "is too long") : LKS_OK;
}

/* The newest start's line replaces the one before it. The line at a run's end is no start. */
static lks_status read_host(lks__history *h, json_t *o)
{
    json_t *changes = json_object_get(o, "changed"), *at = json_object_get(o, "resumed_iter");
    const char *key;
    json_t *value;
    if (json_object_get(o, "micro_batches") != NULL)
        return LKS_OK;
    json_decref(h->host);
    h->host = json_incref(o);
    if (h->settings == NULL || !json_is_object(changes))
        return LKS_OK;
    json_object_foreach(changes, key, value)
    {
        if (json_object_set(h->settings, key, value) != 0 ||
            (json_is_integer(at) && json_object_set(h->changed, key, at) != 0))
            return lks__fail(LKS_ERR_NOMEM, "no memory for the settings of a run");
    }
    return LKS_OK;
}

/* *has_iter_p: false for config and host lines, which belong to no iteration. */
static lks_status read_text(lks__history *h, const char *text, size_t bytes, bool *has_iter_p)
{
    const bool zeros = memchr(text, '\0', bytes) != NULL;
    json_error_t error;
    json_decref(h->line);
    h->line = zeros ? NULL : lks__json_load(text, bytes, 0, &error);
    if (h->line == NULL && !zeros && lks__json_no_memory(&error))
        return lks__fail(LKS_ERR_NOMEM, "no memory for a line of a run's metrics");
    const char *kind = json_string_value(json_object_get(h->line, "kind"));
    const json_t *iter = json_object_get(h->line, "iter");
    *has_iter_p = false;
    if (kind == NULL)
        return bad_line(h, "is not a JSON object with a \"kind\"");
    if (strcmp(kind, "host") == 0)
        return read_host(h, h->line);
    if (strcmp(kind, "config") == 0) {
        json_decref(h->settings);
        h->settings = json_incref(h->line);
        return LKS_OK;
    }
    if (!json_is_integer(iter) || json_integer_value(iter) < 0)
        return bad_line(h, "has no \"iter\" that is a count");
    *has_iter_p = true;
    return LKS_OK;
}

lks_status lks__history_next(lks__history *h, const json_t **line_p)
{
    const char *text;
    size_t bytes = 0;
    bool has_iter = false;
    *line_p = NULL;
    while (!has_iter) {
        LKS__TRY(next_text(h, &text, &bytes));
        if (text == NULL)
            return LKS_OK;
        LKS__TRY(read_text(h, text, bytes, &has_iter));
        h->at += bytes + 1;
    }
    *line_p = h->line;
    return LKS_OK;
}
