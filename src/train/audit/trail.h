/* train/audit/trail.h - the entries of a step's trail (report/diff/trails.h), while it is executed
 * again. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "files/safetensors/safetensors.h"
#include "report/diff/trails.h"
#include "train/result.h"
#include "train/setup/trainer.h"

/* `take` gets each entry in order, and the tensor in the host's memory that the entry's hash is of,
 * or NULL. Both are borrowed. ERR_STOPPED, without a text, ends the execution. */
typedef struct lks__trail {
    lks_status (*take)(void *ctx, const json_t *entry, const lks__st_tensor *tensor);
    void *ctx;
} lks__trail;

/* The head, weights and moments. leaf -1: the trail is of all virtual ranks. */
lks_status lks__trail_begin(const lks__trail *trail, lks__trainer *t, int leaf);
/* Compute the gradients of virtual ranks [first, end) one by one, after begin_step(). Gradients in
 * the trail are sums over a virtual rank's micro-batches up to the entry's. *hash_p is the hash of
 * the last one, if the device's memory is the host's. */
lks_status lks__trail_leaves(const lks__trail *trail, lks__trainer *t, int first, int end,
                             uint64_t *hash_p);
/* The mean gradient, its norm, the rate, and the new moments and weights. Call it before the next
 * step. */
lks_status lks__trail_update(const lks__trail *trail, lks__trainer *t, const lks__step_result *r);
lks_status lks__trail_end(const lks__trail *trail, lks__trainer *t);

/* `lockstep audit --trail=FILE`. */
typedef struct lks__trail_file {
    const char *path; /* borrowed */
    FILE *file;       /* to `text` */
    char *text;
    size_t bytes;
    bool complete; /* `text` has the trail's end */
    lks__trail trail;
} lks__trail_file;

/* Collect a trail in memory for a new file, or in place of an older trail. ERR_CONFIG: the file
 * exists and isn't a trail. ERR_IO names it. Don't move `t` while it is open. */
lks_status lks__trail_file_open(const char *path, lks__trail_file *t);
/* Write the file if the trail is complete. A zeroed one does nothing. */
lks_status lks__trail_file_close(lks__trail_file *t);
