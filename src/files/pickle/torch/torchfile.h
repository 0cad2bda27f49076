/* files/pickle/torch/torchfile.h - files of torch.save: a zip file with a pickle of everything,
 * TOP/data.pkl, and the memory of the tensors, TOP/data/0 and so on. */
#pragma once

#include "files/pickle/pickle.h"

typedef struct lks__torchfile lks__torchfile; /* opaque; close with lks__torchfile_close() */

/* Open a file, or data[bytes] that stay valid; `name` (escaped) then starts the error message.
 * Reads and checks everything but the tensors' data, as lks__zip_open() and lks__pickle_parse() do,
 * and that every storage has as many bytes as its entry. Files of PyTorch before 1.6 and
 * TorchScript are refused with a message that names them. */
lks_status lks__torchfile_open(const char *path, lks__torchfile **file_p);
lks_status lks__torchfile_open_bytes(const char *name, const void *data, size_t bytes,
                                     lks__torchfile **file_p);
void lks__torchfile_close(lks__torchfile *file); /* NULL does nothing */

const lks__pickle_value *lks__torchfile_root(const lks__torchfile *file); /* the saved value */

/* Read a tensor of this file, in C order, into out[count * item_bytes]. Checks the checksum of its
 * whole storage. */
lks_status lks__torchfile_read(lks__torchfile *file, const lks__pickle_tensor *tensor, void *out);
/* Read its elements [first, first + n). */
lks_status lks__torchfile_read_part(lks__torchfile *file, const lks__pickle_tensor *tensor,
                                    uint64_t first, size_t n, void *out);

/* True if the file begins like a zip file or a pickle of torch.save. Never fails. */
bool lks__torchfile_looks_like(const char *path);
