/* tests/support.h - what test programs share. Include it first: it brings cmocka and the headers
 * that cmocka wants before it.
 *
 *     int main(void)
 *     {
 *         const struct CMUnitTest tests[] = {cmocka_unit_test(test_this), ...};
 *         return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
 *     }
 *
 * Strings, JSON values and folders that these functions return live until the program ends; nobody
 * frees them, so a test that fails half-way leaves nothing behind either. */
#ifndef LKS_TESTS_SUPPORT_H
#define LKS_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <sys/types.h>

#include "kernels/kernels.h"
#include "lockstep/status.h"

/* ---- expectations ------------------------------------------------------------------------ */

/* The call must succeed; else its error sentence is printed. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LKS_OK)                                                                      \
            fail_msg("%s: %s", #call, lks_last_error());                                           \
    } while (0)

/* The call must fail with `status`, and its error sentence must contain each text given. */
#define assert_fails(status, call, ...)                                                            \
    lks_test_failed((call), (status), #call, __FILE__, __LINE__,                                   \
                    (const char *const[]){__VA_ARGS__, NULL})
void lks_test_failed(lks_status got, lks_status want, const char *call, const char *file, int line,
                     const char *const texts[]);

/* |got - want| <= tolerance, and both finite. */
#define assert_near(got, want, tolerance)                                                          \
    lks_test_near((got), (want), (tolerance), #got, __FILE__, __LINE__)
void lks_test_near(double got, double want, double tolerance, const char *what, const char *file,
                   int line);

#define assert_contains(text, part) lks_test_contains((text), (part), __FILE__, __LINE__)
void lks_test_contains(const char *text, const char *part, const char *file, int line);

/* Both files exist and have the same bytes. */
#define assert_same_file(a, b) lks_test_same_file((a), (b), __FILE__, __LINE__)
void lks_test_same_file(const char *a, const char *b, const char *file, int line);

/* The machine lacks something that the test needs: it prints `SKIP: lacks WHAT: WHY`, the test is
 * skipped, and the program exits with 77. ./check accepts only what scripts/skips.sh lists, and
 * looks whether the machine really lacks it. cmocka's own skip() counts as passed: don't use it. */
void lks_test_lacks(const char *what, const char *why);
/* The same outside a test: ends the program. */
void lks_test_exit_lacks(const char *what, const char *why) __attribute__((noreturn));
/* For main() to begin with: the kernels of the level that LOCKSTEP_CPU names, or of `level`. Ends
 * the program as skipped if the processor lacks that level. `k` may be NULL. */
void lks_test_need_level(lks__kernels *k);
void lks_test_need_level_of(lks__cpu_level level, lks__kernels *k);
/* The same for Gloo's module, which is built if libgloo-dev and g++ are installed. */
void lks_test_need_gloo(void);
/* For main() to begin with, where some tests need data that may lie beside the repository: with the
 * argument `shared` only the tests whose names match run, and without it only the others, so that
 * what is absent skips no test but those (lks_add_shared_test() in CMake). */
void lks_test_choose(int argc, char **argv, const char *pattern);
/* The exit code for main(), from what cmocka_run_group_tests() returned. */
int lks_test_exit(int n_failed);

/* ---- files ------------------------------------------------------------------------------- */

const char *lks_test_folder(void); /* a new empty folder, removed at the end with what is in it */
const char *lks_test_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void lks_test_write(const char *path, const void *data, size_t bytes);
const char *lks_test_read(const char *path, size_t *bytes_p); /* a 0 byte behind; fails the test */
bool lks_test_exists(const char *path);
int lks_test_count_files(const char *folder);  /* entries but for . and .. */
const char *lks_test_sha256(const char *path); /* hex, by sha256sum */

/* Data that may lie beside the repository (../shared/NAME): its path; the test is skipped if it
 * doesn't lie there. */
const char *lks_test_shared(const char *name);

/* ---- figures and data -------------------------------------------------------------------- */

/* tests/figures/NAME as JSON, or the file at NAME where that is an absolute path; see the README
 * there. */
const json_t *lks_test_figure(const char *name);
/* The member at a dotted path ("config.seeds", "loss.0"); the test fails where there is none.
 * Where a name has dots of its own, use json_object_get(). */
const json_t *lks_test_member(const json_t *json, const char *dotted);
double lks_test_number(const json_t *json, const char *dotted);
/* All lines of a metrics.jsonl whose "kind" is `kind` (NULL: all), as a JSON array. */
const json_t *lks_test_metrics(const char *path, const char *kind);

/* The tokens that tests/figures/generated/ were recorded on: FOLDER/train.bin (200,000 ids below
 * 65) and FOLDER/val.bin (20,000), uint16, without meta.json. */
void lks_test_generated_tokens(const char *folder);
/* The same with ids below `vocab`, 65,536 at most. */
void lks_test_generated_vocabulary(const char *folder, uint32_t vocab);

/* Those of parameter-golf's figures there: FOLDER/fineweb_train_000000.bin (120,000 ids below
 * 1,024), fineweb_train_000001.bin (80,000) and fineweb_val_000000.bin (20,000), with headers. */
void lks_test_generated_golf(const char *folder);
/* One shard: ids as uint16 behind the header. */
void lks_test_write_shard(const char *path, const uint16_t *ids, size_t n);

/* Makes SentencePiece's module found by this program and its children; the test is skipped if this
 * build has none. */
void lks_test_need_sentencepiece(void);

/* ---- time -------------------------------------------------------------------------------- */

/* How many times as long as a test asks for things may take: the environment's LKS_TEST_PATIENCE,
 * else 1, and more in builds with sanitizers. Every limit that a slow machine could break is
 * multiplied by it. */
double lks_test_patience(void);
int lks_test_tries(int n); /* the same for tries with a pause between them */

/* A port of 127.0.0.1 that nobody uses: the kernel's choice. */
int lks_test_free_port(void);

/* ---- child processes --------------------------------------------------------------------- */

typedef struct lks_test_child {
    pid_t pid; /* leader of a process group of its own */
    const char *out_path, *err_path;
} lks_test_child;

typedef struct lks_test_result {
    int exit_code;  /* -1 where a signal ended it */
    int signal;     /* 0 where it exited */
    bool timed_out; /* it ran longer than allowed, and its process group was killed */
    double seconds;
    const char *out, *err; /* all that it wrote to stdout and stderr */
} lks_test_result;

/* For a child process: signals that we were started with ignored (by nohup, or in the background)
 * have their default action again, since what is ignored stays ignored in all that it starts. */
void lks_test_default_signals(void);

/* Start argv[0] (NULL-terminated; "lockstep" means the tool just built), with `env` ("NAME=VALUE",
 * NULL-terminated; may be NULL) added to the environment, and stdin empty. */
lks_test_child lks_test_start(const char *const argv[], const char *const env[]);
/* A child that runs longer than lks_test_patience() times `timeout_s` is killed. */
lks_test_result lks_test_wait(const lks_test_child *child, double timeout_s);
lks_test_result lks_test_run(const char *const argv[], const char *const env[], double timeout_s);

/* lks_test_run() of the tool with the arguments given, 60 s at most. */
#define lks_test_tool(...)                                                                         \
    lks_test_run((const char *const[]){"lockstep", __VA_ARGS__, NULL}, NULL, 60)

#endif
