#include "files/checkpoint/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/list.h"
#include "base/system/sys.h"

static const char *const files[] = {LKS__CKPT_MODEL, LKS__CKPT_OPTIMIZER, LKS__CKPT_STATE};
enum { N_FILES = sizeof files / sizeof files[0] };

void lks__entry_name(char out[LKS__CKPT_NAME], lks__entry_kind kind, uint64_t iter)
{
    const char *tail = kind == LKS__ENTRY_OLD ? ".old" : kind == LKS__ENTRY_TMP ? ".tmp" : "";
    snprintf(out, LKS__CKPT_NAME, "ckpt-%08" PRIu64 "%s", iter, tail);
}

lks__entry lks__entry_parse(const char *name)
{
    static const char prefix[] = "ckpt-";
    lks__entry e = {.kind = LKS__ENTRY_OTHER};
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return e;
    e.iter = strtoull(name + sizeof prefix - 1, NULL, 10);
    /* Accept only names that printf would write: no signs, spaces or overflow. */
    for (int kind = LKS__ENTRY_CKPT; kind <= LKS__ENTRY_TMP; kind++) {
        lks__entry_name(e.name, (lks__entry_kind)kind, e.iter);
        if (strcmp(e.name, name) == 0) {
            e.kind = (lks__entry_kind)kind;
            return e;
        }
    }
    return (lks__entry){.kind = LKS__ENTRY_OTHER};
}

static int newest_first(const void *a, const void *b)
{
    const lks__entry *x = a, *y = b;
    if (x->iter != y->iter)
        return x->iter > y->iter ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

struct scan {
    lks__entry *entries;
    size_t n, room;
};

static lks_status add_entry(const char *out_dir, const char *name, void *ctx)
{
    struct scan *s = ctx;
    char path[LKS__CKPT_PATH];
    const lks__entry e = lks__entry_parse(name);
    if (e.kind == LKS__ENTRY_OTHER)
        return LKS_OK;
    if (e.kind != LKS__ENTRY_TMP &&
        (lks__ckpt_join(path, out_dir, name) != LKS_OK || !lks__ckpt_is_folder(path)))
        return LKS_OK;
    if (!lks__list_grow(&s->entries, s->n, &s->room, sizeof *s->entries))
        return lks__no_memory("for the list of checkpoints");
    s->entries[s->n++] = e;
    return LKS_OK;
}

lks_status lks__ckpt_scan(const char *out_dir, lks__entry **entries_p, size_t *n_p)
{
    struct scan s = {0};
    lks_status st = lks__sys_each_name("cannot read the folder", out_dir, add_entry, &s);
    if (st != LKS_OK) {
        free(s.entries);
        return st;
    }
    if (s.n > 0)
        qsort(s.entries, s.n, sizeof *s.entries, newest_first);
    *entries_p = s.entries;
    *n_p = s.n;
    return LKS_OK;
}

lks_status lks__ckpt_any(const char *out_dir, bool *any_p)
{
    lks__entry *entries;
    size_t n;
    *any_p = false;
    LKS__TRY(lks__ckpt_scan(out_dir, &entries, &n));
    for (size_t i = 0; i < n; i++)
        *any_p |= entries[i].kind != LKS__ENTRY_TMP;
    free(entries);
    return LKS_OK;
}

bool lks__ckpt_is_folder(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

lks_status lks__ckpt_join(char out[LKS__CKPT_PATH], const char *dir, const char *name)
{
    int n = snprintf(out, LKS__CKPT_PATH, "%s/%s", dir, name);
    if (n >= 0 && n < LKS__CKPT_PATH)
        return LKS_OK;
    errno = ENAMETOOLONG;
    return lks__sys_fail("cannot use the folder", dir);
}

void lks__ckpt_parent(const char *path, char out[LKS__CKPT_PATH])
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        strcpy(out, ".");
    else
        snprintf(out, LKS__CKPT_PATH, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

lks_status lks__ckpt_write(const char *path, const char *text, size_t bytes)
{
    lks_status st = LKS_OK;
    int fd = lks__sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (fd < 0)
        return lks__sys_fail("cannot create", path);
    if (lks__sys_write_all(fd, text, bytes) < 0 || lks__sys_fsync(fd) < 0)
        st = lks__sys_fail("cannot write", path);
    if (lks__sys_close(fd) < 0 && st == LKS_OK)
        st = lks__sys_fail("cannot write", path);
    return st;
}

/* ERR_ARG, without a message, for a file that a save doesn't write. */
static lks_status check_ours(const char *folder, const char *name, void *ctx)
{
    for (size_t i = 0; i < N_FILES; i++)
        if (strcmp(files[i], name) == 0)
            return LKS_OK;
    return LKS_ERR_ARG;
}

bool lks__ckpt_only_ours(const char *path)
{
    return lks__sys_each_name("cannot read the folder", path, check_ours, NULL) == LKS_OK;
}

lks_status lks__ckpt_remove(const char *path)
{
    struct stat info;
    char file[LKS__CKPT_PATH];
    if (lstat(path, &info) < 0)
        return errno == ENOENT ? LKS_OK : lks__sys_fail("cannot remove", path);
    if (!S_ISDIR(info.st_mode))
        return lks__sys_unlink(path) < 0 ? lks__sys_fail("cannot remove", path) : LKS_OK;
    if (!lks__ckpt_only_ours(path)) {
        errno = ENOTEMPTY;
        return lks__sys_fail("cannot remove the folder", path);
    }
    for (size_t i = 0; i < N_FILES; i++) {
        LKS__TRY(lks__ckpt_join(file, path, files[i]));
        if (lks__sys_unlink(file) < 0 && errno != ENOENT)
            return lks__sys_fail("cannot remove", file);
    }
    return lks__sys_rmdir(path) < 0 ? lks__sys_fail("cannot remove the folder", path) : LKS_OK;
}

char *lks__state_hash(char *text, size_t bytes, uint64_t *hash_p)
{
    /* A key follows a line break and two spaces only on the top level. */
    static const char key[] = "\n  \"state_hash\": \"";
    char *at = memmem(text, bytes, key, sizeof key - 1);
    char digits[16];
    if (!at || bytes - (size_t)(at - text) < sizeof key - 1 + sizeof digits)
        return NULL;
    at += sizeof key - 1;
    memcpy(digits, at, sizeof digits);
    memset(at, '0', sizeof digits);
    *hash_p = XXH3_64bits(text, bytes);
    memcpy(at, digits, sizeof digits);
    return at;
}
