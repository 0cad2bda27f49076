/* weights/artifact/artifact.h - a model in one small file, as parameter-golf counts it: int8
 * weights (weights/artifact/quantize.h), saved as train_gpt.py saves them and compressed by zlib.
 *
 * The file also has iteration, settings and tokenizer of the checkpoint, so the model needs no
 * other file. It doesn't depend on the machine: equal models give equal files (with one version of
 * zlib). The reader also accepts lockstep 0.1.0's own form (weights/artifact/layout.h). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/table/table.h"

enum {
    LKS__ARTIFACT_LIMIT = 16000000
}; /* limit of a submission, in bytes: this file and the code together */

typedef struct lks__artifact_about {
    uint64_t iter;
    const json_t *settings;  /* an object */
    const json_t *tokenizer; /* an object, or NULL */
} lks__artifact_about;

/* The names are those of the script. */
typedef struct lks__artifact_stats {
    uint64_t baseline_tensor_bytes; /* before, as fp32 */
    uint64_t int8_payload_bytes;    /* in the container, except its header */
    uint64_t container_bytes;       /* before zlib */
    uint64_t file_bytes;
} lks__artifact_stats;

/* Compute the numbers that follow from the table, whatever the values are: all but the last two. */
void lks__artifact_count(const lks__table *table, lks__artifact_stats *stats);

/* Write `params` (an arena) to `path`, first under a temporary name. ERR_NAN names the tensor that
 * can't be represented; ERR_IO, ERR_NOMEM, ERR_SUPPORT. `stats` may be NULL. */
lks_status lks__artifact_write(const char *path, const lks__table *table, const float *params,
                               const lks__artifact_about *about, lks__artifact_stats *stats);

/* The script's lines about sizes, each with a newline: of the weights in a checkpoint, of the code,
 * of the artifact. */
enum { LKS__ARTIFACT_LINES = 600 };
void lks__artifact_lines(const lks__artifact_stats *stats, uint64_t model_bytes,
                         uint64_t code_bytes, char out[LKS__ARTIFACT_LINES]);

/* True if artifact and code exceed the limit; then `out` is a warning, without a newline. */
bool lks__artifact_too_large(const lks__artifact_stats *stats, uint64_t code_bytes, char out[200]);

/* Bytes of the regular file at `path`, and of all files in `list`, one per line ("": 0). ERR_IO
 * names the file that can't be counted. */
lks_status lks__artifact_file_bytes(const char *path, uint64_t *bytes_p);
lks_status lks__artifact_code_bytes(const char *list, uint64_t *bytes_p);

/* --- reading: open, make the table from `settings`, check, allocate, read, close -------------- */

typedef struct lks__artifact {
    uint64_t iter;
    json_t *settings; /* an object, owned; its members are not checked yet. NULL: train_gpt.py wrote
                         the file, without its model's settings */
    json_t *tokenizer; /* an object, owned, or NULL */
    struct lks__artifact_stream *stream;
} lks__artifact;

/* Decompress and check only the header, which has at most 4 MiB. ERR_IO, ERR_FORMAT name file and
 * reason. */
lks_status lks__artifact_open(const char *path, lks__artifact *artifact);
void lks__artifact_close(lks__artifact *artifact); /* a zeroed one is fine */

/* False if it has no tensor of that name, or isn't in train_gpt.py's format. */
bool lks__artifact_shape(const lks__artifact *artifact, const char *name, uint64_t shape[2]);

/* Check that the file contains every tensor of `table` with its name, type and shape, and nothing
 * else, and that it is long enough for this data. Then the table's arena may be allocated.
 * ERR_FORMAT. */
lks_status lks__artifact_check(const lks__artifact *artifact, const lks__table *table);

/* Decompress the tensors into a zeroed arena, once; never more than lks__artifact_check() allows.
 * The file must end after them. ERR_FORMAT, ERR_IO, ERR_NOMEM: the arena is then undefined. */
lks_status lks__artifact_read(lks__artifact *artifact, const lks__table *table, float *params);
