/* The writer of artifacts as lockstep had it before: a safetensors container under zlib. Its files
 * stay readable. */
#pragma once

#include "weights/artifact/artifact.h"

lks_status old_artifact_write(const char *path, const lks__table *table, const float *params,
                              const lks__artifact_about *about);
