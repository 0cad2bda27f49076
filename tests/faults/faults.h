/* faults.h - runs of the tool that must fail in an orderly way. */
#pragma once

#include "laws/laws.h"

/* A small run of a few dozen milliseconds: data, output folder, and arguments, to which tests
 * add. */
typedef struct fault_run {
    const char *data, *out;
    law_args args;
} fault_run;

/* "lockstep train" on W ranks, with good data in a folder of its own and 4 virtual ranks;
 * iterations 0..9, a checkpoint every 2. */
fault_run fault_train(int W);
#define fault_add(run, ...) law_add(&(run)->args, __VA_ARGS__)

/* Resume the run on W ranks. */
fault_run fault_resume(const fault_run *run, int W);

/* Run to its end: exit code 0. */
void fault_succeeds(const fault_run *run);

/* It fails within 5 s (more if `env` delays it) with one of the tool's sentences on stderr, which
 * contains each text given (up to NULL); no process is left. Returns its stderr. `exit_code`: -1
 * for any but 0. */
const char *fault_fails(const fault_run *run, int exit_code, const char *const env[],
                        const char *const texts[]);
#define fault_expect(run, exit_code, env, ...)                                                     \
    fault_fails((run), (exit_code), (env), (const char *const[]){__VA_ARGS__, NULL})
#define FAULT_ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Names and bytes of all files below a folder, as one text, to check that nothing in it has
 * changed. */
const char *fault_snapshot(const char *folder);
