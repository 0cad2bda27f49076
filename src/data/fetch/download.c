#include "data/fetch/download.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "data/fetch/curl_module.h"

enum { PIECE = 1 << 20, TAG = 512, TRIES = 4 };

typedef struct job {
    const lks__download *d;
    int fd;
    uint64_t have, all; /* bytes in the partial file, and bytes of the whole file */
    char tag[TAG];      /* of the source: size and version */
    bool again;         /* the server's file has changed: begin at 0 */
    lks_status st;      /* of a callback */
} job;

bool lks__download_is_web(const char *from)
{
    return strncmp(from, "http://", 7) == 0 || strncmp(from, "https://", 8) == 0;
}

static lks_status curl_module(const lks__curl_module **module_p)
{
    static lks__module curl = {
        .file = LKS__CURL_MODULE_FILE,
        .version = LKS__CURL_MODULE_VERSION,
        .package = "libcurl4-openssl-dev",
        .failure = "cannot download",
        .mutex = PTHREAD_MUTEX_INITIALIZER,
    };
    *module_p = lks__module_get(&curl);
    return *module_p != NULL ? LKS_OK : LKS_ERR_SUPPORT;
}

lks_status lks__download_available(void)
{
    const lks__curl_module *module;
    return curl_module(&module);
}

/* --- the partial file ------------------------------------------------------------------------- */

static void tag_path(const char *part, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s.tag", part);
}

/* Verify the complete partial file and rename it. */
static lks_status finish(const job *j)
{
    char tag[PATH_MAX];
    tag_path(j->d->part, tag);
    if (lks__sys_fsync(j->fd) < 0)
        return lks__sys_fail("cannot write", j->d->part);
    LKS__TRY(j->d->verify(j->d->ctx));
    if (lks__sys_rename(j->d->part, j->d->path) < 0)
        return lks__sys_fail("cannot write", j->d->path);
    unlink(tag);
    return LKS_OK;
}

static void drop(const char *part)
{
    char path[PATH_MAX];
    tag_path(part, path);
    unlink(part);
    unlink(path);
}

