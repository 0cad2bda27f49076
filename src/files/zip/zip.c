#include "files/zip/zip.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/system/sys.h"
#include "files/zip/zip_module.h"

enum {
    MAX_ENTRIES = 1 << 20, /* a checkpoint has one per tensor and a few more */
    PIECE = 1 << 20,
    WHY_BYTES = 400,
};

struct lks__zip {
    char name[512];
    int fd;           /* -1: the bytes are in memory */
    const char *data; /* used if fd is -1 */
    uint64_t bytes;   /* size of the file */
    int failed;       /* errno of a read that failed for libzip; -1: the file ended early */
    size_t n;
    lks__zip_entry *entries;
};

lks_status lks__zip_module_open(const lks__zip_module **module_p)
{
    static lks__module zip = {
        .file = LKS__ZIP_MODULE_FILE,
        .version = LKS__ZIP_MODULE_VERSION,
        .package = "libzip-dev",
        .failure = "cannot read or write zip files",
        .mutex = PTHREAD_MUTEX_INITIALIZER,
    };
    *module_p = lks__module_get(&zip);
    return *module_p != NULL ? LKS_OK : LKS_ERR_SUPPORT;
}

lks_status lks__zip_available(void)
{
    const lks__zip_module *module;
    return lks__zip_module_open(&module);
}

/* ---- the file ---------------------------------------------------------------------------- */

/* Offset and size are inside the file. Returns 0, an errno, or -1 if the file has become shorter.
 */
static int read_at(const lks__zip *z, void *out, size_t bytes, uint64_t offset)
{
    if (z->fd < 0)
        memcpy(out, z->data + offset, bytes);
    else if (lks__sys_read_at(z->fd, out, bytes, offset) < 0)
        return errno ? errno : -1;
    return 0;
}

/* libzip's read callback. */
static int read_for_module(void *ctx, void *out, size_t bytes, uint64_t offset)
{
    lks__zip *z = ctx;
    z->failed = read_at(z, out, bytes, offset);
    return z->failed == 0 ? 0 : EIO;
}

static lks_status bad(const lks__zip *z, const char *why)
{
    if (why[0] == '\0')
        return lks__no_memory("to read %s", z->name);
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound zip file of torch.save: %s", z->name,
                     lks__shown(why, WHY_BYTES));
}

static lks_status bad_entry(const lks__zip *z, const lks__zip_entry *entry, const char *why)
{
    return lks__fail(LKS_ERR_FORMAT, "%s: entry %s %s", z->name, lks__shown(entry->name, 256), why);
}

static lks_status read_failed(const lks__zip *z, int failed)
{
    if (failed == ECANCELED)
        return lks__fail(LKS_ERR_STOPPED, "stopped while %s was read", z->name);
    if (failed < 0)
        return bad(z, "it became shorter while it was read");
    return lks__fail(LKS_ERR_IO, "cannot read %s: %s", z->name, strerror(failed));
}

/* ---- the entries ------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    const lks__zip_entry *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const lks__zip_entry *)a)->name, ((const lks__zip_entry *)b)->name);
}

static lks_status check_entries(lks__zip *z)
{
    uint64_t end = 0;
    qsort(z->entries, z->n, sizeof *z->entries, by_offset);
    for (size_t i = 0; i < z->n; i++) {
        const lks__zip_entry *e = &z->entries[i];
        if (e->bytes == 0)
            continue;
        if (e->bytes > z->bytes || e->offset > z->bytes - e->bytes)
            return bad_entry(z, e, "reaches beyond the end of the file");
        if (e->offset < end)
            return bad_entry(z, e, "overlaps another entry");
        end = e->offset + e->bytes;
    }
    qsort(z->entries, z->n, sizeof *z->entries, by_name);
    for (size_t i = 1; i < z->n; i++)
        if (by_name(&z->entries[i - 1], &z->entries[i]) == 0)
            return bad_entry(z, &z->entries[i], "occurs twice");
    return LKS_OK;
}

static lks_status read_entry(lks__zip *z, const lks__zip_module *module, void *raw, size_t i)
{
    lks__zip_raw entry;
    char why[WHY_BYTES];
    lks__zip_entry *e = &z->entries[i];
    if (module->entry(raw, i, &entry, why, sizeof why) != 0)
        return z->failed ? read_failed(z, z->failed) : bad(z, why);
    e->name = strdup(entry.name);
    LKS__MEMORY(e->name, "for the entries of %s", z->name);
    z->n = i + 1;
    e->bytes = entry.bytes;
    e->offset = entry.offset;
    e->crc = entry.crc;
    return entry.stored ? LKS_OK
                        : bad_entry(z, e,
                                    "is compressed or encrypted; torch.save stores entries "
                                    "unchanged, and lockstep reads only such entries");
}

static lks_status read_entries(lks__zip *z, const lks__zip_module *module, void *raw)
{
    uint64_t n = module->count(raw);
    if (n > MAX_ENTRIES)
        return bad(z, "it has more than 1,048,576 entries");
    z->entries = calloc(n + 1, sizeof *z->entries);
    LKS__MEMORY(z->entries, "for the entries of %s", z->name);
    for (size_t i = 0; i < n; i++)
        LKS__TRY(read_entry(z, module, raw, i));
    return check_entries(z);
}

static lks_status read_directory(lks__zip *z)
{
    const lks__zip_module *module;
    char why[WHY_BYTES];
    lks__zip_io io = {.read_at = read_for_module, .ctx = z, .bytes = z->bytes};
    LKS__TRY(lks__zip_module_open(&module));
    void *raw = module->open(&io, why, sizeof why);
    if (!raw)
        return z->failed ? read_failed(z, z->failed) : bad(z, why);
    lks_status st = read_entries(z, module, raw);
    module->close(raw);
    return st;
}

/* ---- open and close ---------------------------------------------------------------------- */

