#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "data/text/sentencepiece/spm.h"
#include "files/zip/zip_module.h"
#include "settings/settings.h"

/* ---- memory and folders that are kept until the end -------------------------------------- */

struct kept {
    struct kept *next;
    char *text;
    json_t *json;
    pid_t folder_of; /* process that made the folder `text`, which must be removed; 0: no folder */
};

static struct kept *kept_list;
static int n_skipped;
static bool only_shared, asked_shared;

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    if (remove(path) < 0 && type == FTW_DP)
        perror(path);
    return 0;
}

static void clean_up(void)
{
    while (kept_list) {
        struct kept *k = kept_list;
        kept_list = k->next;
        /* A forked child that exits must not remove its parent's folders. */
        if (k->folder_of == getpid())
            nftw(k->text, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        free(k->text);
        json_decref(k->json);
        free(k);
    }
}

static void keep(char *text, json_t *json, pid_t folder_of)
{
    struct kept *k = lks_test_malloc(sizeof *k);
    if (!kept_list)
        atexit(clean_up);
    *k = (struct kept){kept_list, text, json, folder_of};
    kept_list = k;
}

/* ---- expectations ------------------------------------------------------------------------ */

void lks_test_failed(lks_status got, lks_status want, const char *call, const char *file, int line,
                     const char *const texts[])
{
    if (got != want) {
        print_error("%s returned \"%s\" (%s), not \"%s\"\n", call, lks_status_text(got),
                    got == LKS_OK ? "" : lks_last_error(), lks_status_text(want));
        _fail(file, line);
    }
    lks_test_contains(lks_last_error(), file, line, texts);
}

void lks_test_near(double got, double want, double tolerance, const char *what, const char *file,
                   int line)
{
    if (isfinite(got) && fabs(got - want) <= tolerance)
        return;
    print_error("%s is %.17g, not %.17g (off by %.3g, allowed %.3g)\n", what, got, want,
                fabs(got - want), tolerance);
    _fail(file, line);
}

const char lks_test_end[] = "";

char *lks_test_find_at(const char *text, const char *part, const char *file, int line)
{
    lks_test_contains(text, file, line, LKS_TEST_TEXTS(part));
    return strstr(text, part);
}

void lks_test_contains(const char *text, const char *file, int line, const char *const parts[])
{
    for (; *parts != lks_test_end; parts++) {
        if (*parts && strstr(text, *parts))
            continue;
        print_error("\"%s\" is not in: %s\n", *parts ? *parts : "(NULL)", text);
        _fail(file, line);
    }
}

lks_test_result lks_test_exits(lks_test_result r, int code, const char *file, int line,
                               const char *const texts[])
{
    if (r.exit_code != code) { /* cmocka cuts each text at 1,023 bytes */
        print_error("%s\n", r.command);
        print_error("exit code %d, not %d; signal %d; %.1f s\n", r.exit_code, code, r.signal,
                    r.seconds);
        print_error("stderr: %s\n", r.err);
        print_error("stdout: %s\n", r.out);
        _fail(file, line);
    }
    lks_test_contains(r.err, file, line, texts);
    return r;
}

void lks_test_same_file(const char *a, const char *b, const char *file, int line)
{
    size_t a_bytes, b_bytes;
    const char *a_data = lks_test_read(a, &a_bytes), *b_data = lks_test_read(b, &b_bytes);
    if (a_bytes == b_bytes && memcmp(a_data, b_data, a_bytes) == 0)
        return;
    size_t i = 0;
    while (i < a_bytes && i < b_bytes && a_data[i] == b_data[i])
        i++;
    print_error("%s (%zu bytes) and %s (%zu bytes) differ from byte %zu on\n", a, a_bytes, b,
                b_bytes, i);
    _fail(file, line);
}

static void print_lacks(const char *what, const char *why)
{
    fflush(stderr);
    printf("SKIP: lacks %s: %.*s\n", what, (int)strcspn(why, "\n"), why);
    fflush(stdout);
}

void lks_test_lacks(const char *what, const char *why)
{
    print_lacks(what, why);
    n_skipped++;
    skip();
}

void lks_test_exit_lacks(const char *what, const char *why)
{
    print_lacks(what, why);
    exit(77);
}

/* `st` came from the level's own check (the processor lacks it) or from the kernels' check (the
 * GEMM library is missing, which is an error on any machine). */
static void open_level(lks_status st, const char *name, lks__cpu_level level, lks__kernels *k)
{
    lks__kernels unused;
    if (st == LKS_ERR_SUPPORT)
        lks_test_exit_lacks(name, lks_last_error());
    LKS__THEN(st, lks__kernels_open(level, k ? k : &unused));
    if (st == LKS_OK)
        return;
    printf("%s\n", lks_last_error());
    exit(1);
}

/* What a test without LOCKSTEP_CPU uses. */
static lks__cpu_level best_level(void)
{
    const char *name = lks_test_text("%s", getenv("LOCKSTEP_CPU"));
    lks__cpu_level level = LKS__CPU_PLAIN;
    unsetenv("LOCKSTEP_CPU");
    assert_ok(lks__cpu_level_get(&level));
    setenv("LOCKSTEP_CPU", name, 1);
    return level;
}

void lks_test_need_level(lks__kernels *k)
{
    const char *name = getenv("LOCKSTEP_CPU");
    const char *twin = getenv("LKS_TEST_BEST");
    lks__cpu_level level = LKS__CPU_PLAIN;
    lks_status st = lks__cpu_level_get(&level);
    if (st == LKS_OK && twin != NULL && *twin != '\0' && level == best_level())
        lks_test_exit_lacks("better-kernels",
                            lks_test_text("%s is the best level here: %s ran it", name, twin));
    open_level(st, name && *name ? name : lks__cpu_level_name(level), level, k);
}

bool lks_test_on_level(void)
{
    const char *asked = getenv("LOCKSTEP_CPU");
    return asked != NULL && *asked != '\0';
}

void lks_test_need_level_of(lks__cpu_level level, lks__kernels *k)
{
    setenv("LOCKSTEP_CPU", lks__cpu_level_name(level), 1);
    lks_test_need_level(k);
    unsetenv("LOCKSTEP_CPU");
}

void lks_test_need_gloo(void)
{
    const char *tool = LKS_TEST_TOOL;
    if (!lks_test_exists(
            lks_test_text("%.*s/lockstep_gloo.so", (int)(strrchr(tool, '/') - tool), tool)))
        lks_test_lacks("gloo", "its module was not built");
}

enum { MOST_TESTS = 100 };
static struct CMUnitTest added[MOST_TESTS];
static int at_line[MOST_TESTS], n_added;

void lks_test_add(struct CMUnitTest test, int line)
{
    int i = n_added++;
    if (n_added > MOST_TESTS)
        abort();
    for (; i > 0 && at_line[i - 1] > line; i--) {
        added[i] = added[i - 1];
        at_line[i] = at_line[i - 1];
    }
    added[i] = test;
    at_line[i] = line;
}

static void keep_tests(const bool keep[])
{
    int n = 0;
    for (int i = 0; i < n_added; i++)
        if (keep[i])
            added[n++] = added[i];
    n_added = n;
}

void lks_test_keep(const char *const names[])
{
    bool keep[MOST_TESTS] = {false};
    for (; *names != NULL; names++) {
        int i = 0;
        while (i < n_added && strcmp(added[i].name, *names) != 0)
            i++;
        if (i == n_added) {
            printf("no test is named %s\n", *names);
            exit(1);
        }
        keep[i] = true;
    }
    keep_tests(keep);
}

void lks_test_part(bool matching, const char *pattern)
{
    bool keep[MOST_TESTS] = {false};
    int n = 0;
    for (int i = 0; i < n_added; i++) {
        const bool matches = fnmatch(pattern, added[i].name, 0) == 0;
        keep[i] = matches == matching;
        n += matches;
    }
    if (n == 0) {
        printf("no test is named %s\n", pattern);
        exit(1);
    }
    keep_tests(keep);
}

void lks_test_choose(int argc, char **argv, const char *pattern)
{
    only_shared = argc == 2 && strcmp(argv[1], "shared") == 0;
    lks_test_part(only_shared, pattern);
}

int lks_test_run_all(CMFixtureFunction before, CMFixtureFunction after)
{
    if (n_added == 0) {
        printf("this program has no tests\n");
        return 1;
    }
    if (_cmocka_run_group_tests("tests", added, (size_t)n_added, before, after) != 0)
        return 1;
    if (only_shared && !asked_shared) {
        printf("no test asked for what may lie beside the repository\n");
        return 1;
    }
    return n_skipped > 0 ? 77 : 0;
}

__attribute__((weak)) int main(void)
{
    return lks_test_run_all(NULL, NULL);
}

/* ---- files ------------------------------------------------------------------------------- */

const char *lks_test_text(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    assert_true(n >= 0);
    keep(text, NULL, 0);
    return text;
}

static const char *folder_in(const char *base)
{
    char *path;
    assert_true(asprintf(&path, "%s/lockstep-test-XXXXXX", base) > 0);
    if (!mkdtemp(path))
        fail_msg("cannot make a folder like %s: %s", path, strerror(errno));
    keep(path, NULL, getpid());
    return path;
}

const char *lks_test_folder(void)
{
    const char *base = getenv("TMPDIR");
    return folder_in(base && *base ? base : "/tmp");
}

const char *lks_test_folder_in_memory(void)
{
    return access("/dev/shm", W_OK) == 0 ? folder_in("/dev/shm") : lks_test_folder();
}

void lks_test_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0)
        fail_msg("cannot write %s: %s", path, strerror(errno));
}

