/* data/fetch/sets.h - the data and weights that `lockstep fetch` knows: files, public addresses,
 * licences and, if they are known, sizes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The form of a file, which its first bytes and its size must match. */
typedef enum lks__fetch_form {
    LKS__FETCH_TEXT,
    LKS__FETCH_JSON,
    LKS__FETCH_SHARD, /* parameter-golf's tokens */
    LKS__FETCH_SAFETENSORS,
    LKS__FETCH_SENTENCEPIECE,
} lks__fetch_form;

typedef struct lks__fetch_file {
    const char *name; /* path below the folder and below the address; of shards: up to the number */
    lks__fetch_form form;
    bool shards;    /* as many as the caller wants: NAME000000.bin and so on */
    uint64_t bytes; /* exact size; 0: unknown */
    uint64_t most;  /* a larger file is refused */
} lks__fetch_file;

enum { LKS__FETCH_FILES = 4, LKS__FETCH_SHARDS = 10000, LKS__FETCH_NAME = 80 };

typedef struct lks__fetch_set {
    const char *name, *about, *licence;
    const char *address; /* of the folder that contains the files; NULL: see `instead` */
    const char *out;     /* the default folder; NULL: the model's folder (weights/choice/known.h) */
    const char *next;    /* a command that uses the files; %s is the folder */
    const char *instead; /* how to get the files if they have no address in a form we read */
    lks__fetch_file files[LKS__FETCH_FILES]; /* name NULL ends them */
} lks__fetch_set;

const lks__fetch_set *lks__fetch_set_of(const char *name); /* or NULL */
const char *lks__fetch_set_name(int i);                    /* NULL after the last */
bool lks__fetch_has_shards(const lks__fetch_set *set);     /* the caller chooses their number */

/* The i-th file of the set with `shards` shards: its path below the folder. Returns NULL after the
 * last. */
const lks__fetch_file *lks__fetch_file_at(const lks__fetch_set *set, int shards, int i,
                                          char name[LKS__FETCH_NAME]);
