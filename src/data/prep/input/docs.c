#include "data/prep/input/docs.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "data/text/encoding.h"

enum {
    CHUNK_BYTES = 1 << 20,
    SEEK_BYTES = 1 << 14,    /* read size after a seek: usually enough for a document */
    MAX_DOC_BYTES = 1 << 30, /* SentencePiece accepts no more per call */
};

struct bytes {
    char *data;
    size_t n, room;
};

struct lks__docs {
    const lks__texts *texts;
    size_t first, end; /* of files */
    const char *field;
    size_t file; /* the file that is being read */
    int fd;      /* of that file; -1: not open yet */
    char name[256];
    uint64_t before;      /* bytes of the previous files */
    struct bytes chunk;   /* read, but not yet returned from chunk_at on */
    size_t chunk_at;      /* in chunk */
    size_t next_read;     /* size of the next read */
    uint64_t read_bytes;  /* bytes of the file read so far */
    bool has_lines;       /* whether lines are counted; not after a seek */
    bool any_bytes;       /* see lks__docs_any_bytes() */
    uint64_t line;        /* number of the line that next_line() returns, from 1 */
    uint64_t line_offset; /* offset of its first byte in the file */
    struct bytes doc;     /* lines of a text document, joined */
    json_t *json;         /* JSON lines: the object that owns the current document */
};

static lks_status grow(lks__docs *d, struct bytes *b, size_t n)
{
    return lks__list_room(&b->data, n, &b->room, 1)
               ? LKS_OK
               : lks__no_memory("for a document of %s", d->name);
}

/* --- files ----------------------------------------------------------------------------------- */

static const lks__text_file *file_of(const lks__docs *d)
{
    return &d->texts->files[d->file];
}

/* Move to a file; it is opened at the first read. */
static void go_to(lks__docs *d, size_t file, uint64_t at)
{
    if (d->fd >= 0 && file != d->file) {
        lks__sys_close(d->fd);
        d->fd = -1;
    }
    d->file = file;
    d->chunk.n = d->chunk_at = d->doc.n = 0;
    d->read_bytes = d->line_offset = at;
    d->line = 0;
}

lks_status lks__docs_open(const lks__texts *texts, size_t first, size_t end, const char *field,
                          lks__docs **docs_p)
{
    lks__docs *d = calloc(1, sizeof *d);
    LKS__MEMORY(d, "to open a text");
    *d = (lks__docs){.texts = texts, .first = first, .end = end, .field = field, .fd = -1};
    lks__docs_rewind(d);
    *docs_p = d;
    return LKS_OK;
}

void lks__docs_close(lks__docs *d)
{
    if (!d)
        return;
    lks__sys_close(d->fd);
    json_decref(d->json);
    free(d->chunk.data);
    free(d->doc.data);
    free(d);
}

void lks__docs_any_bytes(lks__docs *d)
{
    d->any_bytes = true;
}

void lks__docs_rewind(lks__docs *d)
{
    d->before = 0;
    d->next_read = CHUNK_BYTES;
    d->has_lines = true;
    go_to(d, d->first, 0);
}

void lks__docs_seek(lks__docs *d, size_t file, uint64_t at)
{
    d->next_read = SEEK_BYTES;
    d->has_lines = false;
    go_to(d, file, at);
}

void lks__docs_place(const lks__docs *d, size_t *file_p, uint64_t *at_p)
{
    *file_p = d->file;
    *at_p = d->line_offset;
}

uint64_t lks__docs_done(const lks__docs *d)
{
    return d->before + d->read_bytes - (d->chunk.n - d->chunk_at);
}

/* --- lines ----------------------------------------------------------------------------------- */

