/* lockstep_zip.so: see zip_module.h. */
#include "files/zip/zip_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

/* A source or a target of libzip. */
typedef struct stream {
    struct stream *next;
    lks__zip_io io;
    uint64_t at;        /* libzip's read position */
    uint64_t last_read; /* start of libzip's last read */
    uint64_t write_at;  /* libzip's write position */
    uint64_t written;   /* bytes in the file so far */
    zip_error_t error;
} stream;

typedef struct archive {
    stream file;
    stream *parts; /* the contents of new entries */
    zip_t *zip;
} archive;

static zip_int64_t stat_of(stream *a, void *data, zip_uint64_t bytes)
{
    if (bytes < sizeof(zip_stat_t))
        return -1;
    zip_stat_t *st = data;
    zip_stat_init(st);
    st->size = a->io.bytes;
    st->valid |= ZIP_STAT_SIZE;
    return sizeof *st;
}

static zip_int64_t read_some(stream *a, void *data, zip_uint64_t bytes)
{
    uint64_t left = a->io.bytes - a->at;
    size_t n = bytes < left ? (size_t)bytes : (size_t)left;
    a->last_read = a->at;
    int failed = n > 0 ? a->io.read_at(a->io.ctx, data, n, a->at) : 0;
    if (failed) {
        zip_error_set(&a->error, ZIP_ER_READ, failed);
        return -1;
    }
    a->at += n;
    return (zip_int64_t)n;
}

static zip_int64_t write_some(stream *a, const void *data, zip_uint64_t bytes)
{
    int failed = a->io.write_at(a->io.ctx, data, (size_t)bytes, a->write_at);
    if (failed) {
        zip_error_set(&a->error, ZIP_ER_WRITE, failed);
        return -1;
    }
    a->write_at += bytes;
    if (a->written < a->write_at)
        a->written = a->write_at;
    return (zip_int64_t)bytes;
}

/* Move the read or write position. */
static zip_int64_t seek_to(stream *a, uint64_t *at, uint64_t end, void *data, zip_uint64_t bytes)
{
    zip_int64_t to = zip_source_seek_compute_offset(*at, end, data, bytes, &a->error);
    if (to < 0)
        return -1;
    *at = (uint64_t)to;
    return 0;
}

