#include "files/pickle/torch/torchsave.h"

#include <stdio.h>
#include <string.h>

#include "base/number/checked.h"
#include "files/zip/zip_write.h"

enum {
    ALIGNMENT = 64,
    LOCAL_HEADER = 30, /* of a zip entry, without its name */
    FIELD_HEADER = 4,  /* of the extra field that pads to the alignment */
};

#define TOP "archive/"

/* The entries: the pickle, texts, the storages, and a last text. */
static const struct {
    const char *name, *text;
} texts[] = {{TOP ".format_version", "1"},
             {TOP ".storage_alignment", "64"},
             {TOP "byteorder", "little"},
             {TOP "version", "3\n"}};
enum { LAST = sizeof texts / sizeof texts[0] - 1, FIRST_STORAGE = 1 + LAST };

static lks_status read_part(const void *ctx, size_t entry, uint64_t first, void *out, size_t bytes)
{
    const lks__torchsave_what *what = ctx;
    const char *from = (const char *)what->pickle->at;
    if (entry >= FIRST_STORAGE && entry < FIRST_STORAGE + what->n)
        return what->read(what->ctx, entry - FIRST_STORAGE, first, out, bytes);
    if (entry > 0)
        from = texts[entry < FIRST_STORAGE ? entry - 1 : LAST].text;
    memcpy(out, from + first, bytes);
    return LKS_OK;
}

/* Every entry's bytes begin at a multiple of 64 in the file, as in PyTorch. *at: offset of the next
 * entry's header. */
static lks_status add(lks__zip_writer *zip, const char *name, uint64_t bytes, uint64_t *at)
{
    uint64_t header = *at + LOCAL_HEADER + strlen(name) + FIELD_HEADER;
    unsigned filling = (unsigned)(lks__round_up(header, ALIGNMENT) - header);
    *at = header + filling + bytes;
    return lks__zip_writer_add(zip, name, bytes, filling);
}

static lks_status write_with(lks__zip_writer *zip, const lks__torchsave_what *what)
{
    char name[48];
    uint64_t at = 0;
    if (what->pickle->failed)
        return lks__no_memory("to write a pickle");
    LKS__TRY(add(zip, TOP "data.pkl", what->pickle->n, &at));
    for (size_t i = 0; i < LAST; i++)
        LKS__TRY(add(zip, texts[i].name, strlen(texts[i].text), &at));
    for (size_t i = 0; i < what->n; i++) {
        snprintf(name, sizeof name, TOP "data/%zu", i);
        LKS__TRY(add(zip, name, what->bytes[i], &at));
    }
    LKS__TRY(add(zip, texts[LAST].name, strlen(texts[LAST].text), &at));
    return lks__zip_writer_finish(zip);
}

lks_status lks__torchsave_file(const char *path, const lks__torchsave_what *what)
{
    lks__zip_writer *zip;
    LKS__TRY(lks__zip_writer_open(path, read_part, what, &zip));
    return lks__zip_writer_close(zip, write_with(zip, what));
}

lks_status lks__torchsave_bytes(const lks__torchsave_what *what, unsigned char **data_p,
                                size_t *bytes_p)
{
    lks__zip_writer *zip;
    LKS__TRY(lks__zip_writer_open(NULL, read_part, what, &zip));
    lks_status st = write_with(zip, what);
    if (st == LKS_OK)
        lks__zip_writer_take(zip, data_p, bytes_p);
    return lks__zip_writer_close(zip, st);
}
