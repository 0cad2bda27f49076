/* data/fetch/fetch.h - brings the files of a set (sets.h) into a folder: `lockstep fetch`. This is
 * the only code that contacts an address which isn't another rank's or node's. */
#pragma once

#include "base/status.h"
#include "data/fetch/sets.h"

typedef struct lks__fetch {
    const lks__fetch_set *set;
    const char *out;  /* folder, made if missing */
    const char *from; /* "": the set's address; or another address, or a folder */
    int shards;       /* number of training shards */
    /* Called with the file's path below `out`; `what`: "reading" or "hashing". */
    void (*progress)(const char *name, const char *what, uint64_t done, uint64_t all);
    void (*done)(const char *sentence); /* one sentence per file */
} lks__fetch;

/* Bring all files that are missing. A file gets its name when all of it is on disk, has the form
 * and size that the set states and the SHA-256 in OUT/.sha256sums, if that has one; otherwise the
 * sum is recorded. Files that exist are hashed, and a different sum is ERR_FORMAT. Other errors are
 * those of lks__download_get(); the message says how to get the file by hand. */
lks_status lks__fetch_all(const lks__fetch *fetch);
