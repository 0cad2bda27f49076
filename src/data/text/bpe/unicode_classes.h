/* data/text/bpe/unicode_classes.h - the classes of characters by which GPT-2's text is split:
 * \p{L}, \p{N} and \s of regular expressions, as tiktoken has them (Unicode 16.0). The tables are
 * made by scripts/unicode_classes.py. */
#ifndef LKS_DATA_TEXT_BPE_UNICODE_CLASSES_H
#define LKS_DATA_TEXT_BPE_UNICODE_CLASSES_H

#include <stddef.h>
#include <stdint.h>

typedef struct lks__code_points {
    uint32_t first, last;
} lks__code_points;

extern const lks__code_points lks__unicode_letters[], lks__unicode_numbers[], lks__unicode_spaces[];
extern const size_t lks__unicode_n_letters, lks__unicode_n_numbers, lks__unicode_n_spaces;

#endif
