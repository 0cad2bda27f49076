/* weights/forms/torch.h - functions shared by the forms that PyTorch writes. */
#pragma once

#include "files/pickle/torch/torchfile.h"
#include "weights/forms/form.h"

/* Add a tensor: a value of the file, under its name there. Accepts only F32, F16 and BF16. */
lks_status lks__weights_torch_add(lks__weights *w, const char *name, const lks__pickle_value *value,
                                  bool tied);
/* Read elements of a tensor that lks__weights_torch_add() added. */
lks_status lks__weights_torch_read(lks__torchfile *file, const lks__weights_tensor *t,
                                   uint64_t first, size_t n, float *out);
/* Key i of a dict as a string; NULL if it isn't text or contains a 0 byte. The string is valid
 * until the next call in this thread. */
const char *lks__weights_torch_key(const lks__pickle_value *dict, size_t i);
