#include "data/prep/input/texts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/list.h"
#include "base/system/sys.h"
#include "data/text/encoding.h"

static lks_status no_memory(void)
{
    return lks__no_memory("to list the input's files");
}

static bool is_jsonl(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcasecmp(dot, ".jsonl") == 0 || strcasecmp(dot, ".ndjson") == 0);
}

/* As lks__list_grow(). If out of memory, free `path`, which the list would have owned. */
static lks_status grow(void *list_p, size_t n, size_t *room_p, size_t bytes, char *path)
{
    if (lks__list_grow(list_p, n, room_p, bytes))
        return LKS_OK;
    free(path);
    return no_memory();
}

/* Append a file to the list, which then owns `path`. */
static lks_status add(lks__texts *t, char *path, const struct stat *info, bool jsonl)
{
    LKS__TRY(grow(&t->files, t->n, &t->room, sizeof *t->files, path));
    const uint64_t bytes = (uint64_t)info->st_size;
    t->files[t->n++] = (lks__text_file){path, bytes, jsonl, info->st_dev, info->st_ino};
    t->bytes += bytes;
    return LKS_OK;
}

/* --- standard input -------------------------------------------------------------------------- */

static lks_status fail_spool(const char *dir)
{
    lks__sys_fail("cannot keep standard input in", dir);
    return lks__fail(errno == ECANCELED ? LKS_ERR_STOPPED : LKS_ERR_IO,
                     "%s; set TMPDIR to a folder with enough space", lks_last_error());
}

/* Create a file without a name: other programs can't open it, and it disappears with this
 * process. */
static lks_status open_spool(const char *dir, int *fd_p)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/lockstep-prep-XXXXXX", dir);
    *fd_p = mkostemp(path, O_CLOEXEC);
    if (*fd_p < 0)
        return fail_spool(dir);
    unlink(path);
    return LKS_OK;
}

static lks_status copy_stdin(const char *dir, int to)
{
    enum { BLOCK = 1 << 20 };
    char *block = malloc(BLOCK);
    LKS__MEMORY(block, "to read standard input");
    lks_status st = LKS_OK;
    ssize_t n = 0;
    while (st == LKS_OK && (n = lks__sys_read_some(STDIN_FILENO, block, BLOCK)) > 0)
        if (lks__sys_write_all(to, block, (size_t)n) < 0)
            st = fail_spool(dir);
    if (n < 0)
        st = lks__sys_fail("cannot read", LKS__STDIN_NAME);
    free(block);
    return st;
}

static lks_status add_stdin(lks__texts *t, bool lines)
{
    struct stat info;
    if (t->spool >= 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "--input=- was given twice, but standard input can only be read once");
    if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode) &&
        lseek(STDIN_FILENO, 0, SEEK_CUR) == 0) {
        t->spool = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
        if (t->spool < 0)
            return lks__sys_fail("cannot read", LKS__STDIN_NAME);
    } else {
        const char *tmp = getenv("TMPDIR"), *dir = tmp == NULL || *tmp == '\0' ? "/tmp" : tmp;
        LKS__TRY(open_spool(dir, &t->spool));
        LKS__TRY(copy_stdin(dir, t->spool));
        if (fstat(t->spool, &info) < 0)
            return fail_spool(dir);
    }
    char *path = strdup(LKS__STDIN_NAME);
    if (path == NULL)
        return no_memory();
    t->spooled = t->n;
    return add(t, path, &info, lines);
}

/* --- files ----------------------------------------------------------------------------------- */

static lks_status add_path(lks__texts *t, const char *path, const struct stat *info)
{
    if (!S_ISREG(info->st_mode))
        return lks__fail(LKS_ERR_IO, "%s is not a regular file%s", lks__shown(path, 256),
                         S_ISFIFO(info->st_mode)
                             ? ", but a pipe: give it to `lockstep prep` as standard "
                               "input, with --input=-"
                             : "");
    char *copy = strdup(path);
    return copy == NULL ? no_memory() : add(t, copy, info, is_jsonl(path));
}

/* --- folders --------------------------------------------------------------------------------- */

/* Folders still to be read. They are a list because recursion would keep a descriptor open for each
 * level of nesting. */
struct walk {
    lks__texts *t;
    char **folders;
    size_t n, room;
};

/* Append an entry to the list of skipped entries, which then owns `path`. */
static lks_status leave(lks__texts *t, char *path, const char *why)
{
    LKS__TRY(grow(&t->left, t->n_left, &t->left_room, sizeof *t->left, path));
    t->left[t->n_left++] = (lks__text_left){path, why};
    return LKS_OK;
}

/* Append a folder to the list, which then owns `path`. */
static lks_status add_folder(struct walk *w, char *path)
{
    LKS__TRY(grow(&w->folders, w->n, &w->room, sizeof *w->folders, path));
    w->folders[w->n++] = path;
    return LKS_OK;
}

/* Why a file isn't text, judged by its first bytes; NULL: it may be text. */
static lks_status look_at_file(const char *path, const char **why_p)
{
    char head[LKS__TEXT_HEAD];
    /* O_NONBLOCK: if it has become a pipe, opening it must not block. */
    const int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return lks__sys_fail("cannot read", path);
    const ssize_t n = lks__sys_read_some(fd, head, sizeof head);
    lks_status st = n < 0 ? lks__sys_fail("cannot read", path) : LKS_OK;
    lks__sys_close(fd);
    LKS__TRY(st);
    *why_p = lks__container_name(head, (size_t)n);
    if (*why_p == NULL && memchr(head, 0, (size_t)n) != NULL)
        *why_p = "binary";
    return LKS_OK;
}

