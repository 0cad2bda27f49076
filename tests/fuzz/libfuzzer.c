/* What libFuzzer needs besides a target: its first call makes what the target stands on (a
 * checkpoint, the folder). The seeds are its corpus only where they are given to it as files. */
#include "fuzz.h"

void fuzz_seed(const void *data, size_t bytes)
{
    (void)data, (void)bytes;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_folder();
    fuzz_seeds();
    return 0;
}