/* Read more of the file and append it to the chunk; *more_p = false at the end of the file. */
static lks_status fill(lks__docs *d, bool *more_p)
{
    const lks__text_file *file = file_of(d);
    uint64_t left = file->bytes - d->read_bytes;
    size_t take = left < d->next_read ? (size_t)left : d->next_read;
    *more_p = take > 0;
    if (take == 0)
        return LKS_OK;
    if (d->fd < 0) {
        LKS__TRY(lks__texts_file(d->texts, d->file, &d->fd));
        lks__escape(d->name, sizeof d->name, file->path, strlen(file->path));
    }
    if (d->next_read < CHUNK_BYTES)
        d->next_read *= 2;
    d->chunk.n -= d->chunk_at;
    if (d->chunk.n > 0)
        memmove(d->chunk.data, d->chunk.data + d->chunk_at, d->chunk.n);
    d->chunk_at = 0;
    LKS__TRY(grow(d, &d->chunk, d->chunk.n + take));
    LKS__TRY(
        lks__texts_read(d->texts, d->file, d->fd, d->read_bytes, take, d->chunk.data + d->chunk.n));
    d->chunk.n += take;
    d->read_bytes += take;
    return LKS_OK;
}

/* Position of the last line, for messages. */
static const char *place(const lks__docs *d, char out[64])
{
    const unsigned long long line = d->line, offset = d->line_offset;
    if (d->has_lines)
        snprintf(out, 64, "line %llu (byte offset %llu)", line, offset);
    else
        snprintf(out, 64, "byte offset %llu", offset);
    return out;
}

static lks_status too_long(const lks__docs *d)
{
    char where[64];
    return lks__fail(LKS_ERR_FORMAT, "%s, %s: a document of more than %d bytes; %s", d->name,
                     place(d, where), MAX_DOC_BYTES,
                     file_of(d)->is_jsonl
                         ? "divide it"
                         : "separate documents by blank lines, or give JSON lines");
}

/* The next line, without its line feed; NULL after the last. Valid until the next call. */
static lks_status next_line(lks__docs *d, const char **line_p, size_t *bytes_p)
{
    size_t seen = 0; /* bytes of the line searched for a line feed so far */
    d->line++;
    d->line_offset = d->read_bytes - (d->chunk.n - d->chunk_at);
    for (;;) {
        const char *start = d->chunk.data ? d->chunk.data + d->chunk_at : NULL;
        size_t have = d->chunk.n - d->chunk_at;
        const char *end = have > seen ? memchr(start + seen, '\n', have - seen) : NULL;
        bool more = false;
        if (!end) {
            seen = have;
            if (have > MAX_DOC_BYTES)
                return too_long(d);
            LKS__TRY(fill(d, &more));
            if (more)
                continue;
            if (have == 0) {
                *line_p = NULL;
                return LKS_OK;
            }
        }
        *line_p = start;
        *bytes_p = end ? (size_t)(end - start) : have;
        d->chunk_at += *bytes_p + (end != NULL);
        return LKS_OK;
    }
}

/* --- documents ------------------------------------------------------------------------------- */

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static lks_status check_utf8(const lks__docs *d, const char *line, size_t bytes)
{
    uint32_t cp;
    size_t len;
    const char *next = d->chunk.data + d->chunk_at; /* the byte after the line feed */
    for (size_t i = 0; i < bytes; i += len) {
        len = lks__utf8_decode(line + i, bytes - i, &cp);
        if (len == 0)
            return lks__not_utf8(file_of(d)->path, line, (size_t)(next - line), i,
                                 d->line_offset + i, d->has_lines ? d->line : 0);
    }
    return LKS_OK;
}

