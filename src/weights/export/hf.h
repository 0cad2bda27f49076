/* weights/export/hf.h - functions shared by the files of the format hf. */
#ifndef LKS_WEIGHTS_EXPORT_HF_H
#define LKS_WEIGHTS_EXPORT_HF_H

#include <jansson.h>

#include "weights/export/form.h"

/* Write the tokenizer's files into the folder, or print why there are none. *end_of_text_p: the id
 * of <|endoftext|>; -1: there is none. */
lks_status lks__export_hf_tokenizer(const lks__export_model *e, int32_t *end_of_text_p);

/* Write `json` as the folder's file NAME: keys sorted, two spaces. Takes the reference; NULL is
 * ERR_NOMEM. */
lks_status lks__export_hf_json(const lks__export_model *e, const char *name, json_t *json);

/* Remove a file of an earlier export, if it exists. */
lks_status lks__export_hf_remove(const lks__export_model *e, const char *name);

#endif
