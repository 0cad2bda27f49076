/* faults.h - runs of the tool that have to fail well. */
#ifndef LKS_TESTS_FAULTS_H
#define LKS_TESTS_FAULTS_H

#include "support.h"

/* A small run of a few dozen milliseconds: data, output folder, arguments that tests add to. */
typedef struct fault_run {
    const char *data, *out;
    const char *argv[64]; /* NULL-terminated */
    int n;
} fault_run;

/* "lockstep train" on W ranks, with good data in a folder of its own and 4 virtual ranks;
 * iterations 0..9, a checkpoint every 2. */
fault_run fault_train(int W);
void fault_add(fault_run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Go on from where the run left off, on W ranks. */
fault_run fault_resume(const fault_run *run, int W);

/* Runs to its end: exit code 0. */
void fault_succeeds(const fault_run *run);

/* Fails within 5 s (but for what `env` holds up) with one of the tool's sentences on stderr, which
 * contains each text given (up to NULL); leaves no process behind. Returns what it wrote there.
 * `exit_code`: -1 where any but 0 will do. */
const char *fault_fails(const fault_run *run, int exit_code, const char *const env[],
                        const char *const texts[]);
#define fault_expect(run, exit_code, env, ...)                                                     \
    fault_fails((run), (exit_code), (env), (const char *const[]){__VA_ARGS__, NULL})
#define FAULT_ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Names and bytes of all files below a folder, as one text: to see that nothing in it changed. */
const char *fault_snapshot(const char *folder);

#endif
