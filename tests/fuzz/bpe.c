/* A vocabulary as tokenizer.json, and text that it encodes: what comes out is what went in. */
#include "data/text/bpe/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

const char *const fuzz_words[] = {
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{",
    "\"merges\":[",
    "\"a b\"",
    "[\"a\",\"b\"]",
    "\"\xc4\xa0\"",
    "\":256",
    ",\"ab\":257",
    "}}",
    "null",
    "true",
    "\"added_tokens\":[{\"id\":7,",
    "\"content\":\"<|x|>\"",
    NULL,
};

/* The 256 bytes as GPT-2 spells them, "ab", "abc" and what follows. */
static void seed(const char *more, const char *merges)
{
    static char text[8192];
    size_t n = (size_t)snprintf(text, sizeof text,
                                "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                                "\"BPE\",\"vocab\":{");
    unsigned other = 0;
    for (unsigned c = 0; c < 256; c++) {
        const bool own = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"\\u%04x\":%u", c == 0 ? "" : ",",
                              own ? c : 0x100 + other, c);
        other += !own;
    }
    snprintf(text + n, sizeof text - n, "%s},\"merges\":[%s]}}", more, merges);
    fuzz_seed_text(text);
}

void fuzz_seeds(void)
{
    seed("", "");
    seed(",\"ab\":256,\"abc\":257,\"<|endoftext|>\":300", "\"a b\",[\"ab\",\"c\"]");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lks__bpe *bpe = NULL;
    if (lks__bpe_parse((const char *)data, bytes, "input", &bpe) != LKS_OK)
        return 0;
    lks__bpe_work *work = lks__bpe_work_open();
    int32_t *ids = malloc((bytes + 1) * sizeof *ids);
    size_t n = 0, at = 0, length;
    FUZZ_HOLDS(work != NULL && ids != NULL);
    FUZZ_HOLDS(lks__bpe_encode(bpe, work, (const char *)data, bytes, ids, &n) == LKS_OK);
    for (size_t i = 0; i < n; i++, at += length) {
        const char *token = lks__bpe_bytes(bpe, ids[i], &length);
        FUZZ_HOLDS(token != NULL && at + length <= bytes && memcmp(token, data + at, length) == 0);
    }
    FUZZ_HOLDS(at == bytes);
    /* With special tokens the same comes out; and cut where a cut is allowed, the same ids. */
    size_t whole, parts = 0, made;
    FUZZ_HOLDS(lks__bpe_encode_special(bpe, work, (const char *)data, bytes, ids, &whole) ==
               LKS_OK);
    at = 0;
    for (size_t i = 0; i < whole; i++, at += length) {
        const char *token = lks__bpe_bytes(bpe, ids[i], &length);
        FUZZ_HOLDS(token != NULL && at + length <= bytes && memcmp(token, data + at, length) == 0);
    }
    FUZZ_HOLDS(at == bytes);
    const size_t cut = lks__bpe_cut(bpe, (const char *)data, 0, bytes);
    int32_t *again = malloc((bytes + 1) * sizeof *again);
    FUZZ_HOLDS(again != NULL && (cut == 0 || cut < bytes));
    FUZZ_HOLDS(lks__bpe_encode_special(bpe, work, (const char *)data, cut, again, &parts) ==
               LKS_OK);
    FUZZ_HOLDS(lks__bpe_encode_special(bpe, work, (const char *)data + cut, bytes - cut,
                                       again + parts, &made) == LKS_OK);
    FUZZ_HOLDS(parts + made == whole && memcmp(again, ids, whole * sizeof *ids) == 0);
    free(again);
    char *text;
    uint64_t hash;
    FUZZ_HOLDS(lks__bpe_text(bpe, &text, &length, &hash) == LKS_OK);
    free(text);
    free(ids);
    lks__bpe_work_close(work);
    lks__bpe_close(bpe);
    return 0;
}