void lks_test_write_text(const char *path, const char *text)
{
    lks_test_write(path, text, strlen(text));
}

char *lks_test_read(const char *path, size_t *bytes_p)
{
    FILE *f = fopen(path, "rb");
    struct stat info;
    if (!f || fstat(fileno(f), &info) < 0)
        fail_msg("cannot read %s: %s", path, strerror(errno));
    size_t bytes = (size_t)info.st_size;
    char *data = lks_test_malloc(bytes + 1);
    bytes = fread(data, 1, bytes, f); /* less if the file is cut meanwhile, as by a resume */
    if (ferror(f))
        fail_msg("cannot read %s", path);
    fclose(f);
    data[bytes] = '\0';
    keep(data, NULL, 0);
    if (bytes_p)
        *bytes_p = bytes;
    return data;
}

const char *lks_test_proc(const char *fmt, ...)
{
    static char *text;
    static size_t room;
    char path[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(path, sizeof path, fmt, ap);
    va_end(ap);
    size_t bytes = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t got = fd >= 0; got > 0; bytes += (size_t)got) {
        if (bytes + (1 << 16) > room)
            text = realloc(text, room = 2 * room + (1 << 17));
        assert_non_null(text);
        got = read(fd, text + bytes, room - 2 - bytes);
        got = got < 0 ? 0 : got;
    }
    if (fd < 0)
        return "";
    close(fd);
    text[bytes] = text[bytes + 1] = '\0'; /* environ ends in two zeros then */
    return text;
}

