/* zip_file.h - zip archives for tests, sound or with lies. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* An entry; the fields after `bytes` are 0 in a sound archive. */
typedef struct lks_zip_entry {
    const char *name;
    const void *data;
    size_t bytes;
    uint32_t crc_change;  /* xor */
    uint16_t method;      /* 0: stored */
    uint16_t flags;       /* 1: encrypted */
    int64_t size_change;  /* of both sizes, in both headers */
    int64_t moved;        /* in the directory: how far before its place the entry is said to be */
    int64_t plain_change; /* of the size after decompression */
} lks_zip_entry;

/* Write the archive into out[room]; returns its size, or 0 if that is too small. */
size_t lks_zip_make(const lks_zip_entry *parts, size_t n, void *out, size_t room);
