/* data/text/sentencepiece/spm_map.h - the table of characters in a SentencePiece model: rules that
 * rewrite a text before it is cut into tokens.
 *
 * Layout, little-endian: uint32 number of bytes of the trie | the trie, a double array of uint32
 * units | the replacement texts, each with a 0 byte at its end. */
#ifndef LKS_DATA_TEXT_SENTENCEPIECE_SPM_MAP_H
#define LKS_DATA_TEXT_SENTENCEPIECE_SPM_MAP_H

#include <stddef.h>

#include "base/status.h"

/* Check that SentencePiece can safely look up any text: no lookup leaves the table, runs in a
 * circle or meets more rules than SentencePiece has room for. ERR_FORMAT if the table is damaged;
 * records no message: *at_p is the position in the table, *why_p (static) the reason. ERR_NOMEM. */
lks_status lks__spm_map_check(const void *map, size_t bytes, size_t *at_p, const char **why_p);

#endif