void lks_test_overwrite(const char *path, long at, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "r+b");
    if (f == NULL || fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) != 0 || fgetc(f) == EOF ||
        fseek(f, -1, SEEK_CUR) != 0 || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0)
        fail_msg("cannot change %s: %s", path, strerror(errno));
}

void lks_test_alter(const char *path, long at)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) != 0)
        fail_msg("cannot read %s: %s", path, strerror(errno));
    const int was = fgetc(f);
    fclose(f);
    lks_test_overwrite(path, at, &(char){(char)(was ^ 4)}, 1);
}

bool lks_test_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

int lks_test_count_files(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        fail_msg("cannot list %s: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));) {
#ifdef __SANITIZE_THREAD__ /* A process that is killed while the sanitizer starts leaves this      \
                              file. */
        if (strncmp(e->d_name, "tsan.rodata.", 12) == 0)
            continue;
#endif
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(dir);
    return n;
}

long lks_test_pages(void)
{
    long pages;
    FILE *f = fopen("/proc/self/statm", "r"); /* whose size is 0 */
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    return pages;
}

int lks_test_in_little_memory(int (*fn)(const char *arg), const char *arg, size_t more)
{
    int code;
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        const rlim_t most = (rlim_t)lks_test_pages() * 4096 + more;
        const struct rlimit limit = {most, most};
        if (setrlimit(RLIMIT_AS, &limit) != 0)
            _exit(99);
#endif
        _exit(fn(arg));
    }
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

const char *lks_test_link(const char *path)
{
    char target[256];
    const ssize_t n = readlink(path, target, sizeof target);
    return n > 0 ? lks_test_text("%.*s", (int)n, target) : "";
}

const char *lks_test_sha256(const char *path)
{
    return lks_test_text("%.64s", lks_test_do("sha256sum", path).out);
}

const char *lks_test_copy_of(const char *folder)
{
    const char *copy = lks_test_folder();
    lks_test_do("cp", "-a", lks_test_text("%s/.", folder), copy);
    return copy;
}

const char *lks_test_shared(const char *name)
{
    const char *path = lks_test_text("%s/../shared/%s", LKS_TEST_SOURCE_DIR, name);
    asked_shared = true;
    if (!lks_test_exists(path))
        lks_test_lacks("shared", name);
    return path;
}

/* ---- figures and data -------------------------------------------------------------------- */

static json_t *load_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    if (!json)
        fail_msg("%s: line %d: %s", path, error.line, error.text);
    keep(NULL, json, 0);
    return json;
}

