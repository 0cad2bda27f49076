/* Artifacts for tests: a small golf model, its files, and files with wrong contents. */
#pragma once

#include "support.h"

#include "model/model.h"
#include "weights/artifact/artifact.h"
#include "weights/artifact/layout.h"

typedef struct forge_model {
    lks__model_config config;
    lks__table table;
    float *params;
    lks__artifact_about about;
} forge_model;

/* Its embedding, 1,100 x 64, is large enough to become int8; one row of it is zero, one small.
 * `seed` draws the parameters. Close with forge_close(). */
forge_model forge_open(uint32_t seed);

/* The config with another shape, and its table; without parameters. */
forge_model forge_shape(int n_embd, int vocab_size);
void forge_close(forge_model *m);

/* All entries of its container with zeros for data; the caller may change the list. */
typedef struct forge_entries {
    lks__st_tensor tensors[64];
    size_t n;
    lks__artifact_part parts[64];
} forge_entries;
void forge_list(const forge_model *m, forge_entries *list);

/* Metadata as the writer makes them; new reference. */
json_t *forge_metadata(const forge_model *m);

/* Compress header and data with zlib into `path`. Zeros replace data that are NULL; `extra` zero
 * bytes follow them. */
void forge_write(const char *path, const lks__st_tensor *tensors, size_t n, const json_t *metadata,
                 size_t extra);
/* Compress any bytes with zlib. */
void forge_compress(const char *path, const void *data, size_t bytes);
/* The decompressed contents of an artifact; the caller frees. */
char *forge_decompress(const char *path, size_t *bytes_p);

/* Open, check, read and close. */
lks_status forge_load(const char *path, const lks__table *table, float *params);
