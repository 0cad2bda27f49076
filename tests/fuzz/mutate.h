/* mutate.h - inputs: the seeds, inputs that reached new code, and changes that make new ones. */
#pragma once

#include "fuzz.h"

/* Keep another input to make new ones from; copied. The ones given to fuzz_seed() come first. */
void mutate_keep(const uint8_t *data, size_t bytes);
size_t mutate_count(void);
const uint8_t *mutate_get(size_t i, size_t *bytes_p);

/* Input `i` of a run with that seed, into out[FUZZ_MAX_INPUT]; returns its length. The first ones
 * are the seeds. Then every second one is a seed cut or altered at one place, until all places (for
 * long seeds, some) have been used. The others are random. */
size_t mutate_input(uint64_t seed, uint64_t i, uint8_t *out);