const json_t *lks_test_figure(const char *name)
{
    return load_json(
        name[0] == '/' ? name : lks_test_text("%s/tests/figures/%s", LKS_TEST_SOURCE_DIR, name));
}

const json_t *lks_test_member(const json_t *json, const char *dotted)
{
    char part[128];
    for (const char *p = dotted; json && *p;) {
        size_t n = strcspn(p, ".");
        assert_true(n < sizeof part);
        memcpy(part, p, n);
        part[n] = '\0';
        const long i = strtol(part, NULL, 10);
        json = !json_is_array(json)
                   ? json_object_get(json, part)
                   : json_array_get(json, (size_t)(i < 0 ? (long)json_array_size(json) + i : i));
        p += n + (p[n] == '.');
    }
    if (!json)
        fail_msg("there is no \"%s\"", dotted);
    return json;
}

double lks_test_number(const json_t *json, const char *dotted)
{
    const json_t *number = lks_test_member(json, dotted);
    if (!json_is_number(number))
        fail_msg("\"%s\" is not a number", dotted);
    return json_number_value(number);
}

const char *lks_test_string(const json_t *json, const char *dotted)
{
    const json_t *string = lks_test_member(json, dotted);
    if (!json_is_string(string))
        fail_msg("\"%s\" is not a string", dotted);
    return json_string_value(string);
}

const json_t *lks_test_json(const char *text)
{
    json_t *json = json_loads(text, 0, NULL);
    if (json == NULL)
        fail_msg("not JSON: %s", text);
    keep(NULL, json, 0);
    return json;
}

const json_t *lks_test_metrics(const char *path, const char *kind)
{
    json_t *lines = json_array();
    keep(NULL, lines, 0);
    const char *p = lks_test_read(path, NULL);
    for (int line = 1; *p; line++) {
        json_error_t error;
        size_t n = strcspn(p, "\n");
        json_t *json = json_loadb(p, n, 0, &error);
        if (!json || p[n] != '\n')
            fail_msg("%s, line %d is not a whole JSON line: %.*s", path, line, (int)n, p);
        const char *is = json_string_value(json_object_get(json, "kind"));
        if (!kind || (is && strcmp(is, kind) == 0))
            json_array_append(lines, json);
        json_decref(json);
        p += n + 1;
    }
    return lines;
}

const json_t *lks_test_record(const char *run, const char *kind)
{
    return lks_test_metrics(lks_test_text("%s/metrics.jsonl", run), kind);
}

/* The generator of the figures' README: advances x, returns the token that follows t. */
static uint32_t next_generated(uint32_t *x_p, uint32_t t, uint32_t i, uint32_t vocab)
{
    uint32_t x = *x_p;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    *x_p = x;
    return (x & 3 ? 5 * t + 17 + i % 7 : x >> 8) % vocab;
}

