/* files/zip/unzip.h - a file compressed by zlib, decompressed piece by piece. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

#include "base/status.h"

enum {
    LKS__UNZIP_PIECE = 1 << 16,
    LKS__UNZIP_RATIO = 1032 /* deflate's limit: a match of 258 bytes needs at least 2 bits */
};

typedef struct lks__unzip {
    int fd;
    char shown[512];         /* the path, safe to print */
    uint64_t file_bytes, at; /* at: bytes read so far */
    z_stream z;
    bool inflating;
    unsigned char piece[LKS__UNZIP_PIECE];
} lks__unzip;

/* `s` is zeroed. Always close it with lks__unzip_close(). */
lks_status lks__unzip_open(const char *path, lks__unzip *s);
void lks__unzip_close(lks__unzip *s);
/* ERR_FORMAT: "FILE is not a sound artifact: WHAT". */
lks_status lks__unzip_bad(const lks__unzip *s, const char *what);
/* Decompress until out[bytes] is full or the stream ends; *got_p is the number of bytes. */
lks_status lks__unzip_some(lks__unzip *s, void *out, size_t bytes, size_t *got_p, bool *end_p);
lks_status lks__unzip_exactly(lks__unzip *s, void *out, size_t bytes);
/* Check that the stream ends here with the right checksum, and that the file ends, too. */
lks_status lks__unzip_end(lks__unzip *s);
