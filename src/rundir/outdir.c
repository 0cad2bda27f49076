#include "rundir/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "rundir/events.h"

static bool of_a_run(const char *name)
{
    static const char *const names[] = {"latest",       "best",       "metrics.jsonl",
                                        "evals.jsonl",  "train.log",  "tokenizer.json",
                                        "commands.log", "ranks.jsonl"};
    bool found = strncmp(name, "ckpt-", 5) == 0 || lks__events_name(name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        found = found || strcmp(name, names[i]) == 0;
    return found;
}

/* Make the first earlier-N that doesn't exist yet. */
static lks_status make_earlier(const char *out_dir, char moved[4200])
{
    for (int n = 1; n < 100000; n++) {
        snprintf(moved, 4200, "%s/earlier-%d", out_dir, n);
        if (lks__sys_mkdir(moved, 0777) == 0)
            return LKS_OK;
        if (errno != EEXIST)
            break;
    }
    lks_status st = lks__sys_fail("can't make", moved);
    moved[0] = '\0';
    return st;
}

lks_status lks__outdir_start(const char *out_dir, char moved[4200])
{
    moved[0] = '\0';
    LKS__TRY(lks__sys_make_dirs(out_dir));
    DIR *dir = opendir(out_dir);
    if (dir == NULL)
        return lks__sys_fail("can't read", out_dir);
    lks_status st = LKS_OK;
    for (struct dirent *e; st == LKS_OK && (e = readdir(dir)) != NULL;) {
        char from[4200], to[4600];
        if (!of_a_run(e->d_name))
            continue;
        if (moved[0] == '\0')
            st = make_earlier(out_dir, moved);
        if (st != LKS_OK)
            break;
        snprintf(from, sizeof from, "%s/%s", out_dir, e->d_name);
        snprintf(to, sizeof to, "%s/%s", moved, e->d_name);
        if (lks__sys_rename(from, to) != 0)
            st = lks__sys_fail("can't move", from);
    }
    closedir(dir);
    return st;
}

/* --- one run at a time ------------------------------------------------------------------------ */

/* The lock's text, such as "pid 12 on somewhere", which its holder has written. */
static lks_status in_use(const char *out_dir, int fd)
{
    char text[128] = "", shown[256], path[512];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    size_t len = n > 0 ? strcspn(text, "\n") : 0;
    return lks__fail(
        LKS_ERR_CONFIG,
        "%s is the folder of a run that is still going on (%s): wait for its end, stop "
        "it, or give another --out_dir",
        lks__escape(path, sizeof path, out_dir, strlen(out_dir)),
        len > 0 ? lks__escape(shown, sizeof shown, text, len) : "by an unknown process");
}

lks_status lks__outdir_free(const char *out_dir)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/.lock", out_dir);
    int fd = lks__sys_open(path, O_RDWR | O_NOFOLLOW, 0);
    if (fd < 0)
        return LKS_OK; /* taking the lock will report the error */
    lks_status st = lks__sys_lock(fd) != 0 && errno == EWOULDBLOCK ? in_use(out_dir, fd) : LKS_OK;
    lks__sys_close(fd);
    return st;
}

lks_status lks__outdir_lock(const char *out_dir, int *fd_p)
{
    char path[4200], host[65] = "", text[128];
    *fd_p = -1;
    LKS__TRY(lks__sys_make_dirs(out_dir));
    snprintf(path, sizeof path, "%s/.lock", out_dir);
    int fd = lks__sys_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (fd < 0)
        return lks__sys_fail("can't open", path);
    if (lks__sys_lock(fd) != 0) {
        lks_status st = LKS_OK;
        if (errno == EWOULDBLOCK)
            st = in_use(out_dir, fd);
        else if (errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS)
            st = lks__sys_fail("can't lock", path);
        lks__sys_close(fd);
        return st;
    }
    gethostname(host, sizeof host - 1);
    int len = snprintf(text, sizeof text, "pid %d on %s\n", (int)getpid(), host);
    if (lks__sys_truncate(fd, 0) != 0 || lks__sys_write_all(fd, text, (size_t)len) != 0) {
        lks_status st = lks__sys_fail("can't write", path);
        lks__sys_close(fd);
        return st;
    }
    *fd_p = fd;
    return LKS_OK;
}
