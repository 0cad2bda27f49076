/* meta.json, and the text that it encodes and decodes. */
#include <stdlib.h>

#include "base/text/utf8.h"
#include "data/text/meta.h"
#include "fuzz.h"

const char *const fuzz_words[] = {
    "\"kind\"",
    "\"char\"",
    "\"sentencepiece\"",
    "\"ids\"",
    "\"vocab_size\":",
    "\"chars\":",
    "\"file\":\"sp.model\"",
    "\"hash\":\"0123456789abcdef\"",
    "\\u0000",
    "\\ud83d\\ude00",
    "\\ud800",
    "[",
    "{",
    "}",
    "]",
    ",",
    "null",
    "1e400",
    "\xf0\x9f\x98\x80",
    "\xc3\xa9",
    NULL,
};

void fuzz_seeds(void)
{
    fuzz_seed_text("{\"kind\":\"char\",\"vocab_size\":6,\"chars\":\"\\u0000\\na\xc3\xa9\xe2\x82\xac"
                   "\xf0\x9f\x98\x80\"}");
    fuzz_seed_text("{\"kind\":\"char\",\"vocab_size\":3,\"chars\":\"\\n b\"}");
    fuzz_seed_text("{\"kind\":\"ids\",\"vocab_size\":50304}");
    fuzz_seed_text("{\"kind\":\"bytes\",\"vocab_size\":260}");
    fuzz_seed_text("{\"kind\":\"sentencepiece\",\"vocab_size\":1024,\"file\":\"sp.model\","
                   "\"hash\":\"0123456789abcdef\"}");
}

static void use(const lks__meta *meta, const uint8_t *data, size_t bytes)
{
    char text[16];
    int32_t *ids = NULL;
    size_t n = 0;
    uint32_t last = meta->vocab_size < 300 ? meta->vocab_size : 300;
    for (uint32_t id = 0; id <= last; id++)
        FUZZ_HOLDS(lks__meta_decode(meta, (int32_t)id, text) <= 12);
    lks__meta_decode(meta, -1, text);
    lks__meta_decode(meta, INT32_MAX, text);
    if (lks__meta_encode(meta, (const char *)data, bytes, &ids, &n) == LKS_OK)
        for (size_t i = 0; i < n; i++)
            FUZZ_HOLDS(ids[i] >= 0 && (uint32_t)ids[i] < meta->vocab_size);
    free(ids);
    if (meta->chars != NULL) { /* all of its characters have ids */
        for (uint32_t id = 0; id < last; id++) {
            int32_t *own = NULL;
            size_t length = lks__utf8_encode(meta->chars[id], text);
            if (meta->chars[id] != '\r') {
                FUZZ_HOLDS(lks__meta_encode(meta, text, length, &own, &n) == LKS_OK);
                FUZZ_HOLDS(n == 1 && own[0] == (int32_t)id);
            }
            free(own);
        }
    }
    json_t *json = lks__meta_to_json(meta);
    lks__meta back = {0};
    FUZZ_HOLDS(json != NULL && lks__meta_from_json(json, "x", &back) == LKS_OK);
    FUZZ_HOLDS(back.vocab_size == meta->vocab_size);
    lks__meta_free(&back);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lks__meta meta = {0};
    json_t *hashes;
    bool found = false;
    fuzz_file("meta.json", data, bytes);
    if (lks__meta_hashes(fuzz_folder(), &hashes) == LKS_OK)
        json_decref(hashes);
    if (lks__meta_load(fuzz_folder(), &found, &meta) == LKS_OK) {
        FUZZ_HOLDS(found && meta.vocab_size >= 1);
        use(&meta, data, bytes);
        lks__meta_free(&meta);
    }
    return 0;
}
