/* files/zip/zip_module.h - the interface of the module lockstep_zip.so: libzip without its file
 * access. The module is loaded when a zip file is first read or written. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/system/module.h"

#define LKS__ZIP_MODULE_FILE "lockstep_zip.so"

enum { LKS__ZIP_MODULE_VERSION = 2 }; /* increase it with every change below */

/* Callbacks that read or write bytes. They return 0, or an errno. */
typedef struct lks__zip_io {
    int (*read_at)(void *ctx, void *out, size_t bytes, uint64_t offset);
    int (*write_at)(void *ctx, const void *data, size_t bytes, uint64_t offset);
    void *ctx;
    uint64_t bytes; /* readable bytes */
} lks__zip_io;

typedef struct lks__zip_raw {
    const char *name; /* belongs to the archive */
    uint64_t bytes;
    uint64_t offset; /* offset of its first byte in the file; 0 if empty */
    uint32_t crc;
    bool stored; /* neither compressed nor encrypted */
} lks__zip_raw;

/* Functions that can fail return NULL or nonzero and put the reason, cut to fit, into `why`; "" if
 * out of memory. */
typedef struct lks__zip_module {
    int version;
    void *(*open)(const lks__zip_io *io, char *why, size_t why_bytes);
    uint64_t (*count)(void *zip);
    int (*entry)(void *zip, uint64_t i, lks__zip_raw *entry, char *why, size_t why_bytes);
    /* A new archive: add entries, then finish, which reads their bytes from `io`. */
    void *(*create)(const lks__zip_io *io, char *why, size_t why_bytes);
    int (*add)(void *zip, const char *name, const lks__zip_io *io, unsigned filling, char *why,
               size_t why_bytes);
    int (*finish)(void *zip, char *why, size_t why_bytes);
    void (*close)(void *zip); /* for both kinds of archives */
} lks__zip_module;
