#include "zip_file.h"

#include <string.h>
#include <zlib.h>

typedef struct writer {
    unsigned char *out;
    size_t n, room;
} writer;

static void put(writer *w, const void *data, size_t bytes)
{
    if (bytes > 0 && w->n <= w->room && bytes <= w->room - w->n)
        memcpy(w->out + w->n, data, bytes);
    w->n += bytes;
}

static void put16(writer *w, uint64_t x)
{
    const unsigned char b[] = {x & 255, x >> 8 & 255};
    put(w, b, 2);
}

static void put32(writer *w, uint64_t x)
{
    put16(w, x & 65535);
    put16(w, x >> 16 & 65535);
}

/* What both headers of an entry have. */
static void put_common(writer *w, const lks_zip_entry *p)
{
    uint64_t crc = crc32(0, NULL, 0);
    if (p->bytes > 0)
        crc = crc32(crc, p->data, (uInt)p->bytes);
    uint64_t bytes = (uint64_t)((int64_t)p->bytes + p->size_change);
    put16(w, p->flags);
    put16(w, p->method);
    put32(w, 0x210000); /* 1980-01-01 */
    put32(w, crc ^ p->crc_change);
    put32(w, bytes);
    put32(w, bytes + (uint64_t)p->plain_change);
    put16(w, strlen(p->name));
    put16(w, 0);
}

size_t lks_zip_make(const lks_zip_entry *parts, size_t n, void *out, size_t room)
{
    writer w = {.out = out, .room = room};
    size_t places[32];
    for (size_t i = 0; i < n; i++) {
        places[i] = w.n;
        put(&w, "PK\3\4", 4);
        put16(&w, 10);
        put_common(&w, &parts[i]);
        put(&w, parts[i].name, strlen(parts[i].name));
        put(&w, parts[i].data, parts[i].bytes);
    }
    size_t start = w.n;
    for (size_t i = 0; i < n; i++) {
        put(&w, "PK\1\2", 4);
        put16(&w, 10);
        put16(&w, 10);
        put_common(&w, &parts[i]);
        put(&w, "\0\0\0\0\0\0\0\0\0\0", 10);
        put32(&w, (uint64_t)((int64_t)places[i] - parts[i].moved));
        put(&w, parts[i].name, strlen(parts[i].name));
    }
    size_t bytes = w.n - start;
    put(&w, "PK\5\6\0\0\0\0", 8);
    put16(&w, n);
    put16(&w, n);
    put32(&w, bytes);
    put32(&w, start);
    put16(&w, 0);
    return w.n <= room ? w.n : 0;
}
