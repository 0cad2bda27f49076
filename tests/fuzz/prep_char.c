/* `prep char`: any bytes as a text; the output is read again. */
#include <stdlib.h>

#include "data/prep/prep.h"
#include "data/text/meta.h"
#include "data/tokens.h"
#include "fuzz.h"

const char *const fuzz_words[] = {
    "\r\n",         "\r",       "\xc3\xa9",         "\xe2\x82\xac", "\xf0\x9f\x98\x80",
    "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xef\xbb\xbf", "\xff",
    NULL,
};

void fuzz_seeds(void)
{
    fuzz_seed_text(
        "To be, or not to be: that is the question.\r\nWhether 'tis nobler\rin the mind\n");
    fuzz_seed_text("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 b\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = fuzz_file("text", data, bytes), *out = fuzz_path("tokens");
    static const double fractions[] = {0.1, 0.5, 0.999};
    lks__prep_result result;
    const lks__prep_options o = {
        .input = text, .out_dir = out, .val_fraction = fractions[bytes % 3]};
    if (lks__prep(lks__prep_kind_of("char"), &o, &result) != LKS_OK)
        return 0;
    lks__meta meta = {0};
    bool found = false;
    FUZZ_HOLDS(lks__meta_load(out, &found, &meta) == LKS_OK && found);
    FUZZ_HOLDS(meta.vocab_size == result.vocab_size);
    lks__tokens *train = NULL, *val = NULL;
    FUZZ_HOLDS(lks__tokens_open(fuzz_path("tokens/train.bin"), meta.vocab_size, &train) == LKS_OK);
    FUZZ_HOLDS(lks__tokens_open(fuzz_path("tokens/val.bin"), meta.vocab_size, &val) == LKS_OK);
    FUZZ_HOLDS(lks__tokens_count(train) == result.n_train);
    FUZZ_HOLDS(lks__tokens_count(val) == result.n_val);
    FUZZ_HOLDS(result.n_train + result.n_val <= bytes);
    lks__tokens_close(train);
    lks__tokens_close(val);
    lks__meta_free(&meta);
    return 0;
}
