#include "report/record/metrics/evals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "files/checkpoint/folder.h"

lks__jsonw *lks__evals_begin(lks__evals *e, const char *kind, uint64_t iter,
                             const char *params_hash)
{
    char name[LKS__CKPT_NAME];
    e->line[0] = '\n'; /* written only if the file ends within a line */
    lks__entry_name(name, LKS__ENTRY_CKPT, iter);
    lks__jsonw_open(&e->w, e->line + 1, sizeof e->line - 1);
    lks__jsonw_object(&e->w, NULL);
    lks__jsonw_str(&e->w, "kind", kind);
    lks__jsonw_u64(&e->w, "iter", iter);
    lks__jsonw_str(&e->w, "path", name);
    lks__jsonw_str(&e->w, "params_hash", params_hash);
    return &e->w;
}

/* True if the file ends within a line, as a full disk leaves it. */
static bool ends_torn(int fd)
{
    struct stat info;
    char last = '\n';
    if (fstat(fd, &info) == 0 && info.st_size > 0)
        lks__sys_read_at(fd, &last, 1, (uint64_t)info.st_size - 1);
    return last != '\n';
}

lks_status lks__evals_append(lks__evals *e, const char *out_dir, char why[200])
{
    char path[LKS__SYS_PATH];
    size_t len;
    why[0] = '\0';
    lks__jsonw_end(&e->w);
    LKS__TRY(lks__jsonw_close(&e->w, &len));
    snprintf(path, sizeof path, "%s/evals.jsonl", out_dir);
    int fd;
    lks_status st = lks__sys_append(path, &fd);
    if (st != LKS_OK && (errno == EROFS || errno == EACCES || errno == EPERM)) {
        snprintf(why, 200, "the result is not recorded in evals.jsonl: %s", strerror(errno));
        return LKS_OK;
    }
    LKS__TRY(st);
    const size_t skip = ends_torn(fd) ? 0 : 1;
    if (lks__sys_write_all(fd, e->line + skip, len + 1 - skip) != 0)
        st = lks__sys_fail("can't write", path);
    if (lks__sys_close(fd) != 0 && st == LKS_OK)
        st = lks__sys_fail("can't write", path);
    return st;
}
