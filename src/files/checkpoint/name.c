#include "files/checkpoint/name.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"

/* ---- reading ------------------------------------------------------------------------------- */

/* Read a link or a small file, cut to `room` bytes: longer text can't be a checkpoint's name. */
static lks_status read_text(const char *path, mode_t mode, char *text, size_t room, size_t *bytes_p)
{
    struct stat info;
    if (S_ISLNK(mode)) {
        ssize_t n = readlink(path, text, room);
        *bytes_p = n < 0 ? 0 : (size_t)n;
        return n < 0 ? lks__sys_fail("cannot read the link", path) : LKS_OK;
    }
    int fd = lks__sys_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return lks__sys_fail("cannot open", path);
    lks_status st = LKS_OK;
    if (fstat(fd, &info) < 0)
        st = lks__sys_fail("cannot read", path);
    if (st == LKS_OK) {
        *bytes_p = (uint64_t)info.st_size < room ? (size_t)info.st_size : room;
        if (lks__sys_read_at(fd, text, *bytes_p, 0) < 0)
            st = lks__sys_fail("cannot read", path);
    }
    lks__sys_close(fd);
    if (st == LKS_OK && *bytes_p > 0 && text[*bytes_p - 1] == '\n')
        --*bytes_p;
    return st;
}

lks_status lks__name_read(const char *out_dir, const char *name, lks__entry *entry)
{
    char path[LKS__CKPT_PATH], text[LKS__CKPT_NAME], shown[512], shown_text[512];
    struct stat info;
    size_t bytes = 0;
    *entry = (lks__entry){.kind = LKS__ENTRY_OTHER};
    LKS__TRY(lks__ckpt_join(path, out_dir, name));
    if (lstat(path, &info) < 0)
        return errno == ENOENT ? LKS_OK : lks__sys_fail("cannot read", path);
    lks__escape(shown, sizeof shown, path, strlen(path));
    if (!S_ISLNK(info.st_mode) && !S_ISREG(info.st_mode))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is neither a symbolic link nor a small file with a checkpoint's name",
                         shown);
    LKS__TRY(read_text(path, info.st_mode, text, sizeof text - 1, &bytes));
    text[bytes] = '\0';
    lks__entry e = lks__entry_parse(text);
    if (e.kind != LKS__ENTRY_CKPT || strlen(text) != bytes)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s names \"%s\", which is not a checkpoint of that folder", shown,
                         lks__escape(shown_text, sizeof shown_text, text, bytes));
    *entry = e;
    return LKS_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Errors of symlink() that mean "not on this file system"; systems differ. If the real cause is a
 * missing permission, the small file fails, too. */
static bool no_links_here(int err)
{
    return err == EPERM || err == EACCES || err == EOPNOTSUPP || err == ENOSYS || err == EINVAL;
}

/* `path` is new. *err_p: 0, or the errno of the link if a small file was written instead. */
static lks_status make(const char *path, const char *target, int *err_p)
{
    char text[LKS__CKPT_NAME + 1];
    *err_p = 0;
    if (lks__sys_unlink(path) < 0 && errno != ENOENT)
        return lks__sys_fail("cannot remove", path);
    if (lks__sys_symlink(target, path) == 0)
        return LKS_OK;
    *err_p = errno;
    if (!no_links_here(errno))
        return lks__sys_fail("cannot make the link", path);
    const int n = snprintf(text, sizeof text, "%s\n", target);
    return lks__ckpt_write(path, text, (size_t)n);
}

static lks_status temp_path(char out[LKS__CKPT_PATH], const char *out_dir, const char *name)
{
    char temp[LKS__CKPT_NAME];
    snprintf(temp, sizeof temp, "%s.tmp", name);
    return lks__ckpt_join(out, out_dir, temp);
}

lks_status lks__name_set(const char *out_dir, const char *name, const char *target)
{
    char path[LKS__CKPT_PATH], temp[LKS__CKPT_PATH];
    int err;
    LKS__TRY(lks__ckpt_join(path, out_dir, name));
    LKS__TRY(temp_path(temp, out_dir, name));
    lks_status st = make(temp, target, &err);
    if (st == LKS_OK && lks__sys_rename(temp, path) < 0)
        st = lks__sys_fail("cannot move the name", path);
    if (st != LKS_OK)
        unlink(temp); /* bypasses the planted faults: clean up even if a test made this step fail */
    return st;
}

lks_status lks__name_remove(const char *out_dir, const char *name)
{
    char path[LKS__CKPT_PATH];
    LKS__TRY(lks__ckpt_join(path, out_dir, name));
    return lks__sys_unlink(path) == 0 || errno == ENOENT ? LKS_OK
                                                         : lks__sys_fail("cannot remove", path);
}

lks_status lks__name_probe(const char *out_dir, bool *links_p, int *err_p)
{
    char temp[LKS__CKPT_PATH], target[LKS__CKPT_NAME];
    LKS__TRY(temp_path(temp, out_dir, LKS__NAME_LATEST));
    lks__entry_name(target, LKS__ENTRY_CKPT, 0);
    lks_status st = make(temp, target, err_p);
    unlink(temp);
    *links_p = *err_p == 0;
    return st == LKS_OK ? st : lks__fail_in(st, "the folder can't hold names of checkpoints");
}
