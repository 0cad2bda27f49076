/* data/fetch/sums.h - SHA-256 of fetched files, in a folder's .sha256sums, which `sha256sum -c`
 * reads, too. The name begins with a dot, so that `prep` doesn't read it as a text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__SUMS_FILE ".sha256sums"
enum { LKS__SUM = 65 }; /* hexadecimal, with its 0 byte */

/* Find the recorded sum of `name`, a path below `folder`; "" if there is none. ERR_FORMAT names a
 * line that isn't 64 digits, two blanks and a name. */
lks_status lks__sums_find(const char *folder, const char *name, char sum[LKS__SUM]);
/* Record it; any earlier sum of the name stays, so find it first. */
lks_status lks__sums_add(const char *folder, const char *name, const char sum[LKS__SUM]);

/* Compute the sum of a file. progress() may be NULL. */
lks_status lks__sums_of(const char *path, void (*progress)(void *ctx, uint64_t done, uint64_t all),
                        void *ctx, char sum[LKS__SUM]);

/* True if the text begins with a sum and two blanks, after which a line has its name. */
bool lks__sums_line(const char *text);

/* Compute the sum of n bytes. */
void lks__sums_text(const char *text, size_t n, char sum[LKS__SUM]);
