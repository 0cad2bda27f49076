/* data/prep/input/texts.h - the input of `lockstep prep`: files, the files of folders, standard
 * input. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#define LKS__TEXTS_STDIN "-"

enum { LKS__TEXT_HEAD = 8192 }; /* a file with a NUL byte in its first bytes is binary */

typedef struct lks__text_file {
    char *path;     /* also for messages */
    uint64_t bytes; /* size when listed; bytes appended later aren't read */
    bool is_jsonl;  /* a document per line; otherwise the file is plain text */
    dev_t dev;      /* with `ino`: the same for two names of one file */
    ino_t ino;
} lks__text_file;

/* A folder's entry that is skipped. */
typedef struct lks__text_left {
    char *path;
    const char *why; /* "hidden", "binary", "gzip", … */
} lks__text_left;

typedef struct lks__texts {
    lks__text_file *files; /* [n] */
    size_t n, room;
    uint64_t bytes;       /* of all files */
    int spool;            /* standard input as a file; -1: not used */
    size_t spooled;       /* its index in `files` */
    lks__text_left *left; /* [n_left], by path */
    size_t n_left, left_room;
} lks__texts;

/* List the files of `input`, which contains a file or folder per line. For a folder: its regular
 * files and those of all its subfolders, in the byte order of their paths. Skipped are names that
 * begin with a dot, binary files (a NUL byte in the first 8 KiB, or a compressed file), links to
 * folders, which could lead in circles, and folders of runs and of tokens. "-" is standard input;
 * unless it is a file, it is copied to a file without a name in TMPDIR (or /tmp). A file NAME.jsonl
 * or NAME.ndjson, in letters of either case, contains JSON lines, and so does standard input if
 * `stdin_lines`. ERR_IO if a name can't be read, or is neither a regular file nor a folder. */
lks_status lks__texts_open(const char *input, bool stdin_lines, lks__texts *texts);
void lks__texts_close(lks__texts *texts); /* also after a failure, and for {.spool = -1} */

/* Open file i; the caller closes *fd_p. */
lks_status lks__texts_file(const lks__texts *texts, size_t i, int *fd_p);
/* Bytes [at, at + n) of file i, which is open as `fd`. ERR_IO if it has shrunk. */
lks_status lks__texts_read(const lks__texts *texts, size_t i, int fd, uint64_t at, size_t n,
                           char *to);
