#include "data/docs.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/jsontext.h"
#include "base/sys.h"
#include "base/utf8.h"

enum {
    CHUNK_BYTES = 1 << 20,
    MAX_DOC_BYTES = 1 << 30, /* SentencePiece takes no more at once */
};

struct bytes {
    char *data;
    size_t n, room;
};

struct lks__docs {
    char *path;
    char name[256];
    const char *field;
    int fd;
    bool is_jsonl;
    uint64_t file_bytes;
    struct bytes chunk;   /* read, but not yet returned from chunk_at on */
    size_t chunk_at;      /* in chunk */
    uint64_t read_bytes;  /* bytes of the file read so far */
    uint64_t line;        /* number of the line returned last, from 1 */
    uint64_t line_offset; /* offset of its first byte in the file */
    struct bytes doc;     /* lines of a text document, joined */
    json_t *json;         /* JSON lines: the object that owns the current document */
};

static lks_status grow(lks__docs *d, struct bytes *b, size_t n)
{
    if (n <= b->room)
        return LKS_OK;
    size_t room = b->room ? b->room : CHUNK_BYTES;
    while (room < n)
        room *= 2;
    char *grown = realloc(b->data, room);
    if (!grown)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a document of %s", d->name);
    b->data = grown;
    b->room = room;
    return LKS_OK;
}

bool lks__docs_is_jsonl(const char *path)
{
    const size_t n = strlen(path);
    return n >= 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

lks_status lks__docs_open(const char *path, const char *field, lks__docs **docs_p)
{
    struct stat info;
    lks_status st;
    size_t n = strlen(path);
    lks__docs *d = calloc(1, sizeof *d);
    if (!d)
        return lks__fail(LKS_ERR_NOMEM, "no memory to open a text");
    lks__escape(d->name, sizeof d->name, path, n);
    d->field = field == NULL ? "text" : field;
    d->is_jsonl = lks__docs_is_jsonl(path);
    d->path = strdup(path);
    d->fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0); /* a pipe must not block the open */
    if (!d->path)
        st = lks__fail(LKS_ERR_NOMEM, "no memory to open %s", d->name);
    else if (d->fd < 0 || fstat(d->fd, &info) < 0)
        st = lks__sys_fail("cannot read", path);
    else if (!S_ISREG(info.st_mode))
        st = lks__fail(LKS_ERR_IO, "%s is %s, but a text file is expected", d->name,
                       S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    else
        st = LKS_OK;
    if (st != LKS_OK) {
        lks__docs_close(d);
        return st;
    }
    d->file_bytes = (uint64_t)info.st_size;
    lks__docs_rewind(d);
    *docs_p = d;
    return LKS_OK;
}

void lks__docs_close(lks__docs *d)
{
    if (!d)
        return;
    if (d->fd >= 0)
        lks__sys_close(d->fd);
    json_decref(d->json);
    free(d->chunk.data);
    free(d->doc.data);
    free(d->path);
    free(d);
}

const char *lks__docs_name(const lks__docs *d)
{
    return d->name;
}

void lks__docs_rewind(lks__docs *d)
{
    d->chunk.n = d->chunk_at = d->doc.n = 0;
    d->read_bytes = d->line = d->line_offset = 0;
}

/* Read more of the file and append it to the chunk; *more_p = false at the end of the file. */
static lks_status fill(lks__docs *d, bool *more_p)
{
    uint64_t left = d->file_bytes - d->read_bytes;
    size_t take = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
    *more_p = take > 0;
    if (take == 0)
        return LKS_OK;
    d->chunk.n -= d->chunk_at;
    if (d->chunk.n > 0)
        memmove(d->chunk.data, d->chunk.data + d->chunk_at, d->chunk.n);
    d->chunk_at = 0;
    LKS__TRY(grow(d, &d->chunk, d->chunk.n + take));
    if (lks__sys_read_at(d->fd, d->chunk.data + d->chunk.n, take, d->read_bytes) < 0)
        return errno != 0 ? lks__sys_fail("cannot read", d->path)
                          : lks__fail(LKS_ERR_IO, "%s has shrunk while it was read", d->name);
    d->chunk.n += take;
    d->read_bytes += take;
    return LKS_OK;
}

static lks_status too_long(const lks__docs *d)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s, line %llu: a document of more than %d bytes; divide documents by blank "
                     "lines, or give JSON lines",
                     d->name, (unsigned long long)d->line, MAX_DOC_BYTES);
}

/* The next line, without its line feed; NULL after the last. Valid until the next call. */
static lks_status next_line(lks__docs *d, const char **line_p, size_t *bytes_p)
{
    size_t seen = 0; /* bytes of the line in which there is no line feed */
    d->line++;
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
        d->line_offset = d->read_bytes - have;
        d->chunk_at += *bytes_p + (end != NULL);
        return LKS_OK;
    }
}

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static lks_status check_utf8(const lks__docs *d, const char *line, size_t bytes)
{
    uint32_t cp;
    size_t len;
    for (size_t i = 0; i < bytes; i += len) {
        len = lks__utf8_decode(line + i, bytes - i, &cp);
        if (len == 0)
            return lks__fail(LKS_ERR_FORMAT,
                             "%s is not valid UTF-8: byte 0x%02x at offset %llu (line %llu); "
                             "convert it first, for instance with iconv -t UTF-8",
                             d->name, (unsigned char)line[i],
                             (unsigned long long)(d->line_offset + i), (unsigned long long)d->line);
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
            LKS__TRY(check_utf8(d, line, bytes));
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

static lks_status next_jsonl(lks__docs *d, const char **text_p, size_t *bytes_p)
{
    const char *line;
    size_t bytes;
    json_error_t error;
    json_decref(d->json);
    d->json = NULL;
    *text_p = NULL;
    LKS__TRY(next_line(d, &line, &bytes));
    if (!line)
        return LKS_OK;
    d->json = lks__json_load(line, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!d->json && lks__json_no_memory(&error))
        return lks__fail(LKS_ERR_NOMEM, "no memory for line %llu of %s",
                         (unsigned long long)d->line, d->name);
    if (!d->json) {
        char why[JSON_ERROR_TEXT_LENGTH * 4];
        return lks__fail(LKS_ERR_FORMAT,
                         "%s, line %llu (byte offset %llu) is not a JSON object: %s", d->name,
                         (unsigned long long)d->line, (unsigned long long)d->line_offset,
                         lks__escape(why, sizeof why, error.text, strlen(error.text)));
    }
    const json_t *text = json_object_get(d->json, d->field);
    if (!json_is_string(text)) {
        char shown[256];
        return lks__fail(LKS_ERR_FORMAT,
                         "%s, line %llu (byte offset %llu): a JSON object with a string \"%s\" is "
                         "expected",
                         d->name, (unsigned long long)d->line, (unsigned long long)d->line_offset,
                         lks__escape(shown, sizeof shown, d->field, strlen(d->field)));
    }
    *text_p = json_string_value(text);
    *bytes_p = json_string_length(text);
    return LKS_OK;
}

lks_status lks__docs_next(lks__docs *d, const char **text_p, size_t *bytes_p)
{
    LKS__TRY(lks__sys_stop_check());
    return d->is_jsonl ? next_jsonl(d, text_p, bytes_p) : next_text(d, text_p, bytes_p);
}
