#include "report/record/lines.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"

enum { CHUNK = 1 << 20 }; /* lines that this program writes are shorter than 64 KiB */

static lks_status open_file(lks__lines *l)
{
    l->fd = lks__sys_open(l->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (l->fd < 0)
        return lks__sys_fail("can't read", l->path);
    LKS__TRY(lks__sys_file_bytes(l->fd, l->path, &l->bytes));
    l->chunk = malloc(CHUNK);
    return l->chunk != NULL ? LKS_OK : lks__no_memory("to read a file's lines");
}

lks_status lks__lines_open(const char *path, lks__lines *l)
{
    *l = (lks__lines){.fd = -1};
    snprintf(l->path, sizeof l->path, "%s", path);
    const lks_status st = open_file(l);
    if (st != LKS_OK)
        lks__lines_close(l);
    return st;
}

void lks__lines_close(lks__lines *l)
{
    if (l->path[0] == '\0')
        return;
    lks__sys_close(l->fd);
    json_decref(l->object);
    free(l->chunk);
    *l = (lks__lines){.fd = -1};
}

lks_status lks__lines_bad(const lks__lines *l, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: the line at offset %" PRIu64 " %s, so lockstep hasn't written it",
                     lks__shown(l->path, 512), l->offset + l->at, what);
}

/* Move the rest of the chunk to its beginning, and fill it. At the file's end, change nothing. */
static lks_status fill(lks__lines *l)
{
    const uint64_t next = l->offset + l->have, left = l->bytes - next;
    if (left == 0)
        return LKS_OK;
    memmove(l->chunk, l->chunk + l->at, l->have - l->at);
    l->offset += l->at;
    l->have -= l->at;
    l->at = 0;
    const size_t room = CHUNK - l->have, n = left < room ? (size_t)left : room;
    if (n > 0 && lks__sys_read_at(l->fd, l->chunk + l->have, n, next) != 0)
        return lks__sys_fail("can't read", l->path);
    l->have += n;
    return LKS_OK;
}

const char *const lks__lines_times[] = {"ms", "tok_per_s", "mfu", "comm_exposed_ms", NULL};

/* If the text at `at` begins with `,"NAME":`, what follows that; else NULL. */
static const char *value_of(const char *at, const char *end, const char *name)
{
    const size_t n = strlen(name);
    const bool is = (size_t)(end - at) > n + 4 && memcmp(at, ",\"", 2) == 0 &&
                    memcmp(at + 2, name, n) == 0 && memcmp(at + 2 + n, "\":", 2) == 0;
    return is ? at + n + 4 : NULL;
}

/* True if the text from `at` to the line's end has only the times of a step. */
static bool only_times(const char *at, const char *end)
{
    for (size_t i = 0; lks__lines_times[i] != NULL; i++) {
        const char *value = value_of(at, end, lks__lines_times[i]);
        if (value != NULL)
            for (at = value; at < end && strchr(",}\"", *at) == NULL;)
                at++;
    }
    return end - at == 1 && *at == '}';
}

/* End a train line, *n_p bytes long, before its times. */
static bool cut_times(const lks__lines *l, char *text, size_t *n_p)
{
    static const char begin[] = "{\"kind\":\"train\",", times[] = ",\"ms\":";
    char *at = l->untimed && *n_p > sizeof begin && memcmp(text, begin, sizeof begin - 1) == 0
                   ? memmem(text, *n_p, times, sizeof times - 1)
                   : NULL;
    if (at == NULL || !only_times(at, text + *n_p))
        return false;
    *at = '}';
    *n_p = (size_t)(at - text) + 1;
    return true;
}

static bool equals_twin(const lks__lines *l, const char *text, size_t n)
{
    const lks__lines *twin = l->twin;
    return twin != NULL && twin->object != NULL && twin->length == n &&
           memcmp(twin->chunk + twin->at, text, n) == 0;
}

lks_status lks__lines_text(lks__lines *l, char **text_p, size_t *bytes_p)
{
    l->at = l->next;
    const char *end = memchr(l->chunk + l->at, '\n', l->have - l->at);
    if (end == NULL) {
        LKS__TRY(fill(l));
        end = memchr(l->chunk + l->at, '\n', l->have - l->at);
    }
    const size_t piece = l->have - l->at == CHUNK ? CHUNK : 0;
    *text_p = end != NULL || piece > 0 ? l->chunk + l->at : NULL;
    *bytes_p = end != NULL ? (size_t)(end - *text_p) : piece;
    l->next = l->at + *bytes_p + (end != NULL);
    return LKS_OK;
}

lks_status lks__lines_next(lks__lines *l, json_t **object_p)
{
    char *text;
    *object_p = NULL;
    json_decref(l->object);
    l->object = NULL;
    LKS__TRY(lks__lines_text(l, &text, &l->length));
    if (text == NULL)
        return LKS_OK;
    if (l->length == CHUNK)
        return lks__lines_bad(l, "is too long");
    const bool cut = cut_times(l, text, &l->length);
    if (cut && equals_twin(l, text, l->length))
        *object_p = json_incref(l->twin->object);
    else
        LKS__TRY(lks__json_line(text, l->length, JSON_REJECT_DUPLICATES, object_p));
    if (*object_p == NULL)
        return lks__lines_bad(l, "is not a JSON object, or has a member twice");
    if (cut)
        l->object = json_incref(*object_p);
    return LKS_OK;
}
