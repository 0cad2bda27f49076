/* train/procedure/families/list.c - the families of this program. */
#include "train/procedure/families/families.h"

const lks__family *const lks__families[] = {
    &lks__family_gpt2,
    &lks__family_golf,
    NULL,
};