static lks_status open_file(const char *path, lks__zip *z)
{
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    z->fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (z->fd < 0)
        return lks__sys_fail("cannot open", path);
    return lks__sys_file_bytes(z->fd, path, &z->bytes);
}

static lks_status open_zip(const char *name, const char *path, const void *data, size_t bytes,
                           lks__zip **zip_p)
{
    lks__zip *z = calloc(1, sizeof *z);
    LKS__MEMORY(z, "to read a zip file");
    snprintf(z->name, sizeof z->name, "%s", name);
    z->fd = -1;
    z->data = data;
    z->bytes = bytes;
    lks_status st = path ? open_file(path, z) : LKS_OK;
    LKS__THEN(st, read_directory(z));
    if (st == LKS_OK)
        *zip_p = z;
    else
        lks__zip_close(z);
    return st;
}

lks_status lks__zip_open(const char *path, lks__zip **zip_p)
{
    return open_zip(lks__shown(path, 512), path, NULL, 0, zip_p);
}

lks_status lks__zip_open_bytes(const char *name, const void *data, size_t bytes, lks__zip **zip_p)
{
    return open_zip(name, NULL, data, bytes, zip_p);
}

void lks__zip_close(lks__zip *z)
{
    if (!z)
        return;
    lks__sys_close(z->fd);
    for (size_t i = 0; i < z->n; i++)
        free(z->entries[i].name);
    free(z->entries);
    free(z);
}

/* ---- use --------------------------------------------------------------------------------- */

const char *lks__zip_name(const lks__zip *z)
{
    return z->name;
}

size_t lks__zip_count(const lks__zip *z)
{
    return z->n;
}

const lks__zip_entry *lks__zip_entry_at(const lks__zip *z, size_t i)
{
    return &z->entries[i];
}

const lks__zip_entry *lks__zip_find(const lks__zip *z, const char *name)
{
    const lks__zip_entry wanted = {.name = (char *)(uintptr_t)name};
    return bsearch(&wanted, z->entries, z->n, sizeof *z->entries, by_name);
}

lks_status lks__zip_read(const lks__zip *z, const lks__zip_entry *e, uint64_t first, void *out,
                         size_t bytes)
{
    int failed = bytes > 0 ? read_at(z, out, bytes, e->offset + first) : 0;
    return failed ? read_failed(z, failed) : LKS_OK;
}

lks_status lks__zip_read_all(const lks__zip *z, const lks__zip_entry *e, void *out)
{
    uLong crc = crc32(0, NULL, 0);
    char *piece = out ? NULL : malloc(PIECE);
    if (!out && !piece)
        return lks__no_memory("to check %s", z->name);
    lks_status st = LKS_OK;
    for (uint64_t at = 0; at < e->bytes && st == LKS_OK;) {
        size_t n = e->bytes - at < PIECE ? (size_t)(e->bytes - at) : PIECE;
        char *to = out ? (char *)out + at : piece;
        st = lks__zip_read(z, e, at, to, n);
        if (st == LKS_OK)
            crc = crc32(crc, (const Bytef *)to, (uInt)n);
        at += n;
    }
    free(piece);
    if (st == LKS_OK && crc != e->crc)
        return bad_entry(z, e, "is damaged: its checksum differs from the directory's");
    return st;
}
