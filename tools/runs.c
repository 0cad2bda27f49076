#include "runs.h"

#include <dirent.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/shell.h"
#include "base/text/utf8.h"
#include "files/checkpoint/ckpt.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"
#include "report/record/outdir.h"
#include "tool.h"

static lks_status add(const char *what, tool_runs *runs)
{
    lks__series *all = realloc(runs->all, (runs->n + 1) * sizeof *all);
    LKS__MEMORY(all, "for the runs");
    runs->all = all;
    LKS__TRY(lks__series_open(what, &runs->all[runs->n]));
    runs->n++;
    return LKS_OK;
}

static bool is_run(const char *dir)
{
    return lks__sys_has(dir, "metrics.jsonl");
}

/* True if `runs`, unless NULL, has the run in the folder `dir`. */
static bool is_known(const tool_runs *runs, const char *dir)
{
    const size_t n = lks__sys_path_length(dir);
    for (size_t i = 0; runs != NULL && i < runs->n; i++)
        if (strncmp(runs->all[i].dir, dir, n) == 0 && runs->all[i].dir[n] == '\0')
            return true;
    return false;
}

static void print_found(const char *tool, const char *dir, const tool_runs *runs, size_t first)
{
    enum { NAMED = 20 };
    char shown[4 * sizeof runs->all->name];
    const size_t n = runs->n - first;
    lks__escape(shown, sizeof shown, dir, strlen(dir));
    if (n == 0) {
        fprintf(stderr, "lockstep %s: no run in %s yet; waiting for the first one\n", tool, shown);
        return;
    }
    fprintf(stderr, "lockstep %s: %zu run%s in %s:", tool, n, n == 1 ? "" : "s", shown);
    for (size_t i = first; i < runs->n && i < first + NAMED; i++) {
        const char *name = runs->all[i].name;
        fprintf(stderr, "%s %s", i > first ? "," : "",
                lks__escape(shown, sizeof shown, name, strlen(name)));
    }
    fprintf(stderr, "%s\n", n > NAMED ? ", …" : "");
}

typedef lks_status on_run(void *ctx, const char *path, const char *name);

static lks_status count(void *ctx, const char *path, const char *name)
{
    *(size_t *)ctx += strncmp(name, "earlier-", 8) != 0; /* moved aside for this run */
    return LKS_OK;
}

/* Call fn(ctx, …) for the runs in the folder `dir` and, with `depth` 2, in its folders, such as
 * out/quickstart/run, in the order of their names ("2" before "10"). `prefix`, if not empty,
 * precedes the names. An empty folder is no error. With `known`, leave out its runs, and those that
 * can't be read yet. */
