/* data/text/byte_tokens.h - parameter-golf's single-byte tokens (PureByteTokenizer in its data
 * script): 0 is padding, 1 BOS, 2 EOS, 3 unknown, and 4 + b the byte b. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { LKS__BYTE_TOKENS = 260, LKS__BYTE_BOS = 1, LKS__BYTE_FIRST = 4 };

/* Encode any text; one id per byte. */
void lks__byte_tokens(const char *text, size_t bytes, int32_t *ids);

/* *found_p: true if the file at `path` is the data script's description of this tokenizer
 * (fineweb_pure_byte_260.json). ERR_FORMAT if it has other numbers. */
lks_status lks__byte_tokens_at(const char *path, bool *found_p);
