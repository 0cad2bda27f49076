/* The safetensors container. */
#include "files/safetensors/safetensors.h"

#include <stdlib.h>

#include "fuzz.h"

const char *const fuzz_words[] = {
    "\"dtype\":",
    "\"F32\"",
    "\"BF16\"",
    "\"U8\"",
    "\"BOOL\"",
    "\"shape\":",
    "[0]",
    "[]",
    "\"data_offsets\":",
    "[0,0]",
    "\"__metadata__\":",
    "\"xxh3:a\":",
    "{",
    "}",
    "[",
    "]",
    ",",
    "18446744073709551615",
    "4294967296",
    "9223372036854775807",
    "\\u0000",
    "-1",
    "1.0",
    NULL,
};

void fuzz_seeds(void)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    const lks__st_tensor tensors[] = {
        {.name = "a", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .data = x, .bytes = 24},
        {.name = "b.c", .dtype = "BF16", .n_dims = 1, .shape = {4}, .data = x, .bytes = 8},
        {.name = "scalar", .dtype = "U8", .n_dims = 0, .data = x, .bytes = 1},
        {.name = "none", .dtype = "I64", .n_dims = 3, .shape = {2, 0, 5}, .bytes = 0},
    };
    json_t *metadata = json_pack("{s:s}", "kernels", "00112233445566ff");
    const char *path = fuzz_path("seed.safetensors");
    FUZZ_HOLDS(lks__st_write(path, tensors, 4, metadata) == LKS_OK);
    fuzz_seed_file(path);
    static const char plain[] = "\x3a\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[4],"
                                "\"data_offsets\":[0,4]}}              abcd";
    fuzz_seed(plain, sizeof plain - 1);
    json_decref(metadata);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_file("x.safetensors", data, bytes);
    lks__st_file *file = NULL;
    if (lks__st_open(path, &file) == LKS_OK) {
        uint64_t all = 0;
        lks__st_metadata(file, "kernels");
        for (size_t i = 0; i < lks__st_count(file); i++) {
            const lks__st_tensor *t = lks__st_get(file, i);
            FUZZ_HOLDS(t->bytes <= bytes && t->n_dims <= LKS__ST_MAX_DIMS);
            FUZZ_HOLDS(lks__st_find(file, t->name) == t);
            void *out = malloc(t->bytes + 1);
            lks__st_read(file, t, out);
            free(out);
            all += t->bytes;
        }
        FUZZ_HOLDS(all <= bytes);
        lks__st_verify(file, NULL);
        lks__st_close(file);
    }
    if (lks__st_parse("x", (const char *)data, bytes, &file) == LKS_OK)
        lks__st_close(file);
    return 0;
}
