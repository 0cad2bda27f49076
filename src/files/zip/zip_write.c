#include "files/zip/zip_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "files/zip/zip.h"
#include "files/zip/zip_module.h"

enum { WHY_BYTES = 400 };

typedef struct part {
    struct part *next;
    lks__zip_writer *writer;
    size_t entry;
} part;

struct lks__zip_writer {
    const lks__zip_module *module;
    void *zip;
    lks__sys_new file; /* fd -1: write into memory */
    uint64_t at;
    unsigned char *data;
    size_t bytes, room;
    lks_status failed; /* status of a callback, whose message is recorded */
    lks__zip_part *read;
    const void *ctx;
    part *parts; /* the last entry first */
};

/* ---- libzip's output ------------------------------------------------------------------------ */

static int write_memory(lks__zip_writer *w, const void *data, size_t bytes, uint64_t offset)
{
    size_t end = (size_t)offset + bytes;
    if (!lks__list_room(&w->data, end, &w->room, 1)) {
        w->failed = lks__no_memory("for a zip file of %zu bytes", end);
        return ENOMEM;
    }
    memcpy(w->data + offset, data, bytes);
    w->bytes = end > w->bytes ? end : w->bytes;
    return 0;
}

static int write_file(lks__zip_writer *w, const void *data, size_t bytes, uint64_t offset)
{
    const int fd = w->file.fd;
    bool moved = offset == w->at || lseek(fd, (off_t)offset, SEEK_SET) >= 0;
    if (!moved || lks__sys_write_all(fd, data, bytes) < 0) {
        int failed = errno;
        w->failed = lks__sys_fail("cannot write", w->file.path);
        return failed ? failed : EIO;
    }
    w->at = offset + bytes;
    return 0;
}

static int write_at(void *ctx, const void *data, size_t bytes, uint64_t offset)
{
    lks__zip_writer *w = ctx;
    if (bytes == 0)
        return 0;
    return w->file.fd < 0 ? write_memory(w, data, bytes, offset)
                          : write_file(w, data, bytes, offset);
}

/* Read bytes that libzip has written; it reads nothing else. */
static int read_part(void *ctx, void *out, size_t bytes, uint64_t offset)
{
    const part *p = ctx;
    lks__zip_writer *w = p->writer;
    lks_status st = w->read(w->ctx, p->entry, offset, out, bytes);
    if (st != LKS_OK)
        w->failed = st;
    return st == LKS_OK ? 0 : EIO;
}

static lks_status failed(const lks__zip_writer *w, const char *why)
{
    if (w->failed != LKS_OK)
        return w->failed;
    if (why[0] == '\0')
        return lks__no_memory("to write a zip file");
    return lks__fail(LKS_ERR_IO, "cannot write a zip file: %s", lks__shown(why, WHY_BYTES));
}

/* ---- the archive ------------------------------------------------------------------------- */

lks_status lks__zip_writer_open(const char *path, lks__zip_part *read, const void *ctx,
                                lks__zip_writer **w_p)
{
    char why[WHY_BYTES];
    const lks__zip_module *module;
    LKS__TRY(lks__zip_module_open(&module));
    lks__zip_writer *w = calloc(1, sizeof *w);
    LKS__MEMORY(w, "to write a zip file");
    w->module = module;
    w->read = read;
    w->ctx = ctx;
    w->file.fd = -1;
    lks_status st = path ? lks__sys_new_open(path, &w->file) : LKS_OK;
    const lks__zip_io io = {.write_at = write_at, .ctx = w};
    if (st == LKS_OK) {
        w->zip = module->create(&io, why, sizeof why);
        st = w->zip ? LKS_OK : failed(w, why);
    }
    if (st == LKS_OK)
        *w_p = w;
    else
        lks__zip_writer_close(w, st);
    return st;
}

lks_status lks__zip_writer_add(lks__zip_writer *w, const char *name, uint64_t bytes,
                               unsigned filling)
{
    char why[WHY_BYTES];
    part *p = calloc(1, sizeof *p);
    LKS__MEMORY(p, "to write a zip file");
    *p = (part){.next = w->parts, .writer = w, .entry = w->parts ? w->parts->entry + 1 : 0};
    w->parts = p;
    const lks__zip_io io = {.read_at = read_part, .ctx = p, .bytes = bytes};
    return w->module->add(w->zip, name, &io, filling, why, sizeof why) == 0 ? LKS_OK
                                                                            : failed(w, why);
}

lks_status lks__zip_writer_finish(lks__zip_writer *w)
{
    char why[WHY_BYTES];
    return w->module->finish(w->zip, why, sizeof why) == 0 ? LKS_OK : failed(w, why);
}

void lks__zip_writer_take(lks__zip_writer *w, unsigned char **data_p, size_t *bytes_p)
{
    *data_p = w->data;
    *bytes_p = w->bytes;
    w->data = NULL;
}

lks_status lks__zip_writer_close(lks__zip_writer *w, lks_status st)
{
    if (w->zip)
        w->module->close(w->zip);
    st = lks__sys_new_close(&w->file, st);
    while (w->parts) {
        part *p = w->parts;
        w->parts = p->next;
        free(p);
    }
    free(w->data);
    free(w);
    return st;
}
