/* Trails: the reader of `lockstep diff`, and its output. */
#include <stdio.h>

#include "fuzz.h"
#include "report/diff/diff.h"

#define HEAD                                                                                       \
    "{\"what\":\"trail\",\"step\":3,\"leaf\":null,\"virtual_ranks\":8,\"micro_batches\":2,"        \
    "\"settings\":{\"seed\":1},\"host\":{\"fingerprint\":\"1\"}}\n"
#define WEIGHTS                                                                                    \
    "{\"what\":\"weights\",\"name\":\"w\",\"hash\":\"0123456789abcdef\",\"first\":[1.5,null,-2]}"  \
    "\n"
#define LOSS "{\"what\":\"loss\",\"virtual_rank\":0,\"micro_batch\":1,\"value\":4.5}\n"
#define END  "{\"what\":\"end\"}\n"

static const char sound[] = HEAD WEIGHTS LOSS END;

const char *const fuzz_words[] = {"\"what\"", "\"name\"",  "\"value\"", "\"virtual_rank\"",
                                  "\"end\"",  "\"trail\"", "null",      "{}",
                                  "\\u001b",  NULL};

void fuzz_seeds(void)
{
    fuzz_seed_text(sound);
    fuzz_seed_text(HEAD LOSS END);
    fuzz_seed_text(HEAD WEIGHTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static FILE *out;
    const char *a = fuzz_file("a.trail", data, bytes);
    const char *b = fuzz_file("b.trail", sound, sizeof sound - 1);
    json_t *report = NULL;
    lks__history none[2]; /* trails have no records */
    if (out == NULL)
        out = fopen("/dev/null", "we");
    FUZZ_HOLDS(out != NULL);
    if (lks__diff(b, a, none, &report) == LKS_OK) {
        FUZZ_HOLDS(lks__diff_same(report) != json_is_object(json_object_get(report, "place")));
        lks__diff_print(out, report);
        lks__diff_print_cause(out, report);
        json_decref(report);
    }
    if (lks__diff(a, a, none, &report) == LKS_OK) { /* also files of weights */
        FUZZ_HOLDS(lks__diff_same(report));
        json_decref(report);
    }
    return 0;
}
