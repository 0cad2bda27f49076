/* base/system/sys_files.c - whole files and folders, with one sentence for a failure. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"

const char *lks__sys_reason(int err)
{
    static _Thread_local char text[160];
    struct rlimit limit;
    if (err != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return strerror(err);
    snprintf(text, sizeof text,
             "no file descriptor is left: this process may open %llu files; raise `ulimit -n`",
             (unsigned long long)limit.rlim_cur);
    return text;
}

const char *lks__sys_start_reason(int err)
{
    return err != EAGAIN ? strerror(err)
                         : "Resource temporarily unavailable; the limit on processes (ulimit -u, "
                           "or the container's) or on address space (ulimit -v) may be too low";
}

/* This thread's last messages about lasting failures: a failed clean-up may follow. */
enum { N_KEPT = 4 };
static _Thread_local char lasting[N_KEPT][1024];
static _Thread_local unsigned n_lasting;

bool lks__sys_is_lasting(const char *failure)
{
    for (unsigned i = 0; i < n_lasting && i < N_KEPT; i++)
        if (strstr(failure, lasting[i]) != NULL)
            return true;
    return false;
}

void lks__sys_set_lasting(const char *failure)
{
    snprintf(lasting[n_lasting++ % N_KEPT], sizeof lasting[0], "%s", failure);
}

lks_status lks__sys_failed_for(int err, lks_status st)
{
    if (err == ENOSPC || err == EDQUOT || err == EACCES || err == EPERM || err == EROFS)
        lks__sys_set_lasting(lks_last_error());
    return st;
}

lks_status lks__sys_fail(const char *what, const char *path)
{
    int err = errno;
    const char *name = lks__shown(path, 512);
    lks_status st = lks__fail(err == ECANCELED ? LKS_ERR_STOPPED : LKS_ERR_IO, "%s %s: %s", what,
                              name, err ? lks__sys_reason(err) : "the file ended early");
    return lks__sys_failed_for(err, st);
}

lks_status lks__sys_file_bytes(int fd, const char *path, uint64_t *bytes_p)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return lks__sys_fail("cannot read", path);
    if (!S_ISREG(info.st_mode))
        return lks__fail(
            LKS_ERR_IO, "cannot read %s: it is not a regular file%s", lks__shown(path, 512),
            S_ISFIFO(info.st_mode) ? ", but a pipe: write its content to a file first" : "");
    *bytes_p = (uint64_t)info.st_size;
    return LKS_OK;
}

lks_status lks__sys_read_file(const char *path, size_t limit, char **data_p, size_t *bytes_p)
{
    uint64_t bytes = 0;
    char *data = NULL;
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    int fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return lks__sys_fail("cannot open", path);
    lks_status st = lks__sys_file_bytes(fd, path, &bytes);
    if (st == LKS_OK && bytes > limit)
        st = lks__fail(LKS_ERR_FORMAT, "%s has %" PRIu64 " bytes; at most %zu are expected here",
                       lks__shown(path, 512), bytes, limit);
    else if (st == LKS_OK && (data = malloc((size_t)bytes + 1)) == NULL)
        st = lks__no_memory("for the %" PRIu64 " bytes of %s", bytes, lks__shown(path, 512));
    else if (st == LKS_OK && lks__sys_read_at(fd, data, (size_t)bytes, 0) < 0)
        st = lks__sys_fail("cannot read", path);
    lks__sys_close(fd);
    if (st != LKS_OK) {
        free(data);
        return st;
    }
    data[bytes] = '\0';
    *data_p = data;
    *bytes_p = (size_t)bytes;
    return LKS_OK;
}

lks_status lks__sys_target(const char *path, char target[PATH_MAX])
{
    struct stat info;
    /* /dev/stdout may be a link to a pipe, which has no path. */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return lks__fail(
            LKS_ERR_IO,
            "cannot write %s: it is a device, a pipe or a socket, which a file would replace",
            lks__shown(path, 512));
    if (realpath(path, target) != NULL)
        return LKS_OK;
    /* The file doesn't exist, or a later write reports the reason. */
    if (strlen(path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return lks__sys_fail("cannot write", path);
    }
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        return lks__fail(LKS_ERR_IO,
                         "cannot write %s: it is a symbolic link to nothing, which a file would "
                         "replace: remove it, or give another name",
                         lks__shown(path, 512));
    strcpy(target, path);
    return LKS_OK;
}

lks_status lks__sys_new_open(const char *path, lks__sys_new *f)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL;
    f->path = path;
    f->fd = -1;
    LKS__TRY(lks__sys_target(path, f->target));
    /* The process number separates two writers of one path. A file left by a killed process with
     * the same number is replaced. */
    const int n = snprintf(f->temp, sizeof f->temp, "%s.tmp-%ld", f->target, (long)getpid());
    if (n >= (int)sizeof f->temp) {
        errno = ENAMETOOLONG;
        return lks__sys_fail("cannot write", path);
    }
    f->fd = lks__sys_open(f->temp, flags, 0666);
    if (f->fd < 0 && errno == EEXIST) {
        unlink(f->temp);
        f->fd = lks__sys_open(f->temp, flags, 0666);
    }
    return f->fd >= 0 ? LKS_OK : lks__sys_fail("cannot write", path);
}

