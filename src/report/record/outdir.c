#include "report/record/outdir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text/shell.h"
#include "files/checkpoint/folder.h"
#include "files/checkpoint/name.h"
#include "report/record/job.h"

/* True if `path` is a checkpoint in the folder of its run: ckpt-N, `latest` or `best`. */
static bool is_of_run(const char *path, const char *run)
{
    const char *name = lks__sys_name(path);
    lks__entry e = lks__entry_parse(name), latest;
    if (strcmp(name, LKS__NAME_LATEST) == 0 || strcmp(name, LKS__NAME_BEST) == 0)
        lks__name_read(run, name, &e);
    return (e.kind == LKS__ENTRY_CKPT || e.kind == LKS__ENTRY_OLD) &&
           lks__name_read(path, LKS__NAME_LATEST, &latest) == LKS_OK &&
           latest.kind == LKS__ENTRY_OTHER;
}

void lks__outdir_of(const char *path, char *run, size_t bytes)
{
    char whole[LKS__CKPT_PATH], parent[LKS__CKPT_PATH];
    snprintf(whole, sizeof whole, "%.*s", (int)lks__sys_path_length(path), path);
    const char *name = lks__sys_name(whole);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        char *real = realpath(path, NULL);
        if (real != NULL)
            snprintf(whole, sizeof whole, "%s", real);
        free(real);
    }
    lks__ckpt_parent(whole, parent);
    const bool inside = strlen(parent) < bytes && is_of_run(whole, parent);
    snprintf(run, bytes, "%s", inside ? parent : path);
}

bool lks__outdir_has_run(const char *folder)
{
    lks__entry latest;
    (void)lks__name_read(folder, LKS__NAME_LATEST, &latest); /* it may be another file */
    return lks__sys_has(folder, "metrics.jsonl") || latest.kind == LKS__ENTRY_CKPT;
}

lks_status lks__outdir_continues(const char *path, const lks__ckpt *ckpt)
{
    char run[LKS__CKPT_PATH];
    lks__outdir_of(path, run, sizeof run);
    if (!ckpt->itself || strcmp(run, path) != 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "%s is a checkpoint outside a run: `--init_from=%s` starts a new run with "
                     "its weights",
                     lks__shown(path, 512), lks__quoted(path, 600));
}

/* Name the holder of the lock by the text that it wrote, such as "pid 12 on somewhere". */
static lks_status in_use(const char *out_dir, int fd)
{
    char text[128] = "", shown[256];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    size_t len = n > 0 ? strcspn(text, "\n") : 0;
    return lks__fail(
        LKS_ERR_CONFIG,
        "%s is the folder of a run that is still in progress (%s): wait for its end, stop "
        "it, or give another folder",
        lks__shown(out_dir, 512),
        len > 0 ? lks__escape(shown, sizeof shown, text, len) : "by an unknown process");
}

static lks_status lock_file(const char *out_dir, int fd)
{
    if (lks__sys_lock(fd, LKS__LOCK_RUN) == 0)
        return LKS_OK;
    if (errno == EWOULDBLOCK)
        return in_use(out_dir, fd);
    const char *path = lks__shown(out_dir, 512);
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
    char path[LKS__SYS_PATH];
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    int fd = lock ? lks__sys_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0) : -1;
    if (fd < 0)
        return LKS_OK; /* taking the lock reports errors */
    lks_status st = LKS_OK;
    if (lks__sys_is_locked(fd, LKS__LOCK_RUN))
        st = in_use(out_dir, fd);
    lks__sys_close(fd);
    return st;
}

lks_status lks__outdir_lock(const char *out_dir, bool lock, int *fd_p)
{
    char path[LKS__SYS_PATH], host[65] = "", job[LKS__JOB_LINE], text[128 + LKS__JOB_LINE];
    const bool restarted = lks__job_restarted(out_dir);
    *fd_p = -1;
    LKS__TRY(lks__sys_make_dirs(out_dir));
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    int fd = lks__sys_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    const int err = errno;
    if (fd < 0 && (err == EACCES || err == EROFS))
        return lks__sys_failed_for(
            err, lks__fail(LKS_ERR_IO,
                           "%s can't be written: %s; give another folder, or copy this one (cp -r) "
                           "and continue the copy",
                           lks__shown(out_dir, 512), strerror(err)));
    if (fd < 0)
        return lks__sys_fail("can't open", path);
    lks_status st = lock ? lock_file(out_dir, fd) : LKS_OK;
    gethostname(host, sizeof host - 1);
    lks__job_line(job);
    const int len =
        snprintf(text, sizeof text, "pid %d on %s\n%s", (int)getpid(), host, restarted ? job : "");
    /* Keep a restarted job's name in the file at every moment: if this process died without it, the
     * job's next start would begin the run again. */
    if (st == LKS_OK && ((!restarted && lks__sys_truncate(fd, 0) != 0) ||
                         lks__sys_write_all(fd, text, (size_t)len) != 0 ||
                         lks__sys_truncate(fd, (uint64_t)len) != 0))
        st = lks__sys_fail("can't write", path);
    if (st == LKS_OK && lock)
        *fd_p = fd;
    else if (lks__sys_close(fd) != 0 && st == LKS_OK)
        st = lks__sys_fail("can't write", path);
    return st;
}
