/* mutate.h - inputs: seeds, what was found worth keeping, and how new ones are made of them. */
#ifndef LKS_TESTS_FUZZ_MUTATE_H
#define LKS_TESTS_FUZZ_MUTATE_H

#include "fuzz.h"

/* One more to make others of; copied. Those that fuzz_seed() gave come first. */
void mutate_keep(const uint8_t *data, size_t bytes);
size_t mutate_count(void);
const uint8_t *mutate_get(size_t i, size_t *bytes_p);

/* Input `i` of a run with that seed, into out[FUZZ_MAX_INPUT]; returns its length. The first ones
 * are the seeds; then every second one is a seed cut or altered at one place, until all places (of
 * long seeds some) have had their turn, and the others are drawn. */
size_t mutate_input(uint64_t seed, uint64_t i, uint8_t *out);

#endif
