/* data/spm_map.h - the table of characters in a SentencePiece model, which says how a text is
 * rewritten before it is cut into tokens.
 *
 * uint32 bytes of the trie | the trie, a double array of uint32 units | the texts to put in, each
 * with a 0 behind. All little-endian. */
#ifndef LKS_DATA_SPM_MAP_H
#define LKS_DATA_SPM_MAP_H

#include <stddef.h>

#include "base/status.h"

/* May SentencePiece look any text up in it? That is: no lookup leaves the table, goes round in it,
 * or meets more rules than SentencePiece has room for. ERR_FORMAT: it is damaged; nothing is
 * recorded, *at_p says where in the table, *why_p (static) why. ERR_NOMEM. */
lks_status lks__spm_map_check(const void *map, size_t bytes, size_t *at_p, const char **why_p);

#endif