lks_status lks__sys_new_close(lks__sys_new *f, lks_status st)
{
    if (f->fd < 0)
        return st;
    if (st == LKS_OK && lks__sys_fsync(f->fd) < 0)
        st = lks__sys_fail("cannot write", f->path);
    if (lks__sys_close(f->fd) < 0 && st == LKS_OK)
        st = lks__sys_fail("cannot write", f->path);
    if (st == LKS_OK && lks__sys_rename(f->temp, f->target) < 0)
        st = lks__sys_fail("cannot write", f->path);
    if (st != LKS_OK)
        unlink(f->temp); /* bypasses the planted faults: clean up even if a test made a step fail */
    return st;
}

lks_status lks__sys_write_file(const char *path, const void *data, size_t bytes)
{
    lks__sys_new f;
    LKS__TRY(lks__sys_new_open(path, &f));
    return lks__sys_new_close(&f, lks__sys_write_all(f.fd, data, bytes) == 0
                                      ? LKS_OK
                                      : lks__sys_fail("cannot write", path));
}

lks_status lks__sys_may_replace(const char *path, const char *begin)
{
    char head[64];
    struct stat info;
    const size_t n = strlen(begin);
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return LKS_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool same = pread(fd, head, n, 0) == (ssize_t)n && memcmp(head, begin, n) == 0;
    close(fd);
    return same ? LKS_OK
                : lks__fail(LKS_ERR_IO,
                            "won't overwrite %s, which has other contents: remove it, or give "
                            "another name",
                            lks__shown(path, 256));
}

bool lks__sys_lacks_locks(int err)
{
    return err == ENOLCK || err == EOPNOTSUPP || err == ENOSYS || err == EINVAL;
}

lks_status lks__sys_make_own_dir(const char *path)
{
    struct stat info;
    if (lks__sys_mkdir(path, 0777) == 0)
        return LKS_OK;
    if (errno == EEXIST && lstat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return LKS_OK;
        errno = ENOTDIR;
    }
    return lks__sys_fail("cannot make the folder", path);
}

lks_status lks__sys_append(const char *path, int *fd_p)
{
    struct stat info;
    *fd_p = lks__sys_open(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (*fd_p < 0)
        return lks__sys_fail("can't open", path);
    if (fstat(*fd_p, &info) == 0 && S_ISREG(info.st_mode))
        return LKS_OK;
    lks__sys_close(*fd_p);
    *fd_p = -1;
    errno = EINVAL;
    return lks__fail(LKS_ERR_IO, "%s is not a regular file: move it away", lks__shown(path, 512));
}

/* Sync the folder around a new one, so that the new one survives a power failure. A folder that
 * this user may not read can't be synced. */
static lks_status sync_above(const char *path)
{
    char copy[PATH_MAX];
    const char *above = dirname(strcpy(copy, path));
    return access(above, R_OK) == 0 ? lks__sys_sync_dir(above) : LKS_OK;
}

lks_status lks__sys_make_dirs(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) {
        errno = n == 0 ? ENOENT : ENAMETOOLONG;
        return lks__sys_fail("cannot make the folder", path);
    }
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        struct stat info;
        part[i] = '\0';
        if (lks__sys_mkdir(part, 0777) == 0) {
            LKS__TRY(sync_above(part));
        } else {
            int err = errno;
            /* Any error is fine if the folder already exists. */
            if (stat(part, &info) != 0) {
                if (err == EEXIST && errno == ENOENT)
                    return lks__fail(LKS_ERR_IO,
                                     "cannot make the folder %s: it is a symbolic link to nothing",
                                     lks__shown(part, 512));
                errno = err == EEXIST ? errno : err;
                return lks__sys_fail("cannot make the folder", part);
            }
            errno = ENOTDIR;
            if (!S_ISDIR(info.st_mode))
                return lks__sys_fail("cannot make the folder", part);
        }
        if (i < n)
            part[i] = '/';
    }
    return LKS_OK;
}

size_t lks__sys_path_length(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

const char *lks__sys_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool lks__sys_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool lks__sys_has(const char *folder, const char *name)
{
    char path[PATH_MAX + 300];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path &&
           lstat(path, &info) == 0;
}

bool lks__sys_same(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) == 0 && stat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

lks_status lks__sys_each_name(const char *what, const char *folder,
                              lks_status (*fn)(const char *folder, const char *name, void *ctx),
                              void *ctx)
{
    lks_status st = LKS_OK;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return lks__sys_fail(what, folder);
    for (const struct dirent *e; st == LKS_OK && (errno = 0, e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = fn(folder, e->d_name, ctx);
    if (st == LKS_OK && errno != 0)
        st = lks__sys_fail(what, folder);
    closedir(dir);
    return st;
}

lks_status lks__sys_sync_dir(const char *path)
{
    int fd = lks__sys_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return lks__sys_fail("cannot open the folder", path);
    lks_status st = LKS_OK;
    if (lks__sys_fsync(fd) < 0 && errno != EINVAL)
        st = lks__sys_fail("cannot sync the folder", path);
    lks__sys_close(fd);
    return st;
}

/* --- the limit on file sizes ------------------------------------------------------------------ */

static sigset_t limit_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    return set;
}

void lks__sys_limit_begin(sigset_t *before)
{
    const sigset_t set = limit_signal();
    pthread_sigmask(SIG_BLOCK, &set, before);
}

void lks__sys_limit_end(const sigset_t *before)
{
    const sigset_t set = limit_signal();
    const struct timespec now = {0, 0};
    while (!sigismember(before, SIGXFSZ) && sigtimedwait(&set, NULL, &now) == SIGXFSZ)
        ;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}