static lks_status next_text(lks__docs *d, const char **text_p, size_t *bytes_p)
{
    const char *line;
    size_t bytes;
    *text_p = NULL;
    d->doc.n = 0;
    do {
        LKS__TRY(next_line(d, &line, &bytes));
        size_t skip = 0, end = line ? bytes : 0;
        if (line)
            LKS__TRY(d->any_bytes ? LKS_OK : check_utf8(d, line, bytes));
        while (skip < end && is_white(line[skip]))
            skip++;
        if (skip == end && d->doc.n > 0)
            break; /* a blank line or the end of the file: the document is complete */
        if (skip == end)
            continue;
        if (d->doc.n == 0) { /* first line: drop the space before it */
            line += skip;
            bytes -= skip;
        }
        if (d->doc.n + bytes > MAX_DOC_BYTES)
            return too_long(d);
        LKS__TRY(grow(d, &d->doc, d->doc.n + bytes + 1));
        memcpy(d->doc.data + d->doc.n, line, bytes);
        d->doc.n += bytes;
        d->doc.data[d->doc.n++] = '\n';
    } while (line);
    if (d->doc.n == 0)
        return LKS_OK;
    while (is_white(d->doc.data[d->doc.n - 1]))
        d->doc.n--;
    *text_p = d->doc.data;
    *bytes_p = d->doc.n;
    return LKS_OK;
}

/* The next line of JSON lines: blank lines and a byte order mark at the start are skipped. */
static lks_status next_object(lks__docs *d, const char **line_p, size_t *bytes_p)
{
    size_t white = 0;
    do {
        LKS__TRY(next_line(d, line_p, bytes_p));
        if (*line_p == NULL)
            return LKS_OK;
        if (d->line_offset == 0 && *bytes_p >= 3 && memcmp(*line_p, "\xef\xbb\xbf", 3) == 0) {
            *line_p += 3;
            *bytes_p -= 3;
        }
        for (white = 0; white < *bytes_p && is_white((*line_p)[white]);)
            white++;
    } while (white == *bytes_p);
    return LKS_OK;
}

static lks_status next_jsonl(lks__docs *d, const char **text_p, size_t *bytes_p)
{
    const char *line;
    char where[64];
    size_t bytes;
    json_error_t error;
    json_decref(d->json);
    d->json = NULL;
    *text_p = NULL;
    LKS__TRY(next_object(d, &line, &bytes));
    if (!line)
        return LKS_OK;
    d->json = lks__json_load(line, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!d->json && lks__json_no_memory(&error))
        return lks__no_memory("for the document at %s of %s", place(d, where), d->name);
    if (!d->json)
        return lks__fail(LKS_ERR_FORMAT, "%s, %s can't be read as JSON: %s, at column %d", d->name,
                         place(d, where), lks__shown(error.text, JSON_ERROR_TEXT_LENGTH * 4),
                         error.column);
    const json_t *text = json_object_get(d->json, d->field);
    if (!json_is_string(text))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s, %s: a JSON object with a string \"%s\" is expected; `lockstep prep "
                         "... --field=NAME` reads another member",
                         d->name, place(d, where), lks__shown(d->field, 256));
    *text_p = json_string_value(text);
    *bytes_p = json_string_length(text);
    return LKS_OK;
}

/* --- all files ------------------------------------------------------------------------------- */

static lks_status next_of_all(lks__docs *d,
                              lks_status (*json)(lks__docs *, const char **, size_t *),
                              const char **text_p, size_t *bytes_p)
{
    *text_p = NULL;
    LKS__TRY(lks__sys_stop_check());
    while (d->file < d->end) {
        LKS__TRY(file_of(d)->is_jsonl ? json(d, text_p, bytes_p) : next_text(d, text_p, bytes_p));
        if (*text_p != NULL || d->file + 1 == d->end)
            break;
        d->before += file_of(d)->bytes;
        go_to(d, d->file + 1, 0);
    }
    return LKS_OK;
}

lks_status lks__docs_next(lks__docs *d, const char **text_p, size_t *bytes_p)
{
    return next_of_all(d, next_jsonl, text_p, bytes_p);
}

lks_status lks__docs_skip(lks__docs *d, bool *found_p)
{
    const char *text;
    size_t bytes;
    lks_status st = next_of_all(d, next_object, &text, &bytes);
    *found_p = st == LKS_OK && text != NULL;
    return st;
}