/* A description of a folder written by our programs, or NULL. The folder of the texts often
 * contains such folders. */
static const char *our_folder(const char *path)
{
    static const struct {
        const char *name, *why;
    } marks[] = {{"metrics.jsonl", "folder of a run"},
                 {"data.tmp", "folder of a run"}, /* of a run that is starting */
                 {"train.bin", "folder of tokens"},
                 {"fineweb_train_000000.bin", "folder of tokens"}};
    char *file;
    const char *why = NULL;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0] && why == NULL; i++)
        if (asprintf(&file, "%s/%s", path, marks[i].name) >= 0) {
            why = access(file, F_OK) == 0 ? marks[i].why : NULL;
            free(file);
        }
    return why;
}

/* Why a folder's entry is skipped. NULL: it is read, and *info describes it. */
static lks_status look_at_entry(const char *path, struct stat *info, const char **why_p)
{
    struct stat own;
    *why_p = NULL;
    if (lstat(path, &own) < 0)
        return lks__sys_fail("cannot read", path);
    const bool is_link = S_ISLNK(own.st_mode);
    if (stat(path, info) < 0) {
        *why_p = is_link ? "broken link" : NULL;
        return is_link ? LKS_OK : lks__sys_fail("cannot read", path);
    }
    if (S_ISDIR(info->st_mode)) {
        *why_p = is_link ? "link to a folder" : our_folder(path);
        return LKS_OK;
    }
    if (!S_ISREG(info->st_mode)) {
        *why_p = "no regular file";
        return LKS_OK;
    }
    return is_jsonl(path) ? LKS_OK : look_at_file(path, why_p);
}

static lks_status add_entry(const char *dir, const char *name, void *ctx)
{
    struct walk *w = ctx;
    struct stat info;
    char *path;
    const char *why = "hidden";
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return no_memory();
    lks_status st = name[0] == '.' ? LKS_OK : look_at_entry(path, &info, &why);
    if (st != LKS_OK) {
        free(path);
        return st;
    }
    if (why != NULL)
        return leave(w->t, path, why);
    if (S_ISDIR(info.st_mode))
        return add_folder(w, path);
    return add(w->t, path, &info, is_jsonl(path));
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const lks__text_file *)a)->path, ((const lks__text_file *)b)->path);
}

static int by_left_path(const void *a, const void *b)
{
    return strcmp(((const lks__text_left *)a)->path, ((const lks__text_left *)b)->path);
}

static lks_status add_tree(lks__texts *t, const char *path)
{
    struct walk w = {.t = t};
    const size_t first = t->n, first_left = t->n_left;
    char *copy = strdup(path);
    lks_status st = copy == NULL ? no_memory() : add_folder(&w, copy);
    for (size_t i = 0; st == LKS_OK && i < w.n; i++)
        st = lks__sys_each_name("cannot read", w.folders[i], add_entry, &w);
    for (size_t i = 0; i < w.n; i++)
        free(w.folders[i]);
    free(w.folders);
    if (t->n > first)
        qsort(t->files + first, t->n - first, sizeof *t->files, by_path);
    if (t->n_left > first_left)
        qsort(t->left + first_left, t->n_left - first_left, sizeof *t->left, by_left_path);
    return st;
}

static lks_status add_input(lks__texts *t, const char *path, bool stdin_lines)
{
    struct stat info;
    if (strcmp(path, LKS__TEXTS_STDIN) == 0)
        return add_stdin(t, stdin_lines);
    if (stat(path, &info) < 0)
        return lks__sys_fail("cannot read", path);
    return S_ISDIR(info.st_mode) ? add_tree(t, path) : add_path(t, path, &info);
}

lks_status lks__texts_open(const char *input, bool stdin_lines, lks__texts *t)
{
    *t = (lks__texts){.spool = -1};
    char *lines = strdup(input), *rest = lines;
    if (lines == NULL)
        return no_memory();
    lks_status st = LKS_OK;
    for (char *line; st == LKS_OK && (line = strsep(&rest, "\n")) != NULL;)
        st = add_input(t, line, stdin_lines);
    free(lines);
    return st;
}

void lks__texts_close(lks__texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->files[i].path);
    free(t->files);
    for (size_t i = 0; i < t->n_left; i++)
        free(t->left[i].path);
    free(t->left);
    lks__sys_close(t->spool);
    *t = (lks__texts){.spool = -1};
}

lks_status lks__texts_file(const lks__texts *t, size_t i, int *fd_p)
{
    struct stat info;
    const char *path = t->files[i].path;
    if (t->spool >= 0 && i == t->spooled) {
        *fd_p = fcntl(t->spool, F_DUPFD_CLOEXEC, 0);
        return *fd_p >= 0 ? LKS_OK : lks__sys_fail("cannot read", path);
    }
    /* O_NONBLOCK: if it has become a pipe, opening it must not block. */
    const int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return lks__sys_fail("cannot read", path);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *fd_p = fd;
        return LKS_OK;
    }
    lks__sys_close(fd);
    return lks__fail(LKS_ERR_IO, "%s is no longer a regular file", lks__shown(path, 256));
}

lks_status lks__texts_read(const lks__texts *t, size_t i, int fd, uint64_t at, size_t n, char *to)
{
    const char *path = t->files[i].path;
    if (lks__sys_read_at(fd, to, n, at) >= 0)
        return LKS_OK;
    if (errno != 0)
        return lks__sys_fail("cannot read", path);
    return lks__fail(LKS_ERR_IO, "%s became shorter while it was read", lks__shown(path, 256));
}
