/* files/pickle/torch/torchsave.h - writes files as torch.save does, so that torch.load reads them.
 *
 *     lks__emit *e = ...             the pickle, by files/pickle/emit.h;
 *                                    storages are counted from 0
 *     lks__torchsave_file(path, &what)    or _bytes(), into memory
 *
 * Storages begin at multiples of 64 bytes, and times are fixed: equal contents give equal files
 * (with one version of libzip). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "files/pickle/emit.h"

/* Put bytes [first, first + bytes) of a storage into `out`. */
typedef lks_status lks__torchsave_read(void *ctx, size_t storage, uint64_t first, void *out,
                                       size_t bytes);

typedef struct lks__torchsave_what {
    const lks__emit *pickle; /* from start to stop */
    const uint64_t *bytes;   /* of each storage */
    size_t n;
    lks__torchsave_read *read; /* each storage is read once, in order */
    void *ctx;
} lks__torchsave_what;

/* Write to `path`, first under a temporary name in the same folder. On failure no file is left.
 * ERR_SUPPORT, ERR_IO, ERR_NOMEM, and the errors of `read`. */
lks_status lks__torchsave_file(const char *path, const lks__torchsave_what *what);
/* Write into malloc'd memory, which the caller frees. */
lks_status lks__torchsave_bytes(const lks__torchsave_what *what, unsigned char **data_p,
                                size_t *bytes_p);