static lks_status add_inside(const char *dir, const char *prefix, int depth, const tool_runs *known,
                             on_run *fn, void *ctx)
{
    struct dirent **list;
    lks_status st = LKS_OK;
    const int n = scandir(dir, &list, NULL, versionsort);
    for (int i = 0; i < n; i++) {
        char path[LKS__SYS_PATH], name[256];
        bool wanted = list[i]->d_name[0] != '.' && list[i]->d_type != DT_REG && st == LKS_OK;
        snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
        snprintf(name, sizeof name, "%.100s%s%.150s", prefix, prefix[0] != '\0' ? "/" : "",
                 list[i]->d_name);
        /* A known run that is moved to earlier-1 leaves a folder without a run for a moment. */
        wanted = wanted && !is_known(known, path);
        if (wanted && is_run(path))
            st = fn(ctx, path, name);
        else if (wanted && depth > 1)
            st = add_inside(path, name, depth - 1, known, fn, ctx);
        if (known != NULL && st != LKS_ERR_NOMEM)
            st = LKS_OK;
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return st;
}

/* The folder of a run may contain other runs, which aren't shown. */
static void print_left_out(const char *tool, const char *dir)
{
    size_t n = 0;
    if (add_inside(dir, "", 2, NULL, count, &n) == LKS_OK && n > 0)
        fprintf(
            stderr,
            "lockstep %s: %s is a run, so the %zu run%s in it %s left out: give their folders\n",
            tool, lks__shown(dir, 512), n, n == 1 ? "" : "s", n == 1 ? "is" : "are");
}

static lks_status add_found(void *ctx, const char *path, const char *name)
{
    tool_runs *runs = ctx;
    LKS__TRY(add(path, runs));
    snprintf(runs->all[runs->n - 1].name, sizeof runs->all->name, "%s", name);
    lks__utf8_make(runs->all[runs->n - 1].name);
    return LKS_OK;
}

/* --- the folder of one run -------------------------------------------------------------------- */

static bool has_checkpoint(const char *folder)
{
    bool any;
    return lks__sys_has(folder, LKS__CKPT_STATE) || /* `folder` is itself a checkpoint */
           lks__ckpt_any(folder, &any) != LKS_OK || /* opening it will tell why */
           any;
}

enum { NEWEST = 5 };

/* The newest runs, newest first. */
struct newest {
    char paths[NEWEST][LKS__SYS_PATH];
    struct timespec at[NEWEST];
    size_t n;
};

static bool is_newer(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

static lks_status add_newest(void *ctx, const char *path, const char *name)
{
    struct newest *f = ctx;
    char file[LKS__SYS_PATH];
    struct stat info;
    size_t i = 0;
    snprintf(file, sizeof file, "%s/metrics.jsonl", path);
    if (stat(file, &info) != 0)
        return LKS_OK;
    while (i < f->n && !is_newer(&info.st_mtim, &f->at[i]))
        i++;
    if (i == NEWEST)
        return LKS_OK;
    f->n += f->n < NEWEST;
    memmove(f->paths + i + 1, f->paths + i, (f->n - 1 - i) * sizeof *f->paths);
    memmove(f->at + i + 1, f->at + i, (f->n - 1 - i) * sizeof *f->at);
    snprintf(f->paths[i], sizeof *f->paths, "%s", path);
    f->at[i] = info.st_mtim;
    return LKS_OK;
}

/* Print "A, B" into `out`: the newest runs in `folder`, quoted for a shell. "" if there are none.
 */
static void list_runs(const char *folder, char *out, size_t bytes)
{
    struct newest f = {.n = 0};
    out[0] = '\0';
    add_inside(folder, "", 2, NULL, add_newest, &f);
    for (size_t i = 0; i < f.n; i++)
        lks__append(out, bytes, ", ", "%s", lks__quoted(f.paths[i], 600));
}

/* Find the newest OUT/earlier-N with a checkpoint. Returns false, and "", if there is none. */
static bool find_earlier(const char *folder, char out[600])
{
    char path[600];
    out[0] = '\0';
    for (int n = 1; snprintf(path, sizeof path, "%.500s/earlier-%d", folder, n) > 0; n++) {
        if (!lks__sys_is_folder(path))
            break;
        if (has_checkpoint(path))
            strcpy(out, path);
    }
    return out[0] != '\0';
}

const char *tool_run_example(char out[600])
{
    struct newest f = {.n = 0};
    add_inside("out", "", 2, NULL, add_newest, &f);
    return lks__shell_word(out, 600, f.n > 0 ? f.paths[0] : "out/my");
}

/* If `folder`, which doesn't exist, names a checkpoint of a run, the message names those that the
 * run has. */
static lks_status check_checkpoint(const char *folder)
{
    char run[LKS__CKPT_PATH], bare[LKS__CKPT_PATH];
    snprintf(bare, sizeof bare, "%.*s", (int)lks__sys_path_length(folder), folder);
    const char *name = lks__sys_name(bare);
    const lks__entry e = lks__entry_parse(name);
    lks__ckpt ckpt;
    lks_status st = LKS_OK;
    lks__ckpt_parent(bare, run);
    if (!lks__sys_is_folder(run) || !has_checkpoint(run))
        return LKS_OK;
    if (strcmp(name, LKS__NAME_BEST) == 0)
        st = lks__ckpt_open_best(run, LKS__CKPT_ONLY_STATE, &ckpt);
    else if (e.kind == LKS__ENTRY_CKPT)
        st = lks__ckpt_open_iter(run, e.iter, LKS__CKPT_ONLY_STATE, &ckpt);
    else
        return LKS_OK;
    if (st == LKS_OK)
        lks__ckpt_close(&ckpt);
    return st;
}

lks_status tool_run_folder(const char *command, const char *folder)
{
    char other[600], word[600];
    struct stat info;
    const char *shown = lks__shown(folder, 512);
    if (stat(folder, &info) != 0) {
        if (errno != ENOENT && errno != ENOTDIR) /* a folder on the way may not be entered */
            return lks__sys_fail("cannot read", folder);
        LKS__TRY(check_checkpoint(folder));
        snprintf(other, sizeof other, "out/%.500s", folder);
        return lks__fail(LKS_ERR_CONFIG,
                         "there is no folder %s: give the folder of a run, as in `lockstep %s %s`",
                         shown, command,
                         is_run(other) ? lks__shell_word(word, sizeof word, other)
                                       : tool_run_example(word));
    }
    if (!S_ISDIR(info.st_mode))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is a file: give the folder of a run, as in `lockstep %s %s`", shown,
                         command, tool_run_example(word));
    return access(folder, X_OK) == 0 ? LKS_OK : lks__sys_fail("cannot read", folder);
}

lks_status tool_run_check(const char *command, const char *folder)
{
    char runs[3000], other[600];
    const char *shown = lks__shown(folder, 512);
    LKS__TRY(tool_run_folder(command, folder));
    LKS__TRY(lks__outdir_check(folder));
    if (has_checkpoint(folder))
        return LKS_OK;
    list_runs(folder, runs, sizeof runs);
    if (is_run(folder)) {
        const bool found = find_earlier(folder, other);
        return lks__fail(LKS_ERR_IO, "there is no checkpoint in %s: the run there %s%s%s", shown,
                         lks__outdir_free(folder, true) == LKS_OK
                             ? "ended before it wrote one, or its checkpoints were deleted; start "
                               "it again with the command that began it"
                             : "has not written one yet",
                         found ? ". An earlier run is in " : "",
                         found ? lks__quoted(other, 600) : "");
    }
    if (runs[0] != '\0')
        return lks__fail(LKS_ERR_CONFIG, "there is no checkpoint in %s: give a run in it%s: %s",
                         shown, strstr(runs, ", ") != NULL ? ", the newest first" : "", runs);
    if (lks__sys_has(folder, "ckpt.pt"))
        return lks__fail(LKS_ERR_CONFIG,
                         "there is no checkpoint in %s, only a ckpt.pt as nanoGPT writes it: "
                         "`lockstep resume` continues its run, and `sample`, `eval` and `export` "
                         "read it with --init_from=FOLDER",
                         shown);
    return lks__fail(LKS_ERR_CONFIG,
                     "there is no checkpoint in %s, so it is not the folder of a run: `lockstep "
                     "train TEXT` makes one",
                     shown);
}

/* --- several runs ----------------------------------------------------------------------------- */

/* Add a run or, for a folder of runs, the runs in it; without those in `known`, unless NULL. */
static lks_status add_named(const char *what, const tool_runs *known, tool_runs *runs)
{
    char name[256] = "";
    const char *dir = lks__series_dir(what);
    snprintf(name, sizeof name, "%.*s", (int)(dir > what ? dir - what - 1 : 0), what);
    if (is_known(known, dir))
        return LKS_OK;
    return is_run(dir) ? add(what, runs) : add_inside(dir, name, 2, known, add_found, runs);
}

/* The end of `dir` that consists of the same folders as `end`, or NULL. */
static const char *same_end(const char *dir, const char *end)
{
    const size_t n = strlen(dir), length = strlen(end);
    const bool fits = n == length || (n > length && dir[n - length - 1] == '/');
    return fits && strcmp(dir + n - length, end) == 0 ? dir + n - length : NULL;
}

static bool is_shared(const tool_runs *runs, const char *dir, const char *end)
{
    for (size_t i = 0; i < runs->n; i++)
        if (same_end(runs->all[i].dir, end) != NULL && strcmp(runs->all[i].dir, dir) != 0)
            return true;
    return false;
}

/* Add parents to the names of runs until they differ: PARENT/NAME. */
static void tell_apart(tool_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++) {
        lks__series *run = &runs->all[i];
        const char *from = same_end(run->dir, run->name);
        if (run->named || from == NULL)
            continue;
        while (from - run->dir >= 2 && is_shared(runs, run->dir, from))
            for (from -= 2; from > run->dir && from[-1] != '/';)
                from--;
        snprintf(run->name, sizeof run->name, "%.255s", from);
        lks__utf8_make(run->name);
    }
}