static uint16_t *generate(uint32_t vocab, uint32_t n)
{
    uint32_t x = 12345, t = 0;
    uint16_t *ids = lks_test_malloc(n * sizeof *ids);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            t = next_generated(&x, t, i, vocab);
        ids[i] = (uint16_t)t;
    }
    return ids;
}

static uint8_t *put_u16(uint8_t *out, const uint16_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        *out++ = (uint8_t)ids[i];
        *out++ = (uint8_t)(ids[i] >> 8);
    }
    return out;
}

enum { GENERATED_VOCAB = 65, GENERATED_TRAIN = 200000, GENERATED_VAL = 20000 };

void lks_test_generated_tokens(const char *folder)
{
    lks_test_generated_vocabulary(folder, GENERATED_VOCAB);
}

void lks_test_generated_vocabulary(const char *folder, uint32_t vocab)
{
    uint16_t *ids = generate(vocab, GENERATED_TRAIN + GENERATED_VAL);
    uint8_t *bytes = lks_test_malloc(2 * (GENERATED_TRAIN + GENERATED_VAL));
    put_u16(bytes, ids, GENERATED_TRAIN + GENERATED_VAL);
    lks_test_write(lks_test_text("%s/train.bin", folder), bytes, 2 * GENERATED_TRAIN);
    lks_test_write(lks_test_text("%s/val.bin", folder), bytes + 2 * GENERATED_TRAIN,
                   2 * GENERATED_VAL);
    lks_test_free(bytes, ids);
}

void lks_test_write_shard(const char *path, const uint16_t *ids, size_t n)
{
    const size_t header_bytes = 1024;
    const uint32_t head[3] = {20240520, 1, (uint32_t)n};
    uint8_t *bytes = lks_test_calloc(1, header_bytes + 2 * n);
    for (int i = 0; i < 12; i++)
        bytes[i] = (uint8_t)(head[i / 4] >> (8 * (i % 4)));
    put_u16(bytes + header_bytes, ids, n);
    lks_test_write(path, bytes, header_bytes + 2 * n);
    free(bytes);
}

void lks_test_golf_tokens(const char *folder, size_t n_val)
{
    uint16_t *ids = generate(1024, 220000);
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", folder), ids, 120000);
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000001.bin", folder), ids + 120000, 80000);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", folder), ids + 200000, n_val);
    free(ids);
}

void lks_test_generated_golf(const char *folder)
{
    lks_test_golf_tokens(folder, 20000);
}

void lks_test_short_golf(const char *folder)
{
    lks_test_golf_tokens(folder, 2500);
}

void lks_test_parse(struct lks__settings *s, const char *const words[])
{
    lks__args args;
    int n = 0;
    while (words[n] != NULL)
        n++;
    lks__settings_defaults(s);
    assert_ok(lks__settings_parse(s, LKS__CMD_TRAIN, n, (char *const *)(uintptr_t)words, 0, &args));
}

const char *lks_test_modules(void)
{
    const char *tool = LKS_TEST_TOOL;
    const char *folder = lks_test_text("%.*s", (int)(strrchr(tool, '/') - tool), tool);
    setenv("LOCKSTEP_MODULES", folder, 1);
    return folder;
}

void lks_test_need_sentencepiece(void)
{
    if (!lks_test_exists(lks_test_text("%s/%s", lks_test_modules(), LKS__SPM_MODULE_FILE)))
        lks_test_lacks("sentencepiece", "its module was not built");
    assert_ok(lks__spm_available()); /* it was built, so it must work */
}

void lks_test_need_zip(void)
{
    if (!lks_test_exists(lks_test_text("%s/%s", lks_test_modules(), LKS__ZIP_MODULE_FILE)))
        lks_test_exit_lacks("libzip", "its module was not built");
}

/* ---- memory ------------------------------------------------------------------------------ */

