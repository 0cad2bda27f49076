/* The record of fetched files' SHA-256. */
#include <string.h>

#include "data/fetch/sums.h"
#include "fuzz.h"

#define SUM "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const char *const fuzz_words[] = {"  input.txt", "\n", SUM, " ", "  ", NULL};

void fuzz_seeds(void)
{
    fuzz_seed_text(SUM "  input.txt\n");
    fuzz_seed_text(SUM "  a/b.bin\n" SUM "  input.txt\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char sum[LKS__SUM], again[LKS__SUM];
    fuzz_file(LKS__SUMS_FILE, data, bytes);
    if (lks__sums_find(fuzz_folder(), "input.txt", sum) != LKS_OK)
        return 0;
    FUZZ_HOLDS(sum[0] == '\0' || strspn(sum, "0123456789abcdef") == LKS__SUM - 1);
    if (sum[0] == '\0' && lks__sums_add(fuzz_folder(), "input.txt", SUM) == LKS_OK)
        FUZZ_HOLDS(lks__sums_find(fuzz_folder(), "input.txt", again) == LKS_OK &&
                   strcmp(again, SUM) == 0);
    return 0;
}
