/* tests/support.h - shared by all test programs. Include it first: it brings cmocka and the headers
 * that cmocka needs before it.
 *
 *     TEST(test_this)
 *     {
 *         assert_ok(lks_this());
 *     }
 *
 * Strings, JSON values and folders that these functions return live until the program ends. Nobody
 * frees them, so a test that fails half-way leaves nothing behind either. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <sys/types.h>

#include "compute/cpu/kernels.h"
#include "lockstep/status.h"

/* ---- programs ---------------------------------------------------------------------------- */

/* A test of this program; its body follows. TEST_WITH: `before` and `after` are called for it;
 * NULL: none. */
#define TEST(name) TEST_WITH(name, NULL, NULL)
#define TEST_WITH(name, before, after)                                                             \
    static void name(void **state);                                                                \
    TEST_AS(name, , before, after)                                                                 \
    static void name(void **state)
/* The test `name`, which is declared, as the test `name``suffix`. */
#define TEST_AS(name, suffix, before, after)                                                       \
    __attribute__((constructor)) static void add_##name##suffix(void)                              \
    {                                                                                              \
        lks_test_add((struct CMUnitTest){#name #suffix, name, before, after, NULL}, __LINE__);     \
    }
/* Called by main() for tests that a table describes. */
void lks_test_add(struct CMUnitTest test, int line);

/* Call `before`, run the tests in the order of the file, and call `after`; NULL: none. Returns the
 * exit code. A program without a main() does only this, with neither. */
int lks_test_run_all(CMFixtureFunction before, CMFixtureFunction after);

/* ---- expectations ------------------------------------------------------------------------ */

/* The call must succeed; else its error sentence is printed. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LKS_OK)                                                                      \
            fail_msg("%s: %s", #call, lks_last_error());                                           \
    } while (0)

/* A NULL among them fails the test. */
#define LKS_TEST_TEXTS(...)                                                                        \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, lks_test_end                                                                  \
    }
extern const char lks_test_end[];

/* The call must fail with `status`, and its error sentence must contain each text given. */
#define assert_fails(status, call, ...)                                                            \
    lks_test_failed((call), (status), #call, __FILE__, __LINE__, LKS_TEST_TEXTS(__VA_ARGS__))
void lks_test_failed(lks_status got, lks_status want, const char *call, const char *file, int line,
                     const char *const texts[]);

/* |got - want| <= tolerance, and both finite. */
#define assert_near(got, want, tolerance)                                                          \
    lks_test_near((got), (want), (tolerance), #got, __FILE__, __LINE__)
void lks_test_near(double got, double want, double tolerance, const char *what, const char *file,
                   int line);

/* The text contains each part given. */
#define assert_contains(text, ...)                                                                 \
    lks_test_contains((text), __FILE__, __LINE__, LKS_TEST_TEXTS(__VA_ARGS__))
void lks_test_contains(const char *text, const char *file, int line, const char *const parts[]);
/* The part's first place in the text, which must contain it. */
#define lks_test_find(text, part) lks_test_find_at((text), (part), __FILE__, __LINE__)
char *lks_test_find_at(const char *text, const char *part, const char *file, int line);

/* Both files exist and have the same bytes. */
#define assert_same_file(a, b) lks_test_same_file((a), (b), __FILE__, __LINE__)
void lks_test_same_file(const char *a, const char *b, const char *file, int line);

/* Call it if the machine lacks something that the test needs: it prints `SKIP: lacks WHAT: WHY`,
 * the test is skipped, and the program exits with 77. ./check accepts only what scripts/skips.sh
 * lists, and checks that the machine really lacks it. Don't use cmocka's own skip(), which counts
 * as passed. */
void lks_test_lacks(const char *what, const char *why);
/* The same outside a test: ends the program. */
void lks_test_exit_lacks(const char *what, const char *why) __attribute__((noreturn));
/* Call it first in main(): opens the kernels of the level that LOCKSTEP_CPU names, or of `level`.
 * If the processor lacks that level, the program ends as skipped. `k` may be NULL. It also ends as
 * skipped if that level is the machine's best and the test LKS_TEST_BEST runs the same on it
 * (lks_add_levels() in CMake). */
void lks_test_need_level(lks__kernels *k);
void lks_test_need_level_of(lks__cpu_level level, lks__kernels *k);
bool lks_test_on_level(void); /* True if LOCKSTEP_CPU names a level. */
/* The same for Gloo's module, which is built if libgloo-dev and g++ are installed. */
void lks_test_need_gloo(void);
/* Call it first in main() if some tests need data that may lie beside the repository. With the
 * argument `shared` only the tests whose names match run, without it only the others. So missing
 * data skip only those tests (lks_add_shared_test() in CMake). */
void lks_test_choose(int argc, char **argv, const char *pattern);
/* Of the TESTs run only those with these names. If one doesn't exist, the program fails. */
#define lks_test_only(...) lks_test_keep((const char *const[]){__VA_ARGS__, NULL})
void lks_test_keep(const char *const names[]);
/* Run only those whose names match `pattern`, or only the others. If none matches, the program
 * fails. */
void lks_test_part(bool matching, const char *pattern);

/* ---- files ------------------------------------------------------------------------------- */

const char *lks_test_folder(void); /* a new empty folder, removed at the end with what is in it */
/* The same in memory, if the machine has /dev/shm: for thousands of small files. */
const char *lks_test_folder_in_memory(void);
const char *lks_test_copy_of(const char *folder); /* in a new folder */
const char *lks_test_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void lks_test_write(const char *path, const void *data, size_t bytes);
void lks_test_write_text(const char *path, const char *text);
/* With a 0 byte at its end; the test fails if it can't be read. */
char *lks_test_read(const char *path, size_t *bytes_p);
/* The text of a file of /proc, until the next call; "" if there is none, as of a process that has
 * ended. */
const char *lks_test_proc(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Write these bytes over those at offset `at`, and: change a bit of the byte there. A negative
 * offset counts from the end. */
void lks_test_overwrite(const char *path, long at, const void *data, size_t bytes);
void lks_test_alter(const char *path, long at);
bool lks_test_exists(const char *path);
const char *lks_test_link(const char *path);   /* where it leads; "" if it is no link */
int lks_test_count_files(const char *folder);  /* entries except . and .. */
const char *lks_test_sha256(const char *path); /* hex, by sha256sum */
long lks_test_pages(void);                     /* that this process has mapped */
/* Run fn(arg) in a child that may map `more` bytes more than now; with sanitizers, which map
 * terabytes, there is no limit. Returns fn's result, 0 to 255. */
int lks_test_in_little_memory(int (*fn)(const char *arg), const char *arg, size_t more);

/* Path of data that may lie beside the repository (../shared/NAME); the test is skipped if they
 * don't. */
const char *lks_test_shared(const char *name);

/* ---- figures and data -------------------------------------------------------------------- */

/* tests/figures/NAME as JSON, or the file at NAME if that is an absolute path; see the README
 * there. */
const json_t *lks_test_figure(const char *name);
const json_t *lks_test_json(const char *text);
/* The member at a dotted path ("config.seeds", "loss.0", "-1.loss" of the last element); the test
 * fails if there is none. For names that contain dots, use json_object_get(). */
const json_t *lks_test_member(const json_t *json, const char *dotted);
double lks_test_number(const json_t *json, const char *dotted);
const char *lks_test_string(const json_t *json, const char *dotted);
/* All lines of a metrics.jsonl whose "kind" is `kind` (NULL: all), as a JSON array. */
const json_t *lks_test_metrics(const char *path, const char *kind);
const json_t *lks_test_record(const char *run, const char *kind); /* of a run's folder */

/* The settings of `lockstep train` with these arguments (words: ended by NULL). */
struct lks__settings;
void lks_test_parse(struct lks__settings *s, const char *const words[]);
#define lks_test_settings(s, ...) lks_test_parse((s), (const char *const[]){__VA_ARGS__, NULL})

/* Write the tokens on which tests/figures/generated/ was recorded: FOLDER/train.bin (200,000 ids
 * below 65) and FOLDER/val.bin (20,000), uint16, without meta.json. */
void lks_test_generated_tokens(const char *folder);
/* The same with ids below `vocab`, 65,536 at most. */
void lks_test_generated_vocabulary(const char *folder, uint32_t vocab);

/* Write those of parameter-golf's figures: FOLDER/fineweb_train_000000.bin (120,000 ids below
 * 1,024), fineweb_train_000001.bin (80,000) and fineweb_val_000000.bin (20,000), with headers. */
void lks_test_generated_golf(const char *folder);
/* The same with 2,500 ids for validation: golf's evaluations read all of them, which takes ten
 * times as long as the steps of a small run. */
void lks_test_short_golf(const char *folder);
/* The same with the first `n_val` of the 20,000. */
void lks_test_golf_tokens(const char *folder, size_t n_val);
/* Write one shard: ids as uint16 after the header. */
void lks_test_write_shard(const char *path, const uint16_t *ids, size_t n);

/* Let this program and its children find the modules, which are in the program's folder; returns
 * it. */
const char *lks_test_modules(void);
/* The same, if this build has SentencePiece's module; otherwise the test is skipped. */
void lks_test_need_sentencepiece(void);

/* The same for libzip's module, in main() before the tests: the program ends as skipped. */
void lks_test_need_zip(void);

/* ---- memory ------------------------------------------------------------------------------ */

/* malloc() and calloc(), or the test fails. */
void *lks_test_malloc(size_t bytes) __attribute__((malloc));
void *lks_test_calloc(size_t n, size_t bytes) __attribute__((malloc));
/* free() each of them. */
#define lks_test_free(...)                                                                         \
    lks_test_free_all((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
void lks_test_free_all(void *const list[], size_t n);

/* ---- time -------------------------------------------------------------------------------- */

/* Factor for time limits: LKS_TEST_PATIENCE in the environment, else 1, and more in builds with
 * sanitizers. Every limit that a slow machine could exceed is multiplied by it. */
double lks_test_patience(void);
int lks_test_tries(int n); /* the same for a number of tries with pauses between them */
/* Wait until the condition holds: 60 s times lks_test_patience(), then the test fails. */
#define lks_test_until(condition)                                                                  \
    for (double start_s_ = 0; !(condition);)                                                       \
    lks_test_again(&start_s_, #condition, __FILE__, __LINE__)
void lks_test_again(double *start_s, const char *condition, const char *file, int line);

/* A free port of 127.0.0.1, chosen by the kernel. Until the program ends, the kernel gives it to
 * nobody else, also not to another test, but a server that reuses addresses can listen on it. */
int lks_test_free_port(void);
int lks_test_two_free_ports(void); /* the same for a port and the one after it: returns the first */
/* A socket that is bound to such a port. Until it listens, the port refuses connections; until it
 * is closed, nobody else gets the port. */
int lks_test_bind(int *port_p);

/* Put a pipe of 4096 bytes into the place of stdout or stderr, `fd`; returns its reading end. It
 * ends with lks_test_pipe_end(fd, kept). */
int lks_test_pipe_begin(int fd, int *kept_p);
void lks_test_pipe_end(int fd, int kept);

/* ---- child processes --------------------------------------------------------------------- */

typedef struct lks_test_child {
    pid_t pid;                       /* leader of a process group of its own */
    const char *out_path, *err_path; /* exist from the start */
    const char *command;             /* for messages */
} lks_test_child;

typedef struct lks_test_result {
    int exit_code; /* -1 if a signal ended it */
    int signal;    /* 0 if it exited */
    double seconds;
    const char *out, *err; /* all that it wrote to stdout and stderr */
    const char *command;   /* for messages */
} lks_test_result;

/* For a child process: restore the default action of signals that were ignored when we started
 * (under nohup, or in the background). Otherwise they would stay ignored in everything it
 * starts. */
void lks_test_default_signals(void);

/* The tool just built, or the one that LKS_TEST_PROGRAM names, which has one more device
 * (tests/device). */
const char *lks_test_program(void);
/* Does LKS_TEST_PROGRAM name one? Then laws leave out runs that differ on the host alone, since the
 * same program has made them without that device. */
bool lks_test_on_device(void);

/* "LD_PRELOAD=…" for a module: by a link, since the loader splits paths at blanks. */
const char *lks_test_preload(const char *module);

/* Start argv[0] (NULL-terminated; "lockstep" means lks_test_program()), with `env` ("NAME=VALUE",
 * NULL-terminated; may be NULL) added to the environment, and stdin empty. LKS_TEST_START counts
 * the children. */
lks_test_child lks_test_start(const char *const argv[], const char *const env[]);
/* Until the file at `path`, such as a child's out_path, has `text` in it: 20 s times
 * lks_test_patience(), then the test fails. */
void lks_test_wait_for_text(const char *path, const char *text);
/* True until the child ends; it can still be waited for. */
bool lks_test_is_running(const lks_test_child *child);
/* kill() of one process. Use it for process ids that were searched for: kill(-1, ...), after a
 * search that found none, would signal all processes of the machine. */
int lks_test_kill(pid_t pid, int sig);
/* Run any program with these arguments for at most 60 s, or a shell's command. lks_test_do(): its
 * exit code must be 0. */
#define lks_test_command(...) lks_test_run((const char *const[]){__VA_ARGS__, NULL}, NULL, 60)
#define lks_test_shell(...)   lks_test_command("sh", "-c", __VA_ARGS__)
#define lks_test_do(...)      assert_exits(0, lks_test_command(__VA_ARGS__))
/* Wait; if the child runs longer than lks_test_patience() times `timeout_s`, its process group is
 * killed and the test fails. */
lks_test_result lks_test_wait(const lks_test_child *child, double timeout_s);
lks_test_result lks_test_run(const char *const argv[], const char *const env[], double timeout_s);

/* lks_test_run() of the tool with these arguments, for at most 60 s. */
#define lks_test_tool(...)                                                                         \
    lks_test_run((const char *const[]){"lockstep", __VA_ARGS__, NULL}, NULL, 60)

/* `call` gives a program's result: it must have ended with the exit code `code`, and its stderr
 * must contain each text given, none of which may depend on the call. The value is that result. */
#define assert_exits(code, call, ...)                                                              \
    lks_test_exits((call), (code), __FILE__, __LINE__, LKS_TEST_TEXTS("", ##__VA_ARGS__))
lks_test_result lks_test_exits(lks_test_result r, int code, const char *file, int line,
                               const char *const texts[]);