void *lks_test_malloc(size_t bytes)
{
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

void *lks_test_calloc(size_t n, size_t bytes)
{
    void *p = calloc(n, bytes);
    assert_non_null(p);
    return p;
}

void lks_test_free_all(void *const list[], size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(list[i]);
}

/* ---- time -------------------------------------------------------------------------------- */

double lks_test_patience(void)
{
    const char *text = getenv("LKS_TEST_PATIENCE");
    double times = text && *text ? strtod(text, NULL) : LKS_TEST_PATIENCE;
    assert_true(times >= 0.01 && times <= 1000);
    return times;
}

int lks_test_tries(int n)
{
    return (int)(n * lks_test_patience());
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Counts time, not tries: a condition may run a program. */
void lks_test_again(double *start_s, const char *condition, const char *file, int line)
{
    const double most_s = 60 * lks_test_patience();
    if (*start_s == 0)
        *start_s = now();
    if (now() - *start_s < most_s) {
        usleep(2000);
        return;
    }
    print_error("not within %.0f s: %s\n", most_s, condition);
    _fail(file, line);
}

/* Binds a socket to the port, or to any if it is 0; -1 if somebody has it. */
static int bind_port(int port, int *port_p)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        assert_true(port != 0 && errno == EADDRINUSE);
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *port_p = ntohs(at.sin_port);
    return fd;
}

int lks_test_bind(int *port_p)
{
    return bind_port(0, port_p);
}

/* Keeps the port until the program ends, but lets a server that reuses addresses listen on it. */
static void reserve(int fd)
{
    const int on = 1;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
}

int lks_test_free_port(void)
{
    int port;
    reserve(bind_port(0, &port));
    return port;
}

int lks_test_two_free_ports(void)
{
    for (;;) {
        int port, next;
        const int first = bind_port(0, &port);
        const int second = port < 65535 ? bind_port(port + 1, &next) : -1; /* port 0 is any */
        if (second >= 0) {
            reserve(first);
            reserve(second);
            return port;
        }
        close(first);
    }
}

int lks_test_pipe_begin(int fd, int *kept_p)
{
    int ends[2];
    fflush(NULL);
    signal(SIGPIPE, SIG_IGN);
    *kept_p = dup(fd);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    assert_int_equal(dup2(ends[1], fd), fd);
    close(ends[1]);
    return ends[0];
}

void lks_test_pipe_end(int fd, int kept)
{
    dup2(kept, fd);
    close(kept);
}

/* ---- child processes --------------------------------------------------------------------- */

void lks_test_default_signals(void)
{
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], SIG_DFL);
}

const char *lks_test_program(void)
{
    const char *path = getenv("LKS_TEST_PROGRAM");
    return path != NULL && *path != '\0' ? path : LKS_TEST_TOOL;
}

bool lks_test_on_device(void)
{
    return strcmp(lks_test_program(), LKS_TEST_TOOL) != 0;
}

const char *lks_test_preload(const char *module)
{
    const char *link = lks_test_text("%s/module.so", lks_test_folder());
    assert_int_equal(symlink(module, link), 0);
    return lks_test_text("LD_PRELOAD=%s", link);
}

/* `environ` with these variables instead of others of their names. */
static const char **environment(const char *count, const char *const env[])
{
    size_t n_env = 0, n = 0, n_own;
    while (env != NULL && env[n_env] != NULL)
        n_env++;
    while (environ[n] != NULL)
        n++;
    const char **all = lks_test_malloc((1 + n_env + n + 1) * sizeof *all);
    all[0] = count;
    for (n = 1; n <= n_env; n++)
        all[n] = env[n_env - n]; /* the last of a name counts */
    n_own = n;
    for (char **e = environ; *e != NULL; e++) {
        size_t i = 0;
        while (i < n_own && strncmp(all[i], *e, strcspn(*e, "=") + 1) != 0)
            i++;
        if (i == n_own)
            all[n++] = *e;
    }
    all[n] = NULL;
    return all;
}

