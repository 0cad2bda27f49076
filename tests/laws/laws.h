/* laws.h - runs of the tool that must give the same bytes. */
#pragma once

#include "support.h"

#include "model/model.h"

/* The run of all laws: 8 virtual ranks of two micro-batches each, dropout, several buckets,
 * evaluations and checkpoints at equal and at different iterations; every checkpoint is kept.
 * Iterations 0 .. LAW_LAST_ITER. */
enum { LAW_V = 8, LAW_A = 2, LAW_LAST_ITER = 13, LAW_STEPS = LAW_LAST_ITER + 1 };

enum { LAW_MAX_ARGS = 48 };

typedef struct law_args {
    const char *argv[LAW_MAX_ARGS + 1];
    int n;
} law_args;

/* Sizes of the model that all runs train. By default it is small, and several tensors share neither
 * a bucket nor a vector: three layers, so that one has neighbours on both sides. Tests of the
 * arithmetic itself call law_wide_model() first: several tiles of every matrix, which takes five
 * times as long; but not on the reference kernels, which would take seconds for it. */
typedef struct law_shape {
    int n_layer, n_head, n_embd, block_size;
} law_shape;

law_shape law_model(void);
lks__model_config law_config(void); /* the same, with 65 tokens */
void law_wide_model(void);

/* The token folder of all runs. */
const char *law_data(void);
/* A folder of golf's tokens, `n_val` of them for validation (lks_test_golf_tokens()). */
const char *law_golf_data(size_t n_val);

/* "lockstep train" with the run's settings and a new output folder, *out_p. */
law_args law_train(const char *sampler, const char **out_p);
void law_add(law_args *args, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for several words, separated by blanks. */
void law_add_line(law_args *args, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for words as they are, ended by NULL; `words` may be NULL. */
void law_add_words(law_args *args, const char *const words[]);
#define law_add_all(args, ...) law_add_words((args), (const char *const[]){__VA_ARGS__, NULL})

/* Add `sh -c SCRIPT` with the tests' program and the arguments of `run`, which a script executes as
 * "$0" "$@". */
void law_add_shell(law_args *args, const law_args *run, const char *script, ...)
    __attribute__((format(printf, 3, 4)));

/* "lockstep train" on the tokens in `data`, into `out`. */
law_args law_begin(const char *data, const char *out);

/* The command as words of a shell, for the tests' program. */
const char *law_words(const law_args *args);

/* The same for a family, into `out`: the run of all laws with the sampler `random`, or a golf run
 * of six steps, whose rates don't depend on its end. And the name of its last checkpoint. */
law_args law_family(bool golf, const char *out);
const char *law_family_last(bool golf);
/* Run it to its end with more settings, ended by NULL, into `out` (NULL: a new folder). Returns the
 * folder. */
const char *law_family_trained(bool golf, const char *out, const char *const more[]);
#define law_family_run(golf, out, ...)                                                             \
    law_family_trained((golf), (out), (const char *const[]){__VA_ARGS__, NULL})

/* Run to the end: exit code 0. */
void law_run(const law_args *args);

/* The run from scratch to its end, with up to four more settings ("--key=value", ended by NULL);
 * returns the output folder. */
const char *law_trained(const char *sampler, const char *const more[]);
#define law_output(sampler, ...) law_trained((sampler), (const char *const[]){__VA_ARGS__, NULL})

/* Settings of the runs that others are compared with: one thread, and the CPU even if the tests run
 * with a program that has another device (LKS_TEST_PROGRAM). */
#define LAW_REFERENCE "--threads=1", "--device=cpu"

/* Execute the command that `lockstep diff a b` prints: afterwards `run` must be the same run as
 * `other`. */
void law_assert_remedy(const char *a, const char *b, const char *run, const char *other);

/* Resume in `out` to the run's end. */
void law_resumed(const char *sampler, const char *out, const char *const more[]);
#define law_resume(sampler, out, ...)                                                              \
    law_resumed((sampler), (out), (const char *const[]){__VA_ARGS__, NULL})

/* The iteration of the checkpoint that OUT/latest or OUT/best names; -1 if it names none. */
int law_named(const char *out, const char *name);

/* The same checkpoints and leaves.bin, byte for byte, the same `latest` and `best`, and the same
 * lines of metrics.jsonl, byte for byte, except host lines and fields that depend on time. */
void law_assert_same(const char *out, const char *reference);

/* The same for the checkpoints alone: `out` has all of the reference's; and for a single one. */
void law_assert_same_checkpoints(const char *out, const char *reference);
void law_assert_same_checkpoint(const char *out, const char *reference, const char *name);

/* The same hashes of gradients, in leaves.bin. Devices with their own memory don't write it. */
void law_assert_same_leaves(const char *out, const char *reference);

/* The lines that must be the same, as one text. law_assert_same() fails with the first line that
 * differs. */
const char *law_lines(const char *out);
/* Those that the undisturbed run writes, too: without checkpoints that were asked for. */
const char *law_undisturbed_lines(const char *out);
void law_assert_same_lines(const char *got, const char *want);

/* law_lines() without the lines of checkpoints that were asked for (by a stop, a signal, the clock
 * or the end) or that `whole` doesn't have; lines of the metrics, 0
 * if there are none yet; true if one has that kind and iteration. */
const char *law_common_lines(const char *out, const char *whole);
int law_count_lines(const char *out);
bool law_has_line(const char *out, const char *kind, int iter);

/* Output of a run on `W` ranks whose launcher got `signo` once there was a checkpoint, and which
 * ended with that exit code (-1: by that signal). If the machine is so busy that the run ends
 * first, it is tried again. `more`: one more setting, or NULL. */
const char *law_signalled(const char *sampler, int W, int signo, int exit_code, const char *more);

/* The same run with SIGUSR1 after its first checkpoint: it goes on to its end, with one checkpoint
 * more than scheduled, whose iteration is *iter_p. */
const char *law_saved(const char *sampler, int W, int *iter_p);

/* Number of folders in `out` that are checkpoints (ckpt-%08d). */
int law_count_checkpoints(const char *out);

/* Is a checkpoint scheduled there? Every third iteration has one, and so do 4, 8 and 12, when the
 * validation loss falls; the end is not on the schedule. */
bool law_on_schedule(int iter);
