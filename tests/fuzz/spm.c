/* SentencePiece models. */
#include "data/text/sentencepiece/spm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../spm_model.h"
#include "fuzz.h"

const char *const fuzz_words[] = {"<unk>", "\xe2\x96\x81", "<0x41>", "<0x-1>", "<0xZZ>", NULL};

static const char *const sentences[] = {
    "To be, or not to be: that is the question.",
    "Whether 'tis nobler in the mind to suffer the slings and arrows of outrageous fortune,",
    "Or to take arms against a sea of troubles, and by opposing end them: to die, to sleep;",
    "No more; and by a sleep to say we end the heart-ache and the thousand natural shocks 1234",
};

static int next_sentence(void *ctx, const char **text_p, size_t *bytes_p)
{
    int *i = ctx;
    if (*i == 64)
        return 0;
    *text_p = sentences[(*i)++ % 4];
    *bytes_p = strlen(*text_p);
    return 1;
}

/* A model is a message of Protocol Buffers: drop field 3, most of which is a table of Unicode's
 * normal forms, so that random changes also hit the rest. Returns the remaining length. */
static size_t without_normalizer(uint8_t *m, size_t bytes)
{
    size_t kept = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        uint64_t length = 0;
        end = at + 1;
        FUZZ_HOLDS(m[at] % 8 == 2); /* wire type 2: a length follows, seven bits in each byte */
        for (int shift = 0;; shift += 7, end++) {
            FUZZ_HOLDS(end < bytes);
            length |= (uint64_t)(m[end] & 127) << shift;
            if (m[end] < 128)
                break;
        }
        end += 1 + length;
        FUZZ_HOLDS(end <= bytes);
        if (m[at] >> 3 != 3) {
            memmove(m + kept, m + at, end - at);
            kept += end - at;
        }
    }
    return kept;
}

void fuzz_seeds(void)
{
    int i = 0;
    char *model;
    size_t bytes;
    setenv("LOCKSTEP_MODULES", FUZZ_MODULES, 1);
    if (lks__spm_available() != LKS_OK) {
        printf("SKIP: lacks sentencepiece: %s\n", lks_last_error());
        fflush(stdout);
        exit(FUZZ_SKIPPED);
    }
    FUZZ_HOLDS(lks__spm_train(300, next_sentence, &i, &model, &bytes) == LKS_OK);
    fuzz_seed(model, bytes);
    fuzz_seed(model, without_normalizer((uint8_t *)model, bytes));
    free(model);
    for (unsigned type = SPM_UNIGRAM; type <= SPM_CHAR; type++) {
        spm_bytes small = {.n = 0};
        spm_put_small_model(&small, type);
        fuzz_seed(small.data, small.n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    /* Letters, and characters that the table rewrites: separate accents, ligatures, wide letters,
     * circled digits, Hangul in parts, all kinds of spaces; also a 0 byte. */
    static const char text[] =
        "to be \xc3\xa9 12 \xf0\x9f\x98\x80 or not\n aab--xyz-- a\0b e\xcc\x81 \xef\xac\x81n "
        "\xef\xbc\xa1\xe2\x91\xa0 \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 \xe3\x8c\x80\xe3\x82\xab"
        "\xe3\x82\x99\xc2\xa0\xe2\x80\x8b\xef\xb7\xba";
    lks__spm *spm = NULL;
    if (lks__spm_open_bytes((const char *)data, bytes, "x", &spm) != LKS_OK)
        return 0;
    int32_t *ids = NULL;
    size_t n;
    uint32_t size = lks__spm_size(spm);
    FUZZ_HOLDS(size >= 1 && lks__spm_bos(spm) < (int64_t)size);
    for (uint32_t id = 0; id < size; id++) {
        lks__spm_piece(spm, id, &n);
        lks__spm_kind(spm, id);
    }
    if (lks__spm_encode(spm, text, sizeof text - 1, &ids, &n) == LKS_OK) {
        for (size_t i = 0; i < n; i++)
            FUZZ_HOLDS(ids[i] >= 0 && (uint32_t)ids[i] < size);
        free(ids);
    }
    lks__spm_close(spm);
    return 0;
}
