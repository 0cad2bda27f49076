/* parameter-golf's artifact. The input is compressed by zlib, or used as the file itself if it
 * begins with zlib's first byte. */
#include "weights/artifact/artifact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "../artifact/old.h"
#include "files/zip/zip.h"
#include "fuzz.h"
#include "model/model.h"
#include "train/checkpoint.h"

const char *const fuzz_words[] = {
    "\"dtype\":",
    "\"F32\"",
    "\"F16\"",
    "\"I8\"",
    "\"shape\":",
    "\"data_offsets\":",
    "\"__metadata__\":",
    "\"quant_format\":",
    "\"settings\":",
    "\"iter\":\"1\"",
    "\\\"n_layer\\\":",
    "\\\"n_embd\\\":",
    "\\\"vocab_size\\\":",
    "65536",
    "16777216",
    "{",
    "}",
    "[",
    "]",
    ",",
    NULL,
};

static uint8_t plain[1 << 18];

/* before: in the form of before */
static void seed(int n_embd, int vocab_size, bool before)
{
    static lks__settings s;
    char text[16];
    lks__table table;
    lks__settings_defaults(&s);
    FUZZ_HOLDS(lks__settings_set(&s, LKS__CMD_TRAIN, "family", "golf", LKS__FROM_ARG, "family") ==
               LKS_OK);
    s.n_layer = 2;
    s.n_head = 2;
    s.num_kv_heads = 1;
    s.n_embd = n_embd;
    s.block_size = 16;
    s.vocab_size = vocab_size;
    snprintf(text, sizeof text, "%d", vocab_size);
    lks__model_config config = lks__state_model_config(&s, (uint32_t)vocab_size);
    FUZZ_HOLDS(lks__model_table(&config, &table) == LKS_OK);
    float *params = calloc(table.count, sizeof *params);
    FUZZ_HOLDS(params != NULL);
    for (size_t i = 0; i < table.count; i++)
        params[i] = (float)(i % 251) * 0.01f - 1.0f;
    json_t *settings = lks__settings_to_json(&s);
    json_t *tokenizer = json_pack("{s:s, s:i}", "kind", "ids", "vocab_size", vocab_size);
    const lks__artifact_about about = {7, settings, tokenizer};
    const char *path = fuzz_path("seed.ptz");
    FUZZ_HOLDS((before ? old_artifact_write(path, &table, params, &about)
                       : lks__artifact_write(path, &table, params, &about, NULL)) == LKS_OK);
    if (vocab_size < 100)
        fuzz_seed_file(path);
    FILE *f = fopen(path, "rb");
    FUZZ_HOLDS(f != NULL);
    static uint8_t packed[FUZZ_MAX_INPUT];
    size_t n = fread(packed, 1, sizeof packed, f);
    fclose(f);
    uLongf room = sizeof plain;
    FUZZ_HOLDS(uncompress(plain, &room, packed, n) == Z_OK);
    fuzz_seed(plain, room);
    json_decref(settings);
    json_decref(tokenizer);
    lks__table_free(&table);
    free(params);
}

void fuzz_seeds(void)
{
    setenv("LOCKSTEP_MODULES", FUZZ_MODULES, 1);
    if (lks__zip_available() != LKS_OK) {
        printf("SKIP: lacks libzip: %s\n", lks_last_error());
        fflush(stdout);
        exit(FUZZ_SKIPPED);
    }
    seed(4, 16, false);
    seed(4, 16, true);
    seed(16, 4200, false);
    seed(16, 4200, true); /* its embedding is large enough to become int8 */
}

static void use(lks__artifact *a)
{
    static lks__settings s;
    lks__table table;
    lks__settings_defaults(&s);
    if (a->settings == NULL)
        return;
    if (lks__settings_from_json(a->settings, "x", &s) != LKS_OK || s.vocab_size == 0)
        return;
    lks__model_config config = lks__state_model_config(&s, (uint32_t)s.vocab_size);
    if (lks__model_table(&config, &table) != LKS_OK)
        return;
    if (lks__artifact_check(a, &table) == LKS_OK) {
        float *params = calloc(table.count, sizeof *params);
        FUZZ_HOLDS(params != NULL);
        if (lks__artifact_read(a, &table, params) == LKS_OK)
            for (size_t i = 0; i < table.count; i++)
                FUZZ_HOLDS(params[i] - params[i] == 0.0f); /* finite */
        free(params);
    }
    lks__table_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t packed[FUZZ_MAX_INPUT + (FUZZ_MAX_INPUT >> 8) + 64];
    lks__artifact a;
    uLongf room = sizeof packed;
    const char *path;
    if (bytes > 0 && data[0] == 0x78) {
        path = fuzz_file("a.ptz", data, bytes);
    } else {
        FUZZ_HOLDS(compress2(packed, &room, data, bytes, 1) == Z_OK);
        path = fuzz_file("a.ptz", packed, room);
    }
    if (lks__artifact_open(path, &a) == LKS_OK) {
        use(&a);
        lks__artifact_close(&a);
    }
    return 0;
}
