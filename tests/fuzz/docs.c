/* Documents for `prep sentencepiece`: JSON lines if the input begins with '{', else text. */
#include "data/prep/input/docs.h"

#include "base/text/utf8.h"
#include "fuzz.h"

const char *const fuzz_words[] = {
    "{\"text\":\"",
    "\"}\n",
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\u0000",
    "\\n",
    "\n\n",
    "\r\n",
    "\xc3\xa9",
    "\xf0\x9f\x98\x80",
    "\xff",
    "null",
    "[",
    "{",
    ",\"text\":",
    NULL,
};

void fuzz_seeds(void)
{
    fuzz_seed_text("{\"text\":\"one\"}\n{\"id\":7,\"text\":\"t\\u00e9\\n \\ud83d\\ude00\"}\n\n"
                   "{\"text\":\"\"}\n{\"text\":\"last\",\"more\":{\"a\":[1,2]}}");
    fuzz_seed_text(
        "A first document\nof two lines.\n\n  Another, \xc3\xa9\xe2\x82\xac.  \n\n\n\nX\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bool json = bytes > 0 && data[0] == '{';
    const char *path = fuzz_file(json ? "d.jsonl" : "d.txt", data, bytes);
    lks__docs *docs = NULL;
    lks__texts texts;
    FUZZ_HOLDS(lks__texts_open(path, false, &texts) == LKS_OK);
    FUZZ_HOLDS(lks__docs_open(&texts, 0, texts.n, "text", &docs) == LKS_OK);
    for (int pass = 0; pass < 2; pass++, lks__docs_rewind(docs)) {
        const char *text;
        size_t n;
        uint32_t cp;
        while (lks__docs_next(docs, &text, &n) == LKS_OK && text != NULL) {
            FUZZ_HOLDS(n <= bytes);
            for (size_t at = 0, length; at < n; at += length)
                FUZZ_HOLDS((length = lks__utf8_decode(text + at, n - at, &cp)) > 0);
        }
    }
    lks__docs_close(docs);
    lks__texts_close(&texts);
    return 0;
}
