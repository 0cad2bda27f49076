/* data/fetch/download.h - one file from a server or a folder, by way of a partial file that a later
 * call continues. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__download {
    const char *from;     /* an http or https address, or the path of a file */
    const char *path;     /* of the complete file */
    const char *part;     /* partial file; PART.tag describes its source */
    uint64_t bytes, most; /* exact size or 0, and the largest */
    void (*progress)(void *ctx, uint64_t done, uint64_t all); /* or NULL */
    lks_status (*verify)(void *ctx);                          /* check the complete partial file */
    void *ctx;
} lks__download;

/* True for http:// and https:// */
bool lks__download_is_web(const char *from);

/* OK if libcurl's module can be loaded. */
lks_status lks__download_available(void);

/* Bring all bytes into the partial file, sync, verify and rename it, all under its lock. A file of
 * another size, a server that announces no size, and more bytes than announced are ERR_FORMAT; the
 * partial file is then removed. After a broken connection, ERR_IO, and after a stop it stays, and
 * the next call continues it, if the server's file is still the same. */
lks_status lks__download_get(const lks__download *d);
