/* artifact/artifact.h - a model in one small file, as parameter-golf counts it: int8 weights
 * (artifact/quantize.h) in a safetensors container, the whole under zlib at level 9.
 *
 * The container's tensors are those of the table, in its order: NAME as I8, F16 or F32, and behind
 * an I8 one NAME.scale. Its metadata: "quant_format"; "dtype", what all tensors were and become
 * again; "iter"; and, as JSON, "settings" and "tokenizer" of the checkpoint, so that no other file
 * is needed to use the model. Nothing in it is about the machine: equal models give equal files
 * (with one version of zlib). */
#ifndef LKS_ARTIFACT_ARTIFACT_H
#define LKS_ARTIFACT_ARTIFACT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/table.h"

enum { LKS__ARTIFACT_LIMIT = 16000000 }; /* of a submission: this file and the code, in bytes */

typedef struct lks__artifact_about {
    uint64_t iter;
    const json_t *settings;  /* an object */
    const json_t *tokenizer; /* an object, or NULL */
} lks__artifact_about;

/* The names are the script's. */
typedef struct lks__artifact_stats {
    uint64_t param_count, num_tensors;
    uint64_t num_float_tensors;     /* that became int8 */
    uint64_t baseline_tensor_bytes; /* as they were: fp32 */
    uint64_t int8_payload_bytes;    /* as they lie in the container, without its header */
    uint64_t container_bytes;       /* before zlib */
    uint64_t file_bytes;
} lks__artifact_stats;

/* What the rules make of a table, whatever the values: all but the last two. */
void lks__artifact_count(const lks__table *table, lks__artifact_stats *stats);

/* Write `params` (an arena) to `path`, under a temporary name first. ERR_NAN names the tensor that
 * can't be represented; ERR_IO, ERR_NOMEM, ERR_SUPPORT. `stats` may be NULL. */
lks_status lks__artifact_write(const char *path, const lks__table *table, const float *params,
                               const lks__artifact_about *about, lks__artifact_stats *stats);

/* The script's lines about sizes, each ended by a newline: of the weights as a checkpoint has them,
 * of the code, of the artifact. */
enum { LKS__ARTIFACT_LINES = 600 };
void lks__artifact_lines(const lks__artifact_stats *stats, uint64_t model_bytes,
                         uint64_t code_bytes, char out[LKS__ARTIFACT_LINES]);

/* Whether artifact and code are over the limit; then `out` says so, loudly, without a newline. */
bool lks__artifact_too_large(const lks__artifact_stats *stats, uint64_t code_bytes, char out[200]);

/* Bytes of the regular file at `path`, and of all files of `list`, one to a line ("": 0). ERR_IO
 * names the one that can't be counted. */
lks_status lks__artifact_file_bytes(const char *path, uint64_t *bytes_p);
lks_status lks__artifact_code_bytes(const char *list, uint64_t *bytes_p);

/* --- and back: open, make the table of `settings`, check, allocate, read, close ----------------
 */

typedef struct lks__artifact {
    uint64_t iter;
    json_t *settings;  /* an object, owned; its members are not checked yet */
    json_t *tokenizer; /* an object, owned, or NULL */
    struct lks__artifact_stream *stream;
} lks__artifact;

/* Decompress and check the header, which is at most 4 MiB, and nothing more. ERR_IO, ERR_FORMAT
 * name file and reason. */
lks_status lks__artifact_open(const char *path, lks__artifact *artifact);
void lks__artifact_close(lks__artifact *artifact); /* a zeroed one is fine */

/* Every tensor of `table` is there with its name, type and shape, nothing else is, and the file is
 * long enough for that much data: so the table's arena may be allocated. ERR_FORMAT. */
lks_status lks__artifact_check(const lks__artifact *artifact, const lks__table *table);

/* Decompress the tensors into a zeroed arena, once; never more than lks__artifact_check() allows.
 * The file has to end with them. ERR_FORMAT, ERR_IO, ERR_NOMEM: the arena is then undefined. */
lks_status lks__artifact_read(lks__artifact *artifact, const lks__table *table, float *params);

#endif
