/* data/read/hashes.h - hashes of whole token files. A digest samples files over 256 MiB, so it can
 * miss a changed token; a run on such files also records one hash over those that `prep` wrote to
 * meta.json (data/text/meta.h). */
#pragma once

#include "data/read/shards.h"

/* Combine the hashes in DIR/meta.json of all files of both splits (NULL: no such split) to 16 hex
 * digits. Reads no token. "" if the digest covers all files, or if a file's hash isn't recorded. */
lks_status lks__hashes_recorded(const char *dir, lks__shards *const data[2], char out[17]);

/* Read all files, and compare their combined hash with a recorded one. ERR_SUPPORT if it differs:
 * the message names a file that isn't as `prep` wrote it, if there is one. */
lks_status lks__hashes_check(const char *dir, lks__shards *const data[2], const char recorded[17]);
