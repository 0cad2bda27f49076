/* Files of torch.save: zip archives; or an input that is no archive, as the pickle of one with two
 * storages. */
#include "files/pickle/torch/torchfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../zip_file.h"
#include "files/zip/zip.h"
#include "fuzz.h"

const char *const fuzz_words[] = {
    "PK\3\4",
    "PK\1\2",
    "PK\5\6",
    "PK\6\6",
    "PK\6\7",
    "x/data.pkl",
    "x/data/0",
    "x/byteorder",
    "little",
    "x/version",
    "\xff\xff\xff\xff",
    "\x08\x08",
    "K\6tQ",
    "ctorch\nFloatStorage\n",
    NULL,
};

static const char pickled[] =
    "\x80\2}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
    "X\1\0\0\0000X\3\0\0\0cpuK\6tQK\1K\2K\2\x86K\1K\2\x86\x89"
    "ccollections\nOrderedDict\n)RtRs.";
static const float six[] = {1, 2, 3, 4, 5, 6};
static uint8_t archive[FUZZ_MAX_INPUT + 4096];

static size_t wrap(const void *pickle, size_t bytes)
{
    const lks_zip_entry parts[] = {{.name = "x/data.pkl", .data = pickle, .bytes = bytes},
                                   {.name = "x/byteorder", .data = "little", .bytes = 6},
                                   {.name = "x/data/0", .data = six, .bytes = sizeof six},
                                   {.name = "x/data/1", .data = six, .bytes = 4},
                                   {.name = "x/version", .data = "3\n", .bytes = 2}};
    size_t n = lks_zip_make(parts, 5, archive, sizeof archive);
    FUZZ_HOLDS(n > 0);
    return n;
}

void fuzz_seeds(void)
{
    char path[512];
    setenv("LOCKSTEP_MODULES", FUZZ_MODULES, 1);
    if (lks__zip_available() != LKS_OK) {
        printf("SKIP: lacks libzip: %s\n", lks_last_error());
        fflush(stdout);
        exit(FUZZ_SKIPPED);
    }
    snprintf(path, sizeof path, "%s/tests/figures/pickle/tensors.pt", LKS_TEST_SOURCE_DIR);
    fuzz_seed_file(path);
    fuzz_seed(archive, wrap(pickled, sizeof pickled - 1));
    fuzz_seed(pickled, sizeof pickled - 1);
}

static void use(lks__torchfile *f, const lks__pickle_value *v, int depth)
{
    if (lks__pickle_kind_of(v) == LKS__PICKLE_DICT && depth < 3)
        for (size_t i = 0; i < lks__pickle_count(v) && i < 100; i++)
            use(f, lks__pickle_item(v, i), depth + 1);
    if (lks__pickle_kind_of(v) != LKS__PICKLE_TENSOR)
        return;
    const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
    void *out = malloc(t->count * t->storage->item_bytes + 1);
    lks__torchfile_read(f, t, out);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lks__torchfile *f = NULL;
    /* memory of its exact size, so that a read beyond its end is noticed */
    size_t n = bytes > 1 && data[0] == 'P' ? bytes : wrap(data, bytes);
    uint8_t *copy = malloc(n + 1);
    FUZZ_HOLDS(copy != NULL);
    memcpy(copy, bytes > 1 && data[0] == 'P' ? data : archive, n);
    if (lks__torchfile_open_bytes("x", copy, n, &f) == LKS_OK) {
        use(f, lks__torchfile_root(f), 0);
        lks__torchfile_close(f);
    }
    free(copy);
    return 0;
}
