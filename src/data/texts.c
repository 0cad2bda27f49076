#include "data/texts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"

static const char stdin_name[] = "standard input";

static lks_status no_memory(void)
{
    return lks__fail(LKS_ERR_NOMEM, "no memory to list the input's files");
}

static bool is_jsonl(const char *path)
{
    const size_t n = strlen(path);
    return n >= 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

/* Put a file on the list, which takes `path` over. */
static lks_status add(lks__texts *t, char *path, uint64_t bytes, bool jsonl)
{
    if (t->n == t->room) {
        const size_t room = t->room == 0 ? 16 : 2 * t->room;
        lks__text_file *grown = realloc(t->files, room * sizeof *grown);
        if (grown == NULL) {
            free(path);
            return no_memory();
        }
        t->files = grown;
        t->room = room;
    }
    t->files[t->n++] = (lks__text_file){path, bytes, jsonl};
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

/* A file that no other program can open, and that is gone with this process. */
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

static lks_status copy_stdin(const char *dir, int to, uint64_t *bytes_p)
{
    enum { BLOCK = 1 << 20 };
    char *block = malloc(BLOCK);
    if (block == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to read standard input");
    lks_status st = LKS_OK;
    ssize_t n = 0;
    while (st == LKS_OK && (n = lks__sys_read_some(STDIN_FILENO, block, BLOCK)) > 0) {
        if (lks__sys_write_all(to, block, (size_t)n) < 0)
            st = fail_spool(dir);
        *bytes_p += (uint64_t)n;
    }
    if (n < 0)
        st = lks__sys_fail("cannot read", stdin_name);
    free(block);
    return st;
}

static lks_status add_stdin(lks__texts *t, bool lines)
{
    struct stat info;
    uint64_t bytes = 0;
    if (t->spool >= 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "--input=- was given twice, but standard input can only be read once");
    if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode) &&
        lseek(STDIN_FILENO, 0, SEEK_CUR) == 0) {
        t->spool = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
        if (t->spool < 0)
            return lks__sys_fail("cannot read", stdin_name);
        bytes = (uint64_t)info.st_size;
    } else {
        const char *tmp = getenv("TMPDIR"), *dir = tmp == NULL || *tmp == '\0' ? "/tmp" : tmp;
        LKS__TRY(open_spool(dir, &t->spool));
        LKS__TRY(copy_stdin(dir, t->spool, &bytes));
    }
    char *path = strdup(stdin_name);
    if (path == NULL)
        return no_memory();
    t->spooled = t->n;
    return add(t, path, bytes, lines);
}

/* --- files and folders ----------------------------------------------------------------------- */

static lks_status add_path(lks__texts *t, const char *path, const struct stat *info)
{
    char name[256];
    if (!S_ISREG(info->st_mode))
        return lks__fail(LKS_ERR_IO, "%s is not a regular file%s",
                         lks__escape(name, sizeof name, path, strlen(path)),
                         S_ISFIFO(info->st_mode) ? ", but a pipe: --input=- reads standard input"
                                                 : "");
    char *copy = strdup(path);
    return copy == NULL ? no_memory() : add(t, copy, (uint64_t)info->st_size, is_jsonl(path));
}

/* A file in a folder; a folder in it, or a device, is left out. */
static lks_status add_entry(lks__texts *t, const char *dir, const char *name)
{
    struct stat info;
    char *path;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return no_memory();
    lks_status st = LKS_OK;
    if (stat(path, &info) < 0)
        st = lks__sys_fail("cannot read", path);
    else if (S_ISREG(info.st_mode))
        st = add_path(t, path, &info);
    free(path);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const lks__text_file *)a)->path, ((const lks__text_file *)b)->path);
}

static lks_status add_folder(lks__texts *t, const char *path)
{
    const size_t first = t->n;
    DIR *dir = opendir(path);
    if (dir == NULL)
        return lks__sys_fail("cannot read", path);
    lks_status st = LKS_OK;
    for (struct dirent *e; st == LKS_OK;) {
        errno = 0;
        e = readdir(dir);
        if (e == NULL && errno != 0)
            st = lks__sys_fail("cannot read", path);
        if (e == NULL)
            break;
        if (e->d_name[0] != '.')
            st = add_entry(t, path, e->d_name);
    }
    closedir(dir);
    if (t->n > first)
        qsort(t->files + first, t->n - first, sizeof *t->files, by_name);
    return st;
}

static lks_status add_input(lks__texts *t, const char *path, bool stdin_lines)
{
    struct stat info;
    if (strcmp(path, LKS__TEXTS_STDIN) == 0)
        return add_stdin(t, stdin_lines);
    if (stat(path, &info) < 0)
        return lks__sys_fail("cannot read", path);
    return S_ISDIR(info.st_mode) ? add_folder(t, path) : add_path(t, path, &info);
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
    if (t->spool >= 0)
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
    return lks__fail(LKS_ERR_IO, "%s is no longer a regular file", path);
}

lks_status lks__texts_read(const lks__texts *t, size_t i, int fd, uint64_t at, size_t n, char *to)
{
    char name[256];
    const char *path = t->files[i].path;
    if (lks__sys_read_at(fd, to, n, at) >= 0)
        return LKS_OK;
    if (errno != 0)
        return lks__sys_fail("cannot read", path);
    return lks__fail(LKS_ERR_IO, "%s became shorter while it was read",
                     lks__escape(name, sizeof name, path, strlen(path)));
}
