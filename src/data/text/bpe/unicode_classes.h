/* data/text/bpe/unicode_classes.h - the character classes by which GPT-2 splits text: \p{L}, \p{N}
 * and \s of regular expressions, as in tiktoken (Unicode 16.0). scripts/unicode_classes.py
 * generates the tables. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct lks__code_points {
    uint32_t first, last;
} lks__code_points;

extern const lks__code_points lks__unicode_letters[], lks__unicode_numbers[], lks__unicode_spaces[];
extern const size_t lks__unicode_n_letters, lks__unicode_n_numbers, lks__unicode_n_spaces;