static void find_runs(tool_runs *runs)
{
    const lks__args *args = runs->ctx;
    const size_t before = runs->n;
    for (int i = 0; i < args->n_positional; i++)
        add_named(args->positional[i], runs, runs);
    if (runs->n > before)
        tell_apart(runs);
}

/* With `waits`, a folder may have no run yet. */
static lks_status open_runs(const char *tool, const lks__args *args, bool waits, tool_runs *runs)
{
    char example[600];
    if (args->n_positional == 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "give one or more run folders, for example %s, each with a name if you "
                         "like (NAME=FOLDER), or a folder of runs",
                         tool_run_example(example));
    for (int i = 0; i < args->n_positional; i++) {
        const char *what = args->positional[i], *dir = lks__series_dir(what);
        const size_t before = runs->n;
        if (!is_run(dir))
            LKS__TRY(tool_run_folder(tool, dir));
        LKS__TRY(add_named(what, NULL, runs));
        /* A program with liblockstep writes checkpoints alone. add() says why there is no run. */
        if (runs->n == before && (!waits || has_checkpoint(dir)))
            return add(what, runs);
        if (!is_run(dir))
            print_found(tool, dir, runs, before);
        else
            print_left_out(tool, dir);
    }
    tell_apart(runs);
    return LKS_OK;
}

int tool_runs_main(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   lks_status (*run)(const lks__settings *s, tool_runs *runs))
{
    lks__settings s;
    lks__args args;
    tool_runs runs = {.find = find_runs, .ctx = &args};
    int code;
    if (!tool_settings(name, command, usage, argc, argv, LKS__ARGS_POSITIONAL, &s, &args, &code))
        return code;
    const bool waits = command == LKS__CMD_WATCH && s.html[0] == '\0';
    lks_status st = open_runs(name, &args, waits, &runs);
    LKS__THEN(st, run(&s, &runs));
    for (size_t i = 0; i < runs.n; i++)
        lks__series_close(&runs.all[i]);
    free(runs.all);
    return st == LKS_OK ? TOOL_OK : tool_fail(name, st);
}

int tool_columns(int otherwise)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return columns != NULL && atoi(columns) > 0 ? atoi(columns) : otherwise;
}

bool tool_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = locale != (locale_t)0 && strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    if (locale != (locale_t)0)
        freelocale(locale);
    return utf8;
}
