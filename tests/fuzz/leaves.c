/* Hashes of gradients: leaves.bin, read to its end and cut by a resume. */
#include "report/record/leaves.h"

#include <unistd.h>

#include "fuzz.h"

const char *const fuzz_words[] = {"lks_laf1", NULL};

static void seed(uint64_t first, uint64_t n, int V, int A)
{
    uint64_t words[4 + 20 * (1 + 8)] = {UINT64_C(0x3166616c5f736b6c), first,
                                        (uint64_t)A << 32 | (uint32_t)V, LKS__LEAVES_BLOCK};
    for (uint64_t i = 0; i < n; i++)
        words[4 + i * (1 + (uint64_t)V)] = first + i;
    fuzz_seed(words, (4 + n * (1 + (uint64_t)V)) * sizeof *words);
}

void fuzz_seeds(void)
{
    seed(0, 20, 8, 1);
    seed(7, 3, 1, 16);
    seed(5, 0, 8, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lks__leaves l;
    bool any = true;
    uint64_t next = 0, n = 0, cut = bytes > 0 ? data[bytes - 1] % 16 : 0;
    unlink(fuzz_path(LKS__LEAVES_FILE));
    fuzz_file(LKS__LEAVES_FILE, data, bytes);
    FUZZ_HOLDS(lks__leaves_open(fuzz_folder(), &l) == LKS_OK);
    while (lks__leaves_next(&l, &any) == LKS_OK && any) {
        FUZZ_HOLDS(l.last.V >= 1 && l.last.V <= 1024 && l.last.iter >= next);
        FUZZ_HOLDS(l.last.at <= bytes);
        next = l.last.iter + 1;
        n += l.last.iter < cut;
    }
    FUZZ_HOLDS(lks__leaves_close(&l) == LKS_OK);
    FUZZ_HOLDS(lks__leaves_resume(fuzz_folder(), cut, false, &l) == LKS_OK);
    lks__leaves_begin(&l, cut, 8, 1);
    FUZZ_HOLDS(lks__leaves_end(&l) == LKS_OK && lks__leaves_close(&l) == LKS_OK);
    FUZZ_HOLDS(lks__leaves_open(fuzz_folder(), &l) == LKS_OK);
    for (uint64_t i = 0; i <= n; i++)
        FUZZ_HOLDS(lks__leaves_next(&l, &any) == LKS_OK && any);
    FUZZ_HOLDS(lks__leaves_next(&l, &any) == LKS_OK && !any);
    lks__leaves_close(&l);
    return 0;
}
