/* train/procedure/families/families.h - the families of models; settings/family.h describes a
 * family. */
#ifndef LKS_TRAIN_PROCEDURE_FAMILIES_FAMILIES_H
#define LKS_TRAIN_PROCEDURE_FAMILIES_FAMILIES_H

#include "settings/family.h"

extern const lks__family lks__family_gpt2, lks__family_golf;

#endif
