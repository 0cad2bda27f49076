#include "files/pickle/torch/torchsave.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "files/zip/zip_write.h"

enum {
    ALIGNMENT = 64,
    LOCAL_HEADER = 30, /* of a zip entry, without its name */
    FIELD_HEADER = 4,  /* of the extra field that pads to the alignment */
};

#define TOP "archive/"

/* One entry's bytes, from memory or from a storage. */
typedef struct part {
    const lks__torchsave_what *what;
    const void *data; /* NULL: a storage */
    size_t storage;
} part;

typedef struct archive {
    lks__zip_writer *zip;
    const lks__torchsave_what *what;
    part *parts;
    size_t n;
    uint64_t at; /* offset of the next entry's header */
} archive;

static lks_status read_part(void *ctx, uint64_t first, void *out, size_t bytes)
{
    const part *p = ctx;
    if (!p->data)
        return p->what->read(p->what->ctx, p->storage, first, out, bytes);
    memcpy(out, (const char *)p->data + first, bytes);
    return LKS_OK;
}

/* Every entry's bytes begin at a multiple of 64 in the file, as in PyTorch. */
static lks_status add(archive *a, const char *name, uint64_t bytes, part p)
{
    uint64_t header = a->at + LOCAL_HEADER + strlen(name) + FIELD_HEADER;
    unsigned filling = (unsigned)(lks__round_up(header, ALIGNMENT) - header);
    part *kept = &a->parts[a->n++];
    *kept = p;
    kept->what = a->what;
    a->at = header + filling + bytes;
    return lks__zip_writer_add(a->zip, name, bytes, filling, read_part, kept);
}

static lks_status add_text(archive *a, const char *name, const char *text)
{
    return add(a, name, strlen(text), (part){.data = text});
}

static lks_status add_all(archive *a)
{
    const lks__torchsave_what *what = a->what;
    char name[48];
    LKS__TRY(add(a, TOP "data.pkl", what->pickle->n, (part){.data = what->pickle->at}));
    LKS__TRY(add_text(a, TOP ".format_version", "1"));
    LKS__TRY(add_text(a, TOP ".storage_alignment", "64"));
    LKS__TRY(add_text(a, TOP "byteorder", "little"));
    for (size_t i = 0; i < what->n; i++) {
        snprintf(name, sizeof name, TOP "data/%zu", i);
        LKS__TRY(add(a, name, what->bytes[i], (part){.storage = i}));
    }
    return add_text(a, TOP "version", "3\n");
}

static lks_status write_with(lks__zip_writer *zip, const lks__torchsave_what *what)
{
    archive a = {.zip = zip, .what = what, .parts = calloc(what->n + 5, sizeof *a.parts)};
    lks_status st = a.parts ? LKS_OK : lks__no_memory("to write a zip file");
    if (st == LKS_OK && what->pickle->failed)
        st = lks__no_memory("to write a pickle");
    LKS__THEN(st, add_all(&a));
    LKS__THEN(st, lks__zip_writer_finish(zip));
    free(a.parts);
    return st;
}

lks_status lks__torchsave_file(const char *path, const lks__torchsave_what *what)
{
    lks__zip_writer *zip;
    LKS__TRY(lks__zip_writer_open(path, &zip));
    lks_status st = write_with(zip, what);
    return lks__zip_writer_close(zip, st);
}

lks_status lks__torchsave_bytes(const lks__torchsave_what *what, unsigned char **data_p,
                                size_t *bytes_p)
{
    lks__zip_writer *zip;
    LKS__TRY(lks__zip_writer_open(NULL, &zip));
    lks_status st = write_with(zip, what);
    if (st == LKS_OK)
        lks__zip_writer_take(zip, data_p, bytes_p);
    return lks__zip_writer_close(zip, st);
}
