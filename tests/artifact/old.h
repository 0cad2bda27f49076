/* The writer of artifacts as lockstep had it before: a safetensors container under zlib. Its files
 * stay readable. */
#ifndef LKS_TESTS_ARTIFACT_OLD_H
#define LKS_TESTS_ARTIFACT_OLD_H

#include "weights/artifact/artifact.h"

lks_status old_artifact_write(const char *path, const lks__table *table, const float *params,
                              const lks__artifact_about *about);

#endif