/* Open the partial file for this process only. */
static lks_status open_part(job *j)
{
    const char *part = j->d->part;
    struct stat info, named;
    j->fd = lks__sys_open(part, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (j->fd < 0 || fstat(j->fd, &info) < 0)
        return lks__sys_fail("cannot write", part);
    /* Some file systems have no locks. Another process may have renamed the file between these
     * calls. */
    if ((lks__sys_lock(j->fd, 0) < 0 && !lks__sys_lacks_locks(errno)) || stat(part, &named) < 0 ||
        named.st_ino != info.st_ino)
        return lks__fail(LKS_ERR_IO, "another lockstep fetch writes the same file");
    j->have = (uint64_t)info.st_size;
    return LKS_OK;
}

static lks_status set_size(job *j, uint64_t bytes)
{
    j->have = bytes;
    if (lks__sys_truncate(j->fd, bytes) < 0 || lseek(j->fd, (off_t)bytes, SEEK_SET) < 0)
        return lks__sys_fail("cannot write", j->d->part);
    return LKS_OK;
}

static lks_status check_room(const job *j)
{
    struct statvfs disk;
    const uint64_t missing = j->all - j->have;
    if (fstatvfs(j->fd, &disk) < 0 || disk.f_frsize == 0 ||
        missing / disk.f_frsize < (uint64_t)disk.f_bavail)
        return LKS_OK;
    return lks__fail(LKS_ERR_IO, "the disk has no room for %" PRIu64 " more bytes", missing);
}

/* Check the size that the source announces. */
static lks_status check_size(const job *j)
{
    if (j->d->bytes != 0 && j->all != j->d->bytes)
        return lks__fail(LKS_ERR_FORMAT, "it has %" PRIu64 " bytes there; %" PRIu64 " are expected",
                         j->all, j->d->bytes);
    if (j->all == 0 || j->all > j->d->most)
        return lks__fail(LKS_ERR_FORMAT,
                         "it has %" PRIu64 " bytes there; 1 to %" PRIu64 " are expected", j->all,
                         j->d->most);
    return LKS_OK;
}

static lks_status append(job *j, const void *bytes, size_t n)
{
    if (n > j->all - j->have)
        return lks__fail(LKS_ERR_FORMAT, "it has more than the announced %" PRIu64 " bytes",
                         j->all);
    if (lks__sys_write_all(j->fd, bytes, n) < 0)
        return lks__sys_fail("cannot write", j->d->part);
    j->have += n;
    if (j->d->progress != NULL)
        j->d->progress(j->d->ctx, j->have, j->all);
    return LKS_OK;
}

/* --- from a server ---------------------------------------------------------------------------- */

/* Read a number without sign; false if there is none, or it is too large. */
static bool read_number(const char **text, uint64_t *n_p)
{
    char *end;
    errno = 0;
    if (**text < '0' || **text > '9')
        return false;
    *n_p = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

/* "bytes FIRST-LAST/ALL"; true if it begins at `first` and reaches the end. */
static bool read_range(const char *text, uint64_t first, uint64_t *all_p)
{
    uint64_t from, last;
    if (strncmp(text, "bytes ", 6) != 0)
        return false;
    text += 6;
    if (!read_number(&text, &from) || *text++ != '-' || !read_number(&text, &last) ||
        *text++ != '/' || !read_number(&text, all_p))
        return false;
    return *text == '\0' && from == first && last >= from && last == *all_p - 1;
}

/* True if the partial file belongs to the source that j->tag describes. */
static bool same_source(const job *j)
{
    char path[PATH_MAX], *kept = NULL;
    size_t n;
    tag_path(j->d->part, path);
    const bool same =
        lks__sys_read_file(path, TAG, &kept, &n) == LKS_OK && strcmp(kept, j->tag) == 0;
    free(kept);
    return same;
}

static lks_status keep_tag(const job *j)
{
    char path[PATH_MAX];
    tag_path(j->d->part, path);
    return lks__sys_write_file(path, j->tag, strlen(j->tag));
}

static lks_status begin(job *j, const lks__curl_head *head)
{
    const bool rest = head->code == 206 && j->have > 0;
    if ((head->code == 416 && j->have > 0) ||
        (rest && !read_range(head->range, j->have, &j->all))) {
        j->again = true;
        return LKS_ERR_FORMAT;
    }
    if (!rest && head->code != 200)
        return lks__fail(LKS_ERR_IO, "the server answers %ld%s", head->code,
                         head->code == 404   ? " (not found)"
                         : head->code == 401 ? " (not for everybody)"
                         : head->code == 403 ? " (forbidden)"
                                             : "");
    if (!rest && head->length < 0)
        return lks__fail(LKS_ERR_FORMAT, "the server doesn't announce its size");
    if (!rest)
        j->all = (uint64_t)head->length;
    LKS__TRY(check_size(j));
    snprintf(j->tag, sizeof j->tag, "%" PRIu64 " %.200s %.200s", j->all, head->etag,
             head->modified);
    if (rest && !same_source(j)) {
        j->again = true;
        return LKS_ERR_FORMAT;
    }
    LKS__TRY(set_size(j, rest ? j->have : 0));
    LKS__TRY(check_room(j));
    return rest ? LKS_OK : keep_tag(j);
}

static bool on_head(void *ctx, const lks__curl_head *head)
{
    job *j = ctx;
    j->st = begin(j, head);
    return j->st == LKS_OK;
}

static bool on_data(void *ctx, const void *bytes, size_t n)
{
    job *j = ctx;
    j->st = append(j, bytes, n);
    return j->st == LKS_OK;
}

static bool on_wait(void *ctx)
{
    job *j = ctx;
    j->st = lks__sys_stop_check();
    return j->st == LKS_OK;
}

/* One request. *cut_p: the connection broke, so another one may bring the rest. */
static lks_status request(job *j, bool *cut_p)
{
    const lks__curl_module *module;
    const lks__curl_sink sink = {j, on_head, on_data, on_wait};
    char why[300] = "";
    LKS__TRY(curl_module(&module));
    j->st = LKS_OK;
    j->again = false;
    const lks__curl_end end = module->get(j->d->from, j->have, &sink, why, sizeof why);
    if (end == LKS__CURL_STOPPED || j->st != LKS_OK)
        return j->st;
    if (end == LKS__CURL_COMPLETE && j->have == j->all)
        return LKS_OK;
    *cut_p = end != LKS__CURL_FAILED;
    return lks__fail(LKS_ERR_IO, "%s",
                     end == LKS__CURL_COMPLETE ? "the connection ended early"
                                               : lks__shown(why, 400));
}

/* Ask for the part's last byte again: a server refuses a range that begins after a complete part.
 */
static lks_status from_web(job *j)
{
    lks_status st = LKS_OK;
    int tries = 0;
    if (j->have > 0)
        LKS__TRY(set_size(j, j->have - 1));
    for (;;) {
        const uint64_t before = j->have;
        bool cut = false;
        st = request(j, &cut);
        if (j->again && tries++ < TRIES) {
            LKS__TRY(set_size(j, 0));
            continue;
        }
        if (!cut || tries++ >= TRIES)
            break;
        if (j->have > before + PIECE)
            tries = 0;
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    if (j->again)
        return lks__fail(LKS_ERR_FORMAT, "the server's file changes all the time");
    return st;
}

/* --- from a folder ---------------------------------------------------------------------------- */

static lks_status copy(job *j, int from, char *piece)
{
    for (uint64_t at = 0; at < j->all;) {
        const size_t n = j->all - at < PIECE ? (size_t)(j->all - at) : PIECE;
        if (lks__sys_read_at(from, piece, n, at) < 0)
            return lks__sys_fail("cannot read", j->d->from);
        LKS__TRY(append(j, piece, n));
        at += n;
    }
    return LKS_OK;
}

static lks_status from_file(job *j)
{
    struct stat info;
    lks_status st = set_size(j, 0);
    char *piece = NULL;
    const int from = lks__sys_open(j->d->from, O_RDONLY | O_NONBLOCK, 0);
    if (st == LKS_OK && (from < 0 || fstat(from, &info) < 0))
        st = lks__sys_fail("cannot open", j->d->from);
    if (st == LKS_OK && !S_ISREG(info.st_mode))
        st = lks__fail(LKS_ERR_IO, "it is not a file");
    if (st == LKS_OK) {
        j->all = (uint64_t)info.st_size;
        st = check_size(j);
    }
    LKS__THEN(st, check_room(j));
    if (st == LKS_OK && (piece = malloc(PIECE)) == NULL)
        st = lks__no_memory("for a file's piece");
    LKS__THEN(st, copy(j, from, piece));
    free(piece);
    lks__sys_close(from);
    return st;
}

lks_status lks__download_get(const lks__download *d)
{
    job j = {.d = d, .fd = -1};
    const bool web = lks__download_is_web(d->from);
    lks_status st = open_part(&j);
    if (st != LKS_OK) {
        lks__sys_close(j.fd);
        return st;
    }
    st = web ? from_web(&j) : from_file(&j);
    LKS__THEN(st, finish(&j));
    /* While this process holds the lock. Keep only bytes that the next call can continue. */
    if (st != LKS_OK && (!web || j.have == 0 || (st != LKS_ERR_IO && st != LKS_ERR_STOPPED)))
        drop(d->part);
    lks__sys_close(j.fd);
    return st;
}
