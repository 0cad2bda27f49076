/* fuzz.h - readers with mutated inputs.
 *
 * A target is one file: LLVMFuzzerTestOneInput() passes an input to a reader, fuzz_seeds() gives
 * the first inputs, fuzz_words lists words with a meaning to that reader. The same files are built
 * with libFuzzer (-DLKS_FUZZ=ON, clang) and with the driver in this folder (any compiler):
 *
 *     fuzz_NAME [--inputs=N] [--seed=S] [--seeds=DIR] [FILE ...]
 *
 * runs N inputs, or the files; --seeds writes the seeds into a folder, as libFuzzer's corpus. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_MAX_INPUT = 300 << 10 };

/* --- what a target defines ------------------------------------------------------------------ */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Calls fuzz_seed() for each; exits with FUZZ_SKIPPED if the reader isn't available here. */
void fuzz_seeds(void);
extern const char *const fuzz_words[]; /* NULL ends */

/* --- what it may use ------------------------------------------------------------------------ */

enum { FUZZ_SKIPPED = 77 };

void fuzz_seed(const void *data, size_t bytes); /* copied */
void fuzz_seed_text(const char *text);
void fuzz_seed_file(const char *path);

/* A folder, in memory if possible, removed at the end. */
const char *fuzz_folder(void);
/* "FOLDER/NAME", in one of a few static buffers. */
const char *fuzz_path(const char *name);
/* Write a file there; returns its path. */
const char *fuzz_file(const char *name, const void *data, size_t bytes);

/* All that the job's store sends to a client that proves FUZZ_TOKEN, before its first answer, with
 * nonces known in advance. Returns the number of bytes, at most FUZZ_GREETING_BYTES. */
#define FUZZ_TOKEN "0123456789abcdef"
enum { FUZZ_GREETING_BYTES = 128 };
size_t fuzz_greeting(uint8_t *out);

/* Must hold for whatever a reader accepts; otherwise the input counts as a crash. */
#define FUZZ_HOLDS(condition) ((condition) ? (void)0 : fuzz_broken(#condition, __FILE__, __LINE__))
_Noreturn void fuzz_broken(const char *condition, const char *file, int line);
