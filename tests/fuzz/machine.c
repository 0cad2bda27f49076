/* A machine file. */

#include "plan/time/machine.h"
#include "fuzz.h"

const char *const fuzz_words[] = {"\"lockstep_machine\": 1",
                                  "\"link_bandwidth\": ",
                                  "\"round_trip_s\": ",
                                  "{\"value\": 1, \"low\": 1, \"high\": 2}",
                                  "-1",
                                  "1e999",
                                  "null",
                                  "[",
                                  NULL};

static const lks__machine whole = {
    .cores = 2,
    .ranks = 2,
    .threads = 1,
    .layers = 1,
    .memory_bytes = 8e9,
    .micro_batch_flops = 1e9,
    .micro_batch_tokens = 256,
#define X(name, low_, high_, when) .name = {low_ > 0 ? 2 * low_ : 1, low_, high_},
    LKS__MACHINE_FIGURES(X)
#undef X
        .has_link = true,
};

void fuzz_seeds(void)
{
    char text[LKS__MACHINE_TEXT];
    lks__machine alone = whole;
    FUZZ_HOLDS(lks__machine_write(&whole, text) == LKS_OK);
    fuzz_seed_text(text);
    alone.has_link = false;
    FUZZ_HOLDS(lks__machine_write(&alone, text) == LKS_OK);
    fuzz_seed_text(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lks__machine m;
    if (lks__machine_read(fuzz_file("machine", data, bytes), &m) != LKS_OK)
        return 0;
    FUZZ_HOLDS(m.cores >= 1 && m.ranks >= 1 && m.threads >= 1 && m.layers >= 1);
#define X(name, low_, high_, when)                                                                 \
    if ((when) == LKS__MACHINE_ALWAYS || ((when) == LKS__MACHINE_LINK && m.has_link) ||            \
        ((when) == LKS__MACHINE_MAYBE && m.name.value != 0))                                       \
        FUZZ_HOLDS(m.name.low >= (low_) && m.name.low <= m.name.value &&                           \
                   m.name.value <= m.name.high && m.name.high <= (high_));
    LKS__MACHINE_FIGURES(X)
#undef X
    char text[LKS__MACHINE_TEXT];
    FUZZ_HOLDS(lks__machine_write(&m, text) == LKS_OK);
    return 0;
}
