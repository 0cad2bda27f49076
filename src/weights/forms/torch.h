/* weights/forms/torch.h - what the forms that PyTorch writes have in common. */
#ifndef LKS_WEIGHTS_FORMS_TORCH_H
#define LKS_WEIGHTS_FORMS_TORCH_H

#include "files/pickle/torch/torchfile.h"
#include "weights/forms/form.h"

/* One more tensor: a value of the file, by the name that it has there, shown without `prefix`. Only
 * F32, F16 and BF16 are taken. */
lks_status lks__weights_torch_add(lks__weights *w, const char *name, const char *prefix,
                                  const lks__pickle_value *value, bool tied);
/* Elements of a tensor that was added so. */
lks_status lks__weights_torch_read(lks__weights *w, lks__torchfile *file,
                                   const lks__weights_tensor *t, uint64_t first, size_t n,
                                   float *out);
/* Key i of a dict as a string, which may not hold a 0 byte. NULL: it is no such text. The text is
 * valid until the next call of this thread. */
const char *lks__weights_torch_key(const lks__pickle_value *dict, size_t i);

#endif
