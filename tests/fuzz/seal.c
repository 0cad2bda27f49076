/* A run's seal, as a file of lines that is compared with another list. */
#include "train/audit/seal.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

#define A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define B "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char list[] = A "  metrics.jsonl\n" B "  leaves.bin\n" A "  data/train.bin\n";

const char *const fuzz_words[] = {A, B, "  ", "\n", "metrics.jsonl", "data/", NULL};

void fuzz_seeds(void)
{
    fuzz_seed_text(list);
    fuzz_seed_text("seal      " A "\n" B "  metrics.jsonl\n");
}

/* Number of lines that differ. */
static uint64_t differ(const char *sealed, const char *have)
{
    static FILE *nowhere;
    if (nowhere == NULL)
        nowhere = fopen("/dev/null", "w");
    lks__replay r = {.out = nowhere};
    lks__seal_compare(&r, sealed, have);
    return r.findings;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = strndup((const char *)data, bytes);
    FUZZ_HOLDS(text != NULL);
    const uint64_t n = differ(text, list);
    FUZZ_HOLDS((n == 0) <= (strstr(text, B "  leaves.bin") != NULL));
    differ(list, text);
    free(text);
    return 0;
}
