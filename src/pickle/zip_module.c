/* lockstep_zip.so: see zip_module.h. */
#include "pickle/zip_module.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

typedef struct archive {
    lks__zip_io io;
    uint64_t at;        /* the position of libzip's reading */
    uint64_t last_read; /* where its last read began */
    zip_error_t error;
    zip_t *zip;
} archive;

static zip_int64_t stat_of(archive *a, void *data, zip_uint64_t bytes)
{
    if (bytes < sizeof(zip_stat_t))
        return -1;
    zip_stat_t *st = data;
    zip_stat_init(st);
    st->size = a->io.bytes;
    st->valid |= ZIP_STAT_SIZE;
    return sizeof *st;
}

static zip_int64_t read_some(archive *a, void *data, zip_uint64_t bytes)
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

/* libzip reads the file through this. */
static zip_int64_t source(void *ctx, void *data, zip_uint64_t bytes, zip_source_cmd_t command)
{
    archive *a = ctx;
    zip_int64_t to;
    switch (command) {
    case ZIP_SOURCE_OPEN:
        a->at = 0;
        return 0;
    case ZIP_SOURCE_READ:
        return read_some(a, data, bytes);
    case ZIP_SOURCE_SEEK:
        to = zip_source_seek_compute_offset(a->at, a->io.bytes, data, bytes, &a->error);
        if (to < 0)
            return -1;
        a->at = (uint64_t)to;
        return 0;
    case ZIP_SOURCE_TELL:
        return (zip_int64_t)a->at;
    case ZIP_SOURCE_STAT:
        return stat_of(a, data, bytes);
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&a->error, data, bytes);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
        return 0;
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
            ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS, -1);
    default:
        zip_error_set(&a->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

static void reason(zip_error_t *error, char *why, size_t why_bytes)
{
    bool twice = zip_error_code_zip(error) == ZIP_ER_EXISTS;
    snprintf(why, why_bytes, "%s", twice ? "an entry is there twice" : zip_error_strerror(error));
}

static void zip_module_close(void *zip)
{
    archive *a = zip;
    if (a->zip)
        zip_discard(a->zip);
    zip_error_fini(&a->error);
    free(a);
}

static void *zip_module_open(const lks__zip_io *io, char *why, size_t why_bytes)
{
    archive *a = calloc(1, sizeof *a);
    if (!a) {
        snprintf(why, why_bytes, "no memory");
        return NULL;
    }
    zip_error_t error;
    zip_error_init(&error);
    zip_error_init(&a->error);
    a->io = *io;
    zip_source_t *src = zip_source_function_create(source, a, &error);
    /* CHECKCONS: the entries' own headers must agree with the directory's */
    a->zip = src ? zip_open_from_source(src, ZIP_RDONLY | ZIP_CHECKCONS, &error) : NULL;
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

static uint64_t zip_module_count(void *zip)
{
    zip_int64_t n = zip_get_num_entries(((archive *)zip)->zip, 0);
    return n > 0 ? (uint64_t)n : 0;
}

/* libzip doesn't tell where an entry's bytes begin. They do where it begins to read them. */
static int find_offset(archive *a, uint64_t i, uint64_t *offset_p)
{
    char byte;
    zip_file_t *file = zip_fopen_index(a->zip, i, 0);
    if (!file)
        return 1;
    zip_int64_t n = zip_fread(file, &byte, 1);
    *offset_p = a->last_read;
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

__attribute__((visibility("default"))) lks__zip_module_fn lks__zip_module_get;

const lks__zip_module *lks__zip_module_get(void)
{
    static const lks__zip_module module = {LKS__ZIP_MODULE_VERSION, zip_module_open,
                                           zip_module_count, zip_module_entry, zip_module_close};
    return &module;
}