/* In a child that shares its parent's memory. */
_Noreturn static void become(const lks_test_child *child, const char *program,
                             const char *const argv[], const char *const env[])
{
    setpgid(0, 0);
    lks_test_default_signals();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if a test is killed, its children end too */
    int in = open("/dev/null", O_RDONLY), flags = O_WRONLY | O_CREAT | O_TRUNC;
    int out = open(child->out_path, flags, 0600), err = open(child->err_path, flags, 0600);
    if (in < 0 || out < 0 || err < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    /* execvpe's declaration lacks a const; it changes nothing. */
    execvpe(program, (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)env);
    dprintf(2, "cannot run %s: %s\n", program, strerror(errno));
    _exit(127);
}

/* vfork(), since fork() would copy the tables of all pages, which costs as much as a short run. */
__attribute__((noinline)) static pid_t start(const lks_test_child *child, const char *program,
                                             const char *const argv[], const char *const env[])
{
    const pid_t pid = vfork();
    if (pid == 0)
        become(child, program, argv, env);
    return pid;
}

lks_test_child lks_test_start(const char *const argv[], const char *const env[])
{
    /* Files instead of pipes: nobody has to read while the child writes, however much that is. */
    const char *folder = lks_test_folder();
    lks_test_child child = {.out_path = lks_test_text("%s/out", folder),
                            .err_path = lks_test_text("%s/err", folder),
                            .command = ""};
    /* With the thread sanitizer vfork() is fork(), so the child may open them only later. */
    lks_test_write(child.out_path, "", 0);
    lks_test_write(child.err_path, "", 0);
    for (int i = 0; env && env[i]; i++)
        child.command = lks_test_text("%s%s ", child.command, env[i]);
    for (int i = 0; argv[i]; i++)
        child.command = lks_test_text("%s%s ", child.command, argv[i]);
    static int n_started;
    const char *program = strcmp(argv[0], "lockstep") == 0 ? lks_test_program() : argv[0];
    const char **all = environment(lks_test_text("LKS_TEST_START=%d", n_started++), env);
    child.pid = start(&child, program, argv, all);
    free(all);
    assert_true(child.pid > 0);
    return child;
}

void lks_test_wait_for_text(const char *path, const char *text)
{
    for (int i = 0; i < lks_test_tries(10000); i++) {
        if (lks_test_exists(path) && strstr(lks_test_read(path, NULL), text) != NULL)
            return;
        usleep(2000);
    }
    fail_msg("no \"%s\" in %s", text, lks_test_exists(path) ? lks_test_read(path, NULL) : path);
}

bool lks_test_is_running(const lks_test_child *child)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

int lks_test_kill(pid_t pid, int sig)
{
    assert_true(pid > 1);
    return kill(pid, sig);
}

lks_test_result lks_test_wait(const lks_test_child *child, double timeout_s)
{
    lks_test_result r = {.exit_code = -1, .command = child->command};
    bool timed_out = false;
    double start = now();
    int status;
    pid_t done;
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, child->pid, 0), .events = POLLIN};
    while ((done = waitpid(child->pid, &status, WNOHANG)) == 0) {
        if (now() - start > lks_test_patience() * timeout_s && !timed_out) {
            timed_out = true;
            kill(-child->pid, SIGKILL);
        }
        poll(&ended, 1, ended.fd >= 0 ? 100 : 2);
    }
    if (ended.fd >= 0)
        close(ended.fd);
    assert_int_equal(done, child->pid);
    r.seconds = now() - start;
    if (WIFEXITED(status))
        r.exit_code = WEXITSTATUS(status);
    else
        r.signal = WTERMSIG(status);
    r.out = lks_test_exists(child->out_path) ? lks_test_read(child->out_path, NULL) : "";
    r.err = lks_test_exists(child->err_path) ? lks_test_read(child->err_path, NULL) : "";
    if (timed_out)
        fail_msg("%swas killed after %.0f s (LKS_TEST_PATIENCE=5 allows five times as long). Its "
                 "stderr: %s",
                 child->command, r.seconds, r.err);
    /* A sanitizer's report is a failure, whatever exit code the caller expects. */
    if (strstr(r.err, "Sanitizer: ") != NULL || strstr(r.err, ": runtime error: ") != NULL)
        fail_msg("%s", r.err);
    return r;
}

lks_test_result lks_test_run(const char *const argv[], const char *const env[], double timeout_s)
{
    lks_test_child child = lks_test_start(argv, env);
    return lks_test_wait(&child, timeout_s);
}
