/* For libFuzzer: its first call sets up what the target needs (a checkpoint, the folder). The seeds
 * are its corpus only if they are passed to it as files. */
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