/* libzip's callback for reading and writing. */
static zip_int64_t source(void *ctx, void *data, zip_uint64_t bytes, zip_source_cmd_t command)
{
    stream *a = ctx;
    const zip_int64_t reading = zip_source_make_command_bitmap(
        ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
        ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS, -1);
    const zip_int64_t writing = zip_source_make_command_bitmap(
        ZIP_SOURCE_BEGIN_WRITE, ZIP_SOURCE_WRITE, ZIP_SOURCE_SEEK_WRITE, ZIP_SOURCE_TELL_WRITE,
        ZIP_SOURCE_COMMIT_WRITE, ZIP_SOURCE_ROLLBACK_WRITE, ZIP_SOURCE_REMOVE, -1);
    switch (command) {
    case ZIP_SOURCE_OPEN:
        a->at = 0;
        return 0;
    case ZIP_SOURCE_READ:
        return read_some(a, data, bytes);
    case ZIP_SOURCE_SEEK:
        return seek_to(a, &a->at, a->io.bytes, data, bytes);
    case ZIP_SOURCE_TELL:
        return (zip_int64_t)a->at;
    case ZIP_SOURCE_STAT:
        return stat_of(a, data, bytes);
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&a->error, data, bytes);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
    case ZIP_SOURCE_BEGIN_WRITE:
    case ZIP_SOURCE_COMMIT_WRITE:
    case ZIP_SOURCE_ROLLBACK_WRITE:
    case ZIP_SOURCE_REMOVE:
        return 0;
    case ZIP_SOURCE_WRITE:
        return write_some(a, data, bytes);
    case ZIP_SOURCE_SEEK_WRITE:
        return seek_to(a, &a->write_at, a->written, data, bytes);
    case ZIP_SOURCE_TELL_WRITE:
        return (zip_int64_t)a->write_at;
    case ZIP_SOURCE_SUPPORTS:
        return a->io.write_at ? reading | writing : reading;
    default:
        zip_error_set(&a->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

static void reason(zip_error_t *error, char *why, size_t why_bytes)
{
    const int code = zip_error_code_zip(error);
    snprintf(why, why_bytes, "%s",
             code == ZIP_ER_MEMORY   ? ""
             : code == ZIP_ER_EXISTS ? "an entry occurs twice"
                                     : zip_error_strerror(error));
}

static void zip_module_close(void *zip)
{
    archive *a = zip;
    if (a->zip)
        zip_discard(a->zip);
    while (a->parts) {
        stream *p = a->parts;
        a->parts = p->next;
        zip_error_fini(&p->error);
        free(p);
    }
    zip_error_fini(&a->file.error);
    free(a);
}

static void *open_with(const lks__zip_io *io, int flags, char *why, size_t why_bytes)
{
    archive *a = calloc(1, sizeof *a);
    if (!a) {
        why[0] = '\0';
        return NULL;
    }
    zip_error_t error;
    zip_error_init(&error);
    zip_error_init(&a->file.error);
    a->file.io = *io;
    zip_source_t *src = zip_source_function_create(source, &a->file, &error);
    a->zip = src ? zip_open_from_source(src, flags, &error) : NULL;
    if (!a->zip) {
        reason(&error, why, why_bytes);
        if (src)
            zip_source_free(src);
        zip_module_close(a);
        a = NULL;
    }
    zip_error_fini(&error);
    return a;
}

/* CHECKCONS: the entries' own headers must agree with the directory. */
static void *zip_module_open(const lks__zip_io *io, char *why, size_t why_bytes)
{
    return open_with(io, ZIP_RDONLY | ZIP_CHECKCONS, why, why_bytes);
}

static uint64_t zip_module_count(void *zip)
{
    zip_int64_t n = zip_get_num_entries(((archive *)zip)->zip, 0);
    return n > 0 ? (uint64_t)n : 0;
}

/* libzip doesn't tell the offset of an entry's bytes. Note where it begins to read them. */
static int find_offset(archive *a, uint64_t i, uint64_t *offset_p)
{
    char byte;
    zip_file_t *file = zip_fopen_index(a->zip, i, 0);
    if (!file)
        return 1;
    zip_int64_t n = zip_fread(file, &byte, 1);
    *offset_p = a->file.last_read;
    zip_fclose(file);
    return n != 1;
}

static int zip_module_entry(void *zip, uint64_t i, lks__zip_raw *entry, char *why, size_t why_bytes)
{
    archive *a = zip;
    zip_stat_t st;
    const zip_uint64_t needed = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_CRC |
                                ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    memset(entry, 0, sizeof *entry);
    entry->name = zip_get_name(a->zip, i, ZIP_FL_ENC_RAW);
    int failed = !entry->name || zip_stat_index(a->zip, i, ZIP_FL_ENC_RAW, &st) < 0 ||
                 (st.valid & needed) != needed;
    if (!failed) {
        entry->bytes = st.size;
        entry->crc = st.crc;
        entry->stored = st.comp_method == ZIP_CM_STORE && st.encryption_method == ZIP_EM_NONE &&
                        st.comp_size == st.size;
        if (entry->stored && entry->bytes > 0)
            failed = find_offset(a, i, &entry->offset);
    }
    if (failed)
        reason(zip_get_error(a->zip), why, why_bytes);
    return failed;
}

/* ---- writing ----------------------------------------------------------------------------- */

enum {
    FILLING = 0x4246, /* "FB", PyTorch's extra field for alignment */
    FIRST_DAY = 0x21  /* 1980-01-01 */
};

static void *zip_module_create(const lks__zip_io *io, char *why, size_t why_bytes)
{
    return open_with(io, ZIP_CREATE | ZIP_TRUNCATE, why, why_bytes);
}

static int fill(zip_t *zip, zip_uint64_t i, unsigned filling)
{
    unsigned char letters[64];
    memset(letters, 'Z', sizeof letters);
    return filling > sizeof letters ||
           zip_file_extra_field_set(zip, i, FILLING, ZIP_EXTRA_FIELD_NEW, letters,
                                    (zip_uint16_t)filling, ZIP_FL_LOCAL) < 0;
}

static int zip_module_add(void *zip, const char *name, const lks__zip_io *io, unsigned filling,
                          char *why, size_t why_bytes)
{
    archive *a = zip;
    stream *part = calloc(1, sizeof *part);
    if (!part) {
        why[0] = '\0';
        return 1;
    }
    zip_error_init(&part->error);
    part->io = *io;
    part->next = a->parts;
    a->parts = part;
    zip_source_t *src = zip_source_function(a->zip, source, part);
    zip_int64_t i = src ? zip_file_add(a->zip, name, src, ZIP_FL_ENC_GUESS) : -1;
    if (i < 0 && src)
        zip_source_free(src);
    if (i < 0 || zip_set_file_compression(a->zip, (zip_uint64_t)i, ZIP_CM_STORE, 0) < 0 ||
        zip_file_set_dostime(a->zip, (zip_uint64_t)i, 0, FIRST_DAY, 0) < 0 ||
        fill(a->zip, (zip_uint64_t)i, filling)) {
        reason(zip_get_error(a->zip), why, why_bytes);
        return 1;
    }
    return 0;
}

static int zip_module_finish(void *zip, char *why, size_t why_bytes)
{
    archive *a = zip;
    if (zip_close(a->zip) < 0) {
        reason(zip_get_error(a->zip), why, why_bytes);
        return 1;
    }
    a->zip = NULL; /* zip_close() freed it */
    return 0;
}

LKS__MODULE_EXPORT const lks__zip_module lks__module_table = {
    LKS__ZIP_MODULE_VERSION, zip_module_open, zip_module_count,  zip_module_entry,
    zip_module_create,       zip_module_add,  zip_module_finish, zip_module_close};
