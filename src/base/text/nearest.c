#include "base/text/nearest.h"

#include <stdint.h>
#include <string.h>

enum { MAX_WORD = 64 };

static char fold(char c)
{
    if (c == '-')
        return '_';
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Edit distance with swaps of neighbours (optimal string alignment), row by row; d1 and d2 are the
 * two rows before this one. */
static size_t distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t rows[3][MAX_WORD + 1];
    size_t *d2 = rows[0], *d1 = rows[1], *d0 = rows[2];
    for (size_t j = 0; j <= n_b; j++)
        d1[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        d0[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = d1[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            if (d1[j] + 1 < best)
                best = d1[j] + 1;
            if (d0[j - 1] + 1 < best)
                best = d0[j - 1] + 1;
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]) && d2[j - 2] + 1 < best)
                best = d2[j - 2] + 1;
            d0[j] = best;
        }
        size_t *oldest = d2;
        d2 = d1;
        d1 = d0;
        d0 = oldest;
    }
    return d1[n_b];
}

const char *lks__nearest(const char *word, const char *const *names, size_t n_names)
{
    const char *best = NULL;
    size_t n_word = strnlen(word, MAX_WORD), best_distance = SIZE_MAX;
    for (size_t i = 0; i < n_names; i++) {
        if (!names[i])
            continue;
        size_t n_name = strnlen(names[i], MAX_WORD);
        size_t d = distance(word, n_word, names[i], n_name);
        /* Allow a third of the letters to differ; in short words, one. */
        size_t longer = n_word > n_name ? n_word : n_name;
        if (d <= (longer < 6 ? 1 : longer / 3) && d < best_distance) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}
