/* fuzz.h - readers under mutated inputs.
 *
 * A target is one file: LLVMFuzzerTestOneInput() hands an input to a reader, fuzz_seeds() gives
 * inputs to begin with, fuzz_words what means something to that reader. The same files are built
 * with libFuzzer (-DLKS_FUZZ=ON, clang) and with the driver beside this (any compiler):
 *
 *     fuzz_NAME [--inputs=N] [--seed=S] [--seeds=DIR] [FILE ...]
 *
 * runs N inputs, or the files; --seeds writes the seeds into a folder, as libFuzzer's corpus. */
#ifndef LKS_TESTS_FUZZ_FUZZ_H
#define LKS_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FUZZ_MAX_INPUT = 300 << 10 };

/* --- what a target defines ------------------------------------------------------------------ */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Calls fuzz_seed() for each; exits with FUZZ_SKIPPED where the reader can't be had here. */
void fuzz_seeds(void);
extern const char *const fuzz_words[]; /* NULL ends */

/* --- what it may use ------------------------------------------------------------------------ */

enum { FUZZ_SKIPPED = 77 };

void fuzz_seed(const void *data, size_t bytes); /* copied */
void fuzz_seed_text(const char *text);
void fuzz_seed_file(const char *path);

/* A folder in memory where there is one, removed at the end. */
const char *fuzz_folder(void);
/* "FOLDER/NAME"; one of a few static buffers. */
const char *fuzz_path(const char *name);
/* Write a file there; returns its path. */
const char *fuzz_file(const char *name, const void *data, size_t bytes);

/* All that the job's store says to a client that proves FUZZ_TOKEN, before its first answer: with
 * nonces that are known beforehand. Returns how many bytes; FUZZ_GREETING_BYTES are enough. */
#define FUZZ_TOKEN "0123456789abcdef"
enum { FUZZ_GREETING_BYTES = 128 };
size_t fuzz_greeting(uint8_t *out);

/* What a reader has let through has to hold; otherwise the input counts as one that crashed. */
#define FUZZ_HOLDS(condition) ((condition) ? (void)0 : fuzz_broken(#condition, __FILE__, __LINE__))
_Noreturn void fuzz_broken(const char *condition, const char *file, int line);

#endif
