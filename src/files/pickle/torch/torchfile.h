/* files/pickle/torch/torchfile.h - what torch.save writes: a zip file with a pickle of everything,
 * TOP/data.pkl, and the memory of the tensors, TOP/data/0 and so on. */
#ifndef LKS_FILES_PICKLE_TORCH_TORCHFILE_H
#define LKS_FILES_PICKLE_TORCH_TORCHFILE_H

#include "files/pickle/pickle.h"

typedef struct lks__torchfile lks__torchfile; /* opaque; close with lks__torchfile_close() */

/* Open a file, or data[bytes] that stay valid; `name` starts the error sentence then (escaped).
 * Everything but the tensors' data is read and checked: lks__zip_open(), lks__pickle_parse(), and
 * that every storage has as many bytes as its entry. What torch.save wrote before PyTorch 1.6, and
 * TorchScript, are refused by name. */
lks_status lks__torchfile_open(const char *path, lks__torchfile **file_p);
lks_status lks__torchfile_open_bytes(const char *name, const void *data, size_t bytes,
                                     lks__torchfile **file_p);
void lks__torchfile_close(lks__torchfile *file); /* NULL does nothing */

const char *lks__torchfile_name(const lks__torchfile *file);              /* escaped */
const lks__pickle_value *lks__torchfile_root(const lks__torchfile *file); /* what was saved */

/* Read a tensor of this file, in C's order, into out[count * item_bytes]. The checksum of its whole
 * storage is checked. */
lks_status lks__torchfile_read(lks__torchfile *file, const lks__pickle_tensor *tensor, void *out);
/* The same for its elements [first, first + n). */
lks_status lks__torchfile_read_part(lks__torchfile *file, const lks__pickle_tensor *tensor,
                                    uint64_t first, size_t n, void *out);

/* True if the file begins like a zip file, or a pickle of torch.save. Never fails. */
bool lks__torchfile_looks_like(const char *path);

#endif
