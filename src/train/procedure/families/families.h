/* train/procedure/families/families.h - the families of models; settings/family.h describes a
 * family. */
#pragma once

#include "settings/family.h"

extern const lks__family lks__family_gpt2, lks__family_golf;
