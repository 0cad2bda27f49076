/* data/text/byte_tokens.h - parameter-golf's tokens of single bytes (PureByteTokenizer in its data
 * script): 0 is padding, 1 BOS, 2 EOS, 3 unknown, and 4 + b the byte b. */
#ifndef LKS_DATA_TEXT_BYTE_TOKENS_H
#define LKS_DATA_TEXT_BYTE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { LKS__BYTE_TOKENS = 260, LKS__BYTE_BOS = 1, LKS__BYTE_FIRST = 4 };

/* Any text to as many ids. */
void lks__byte_tokens(const char *text, size_t bytes, int32_t *ids);

/* Is the file at `path` the description of this tokenizer that the data script writes
 * (fineweb_pure_byte_260.json)? ERR_FORMAT if it is one with other numbers. */
lks_status lks__byte_tokens_at(const char *path, bool *found_p);

#endif
