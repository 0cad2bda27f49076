#include "report/record/outdir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"

void lks__outdir_of(const char *path, char *run, size_t bytes)
{
    lks__entry latest;
    snprintf(run, bytes, "%s", path);
    size_t n = strlen(run);
    while (n > 1 && run[n - 1] == '/')
        run[--n] = '\0';
    char *name = strrchr(run, '/');
    name = name == NULL ? run : name + 1;
    const lks__entry e = lks__entry_parse(name);
    if ((e.kind != LKS__ENTRY_CKPT && e.kind != LKS__ENTRY_OLD) ||
        lks__name_read(path, LKS__NAME_LATEST, &latest) != LKS_OK ||
        latest.kind != LKS__ENTRY_OTHER)
        snprintf(run, bytes, "%s", path);
    else if (name == run)
        snprintf(run, bytes, ".");
    else
        name[name == run + 1 ? 0 : -1] = '\0';
}

/* Name the holder of the lock by the text that it wrote, such as "pid 12 on somewhere". */
static lks_status in_use(const char *out_dir, int fd)
{
    char text[128] = "", shown[256], path[512];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    size_t len = n > 0 ? strcspn(text, "\n") : 0;
    return lks__fail(
        LKS_ERR_CONFIG,
        "%s is the folder of a run that is still in progress (%s): wait for its end, stop "
        "it, or give another folder",
        lks__escape(path, sizeof path, out_dir, strlen(out_dir)),
        len > 0 ? lks__escape(shown, sizeof shown, text, len) : "by an unknown process");
}

static lks_status lock_file(const char *out_dir, int fd)
{
    char path[512];
    if (lks__sys_lock(fd, LKS__LOCK_RUN) == 0)
        return LKS_OK;
    if (errno == EWOULDBLOCK)
        return in_use(out_dir, fd);
    lks__escape(path, sizeof path, out_dir, strlen(out_dir));
    if (lks__sys_lacks_locks(errno))
        return lks__fail(
            LKS_ERR_CONFIG,
            "%s can't be locked (%s), so another run in it would not be noticed: if no "
            "other run uses the folder, give --lock=off",
            path, strerror(errno));
    return lks__sys_fail("can't lock the folder", out_dir);
}

lks_status lks__outdir_free(const char *out_dir, bool lock)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    int fd = lock ? lks__sys_open(path, O_RDWR | O_NOFOLLOW, 0) : -1;
    if (fd < 0)
        return LKS_OK; /* taking the lock reports errors */
    lks_status st = LKS_OK;
    if (lks__sys_lock(fd, LKS__LOCK_RUN) != 0 && errno == EWOULDBLOCK)
        st = in_use(out_dir, fd);
    lks__sys_close(fd);
    return st;
}

lks_status lks__outdir_lock(const char *out_dir, bool lock, int *fd_p)
{
    char path[4200], host[65] = "", text[128];
    *fd_p = -1;
    LKS__TRY(lks__sys_make_dirs(out_dir));
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    int fd = lks__sys_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (fd < 0)
        return lks__sys_fail("can't open", path);
    lks_status st = lock ? lock_file(out_dir, fd) : LKS_OK;
    gethostname(host, sizeof host - 1);
    int len = snprintf(text, sizeof text, "pid %d on %s\n", (int)getpid(), host);
    if (st == LKS_OK &&
        (lks__sys_truncate(fd, 0) != 0 || lks__sys_write_all(fd, text, (size_t)len) != 0))
        st = lks__sys_fail("can't write", path);
    if (st == LKS_OK && lock)
        *fd_p = fd;
    else if (lks__sys_close(fd) != 0 && st == LKS_OK)
        st = lks__sys_fail("can't write", path);
    return st;
}
