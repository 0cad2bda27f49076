#include "report/record/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "files/checkpoint/folder.h"

enum { NAME_BYTES = 256, PATH_BYTES = 4200 };

/* The job's name; "" if it has none, or one that doesn't identify it. */
static void job_name(char name[NAME_BYTES])
{
    const char *ours = getenv("LOCKSTEP_JOB"), *torchrun = getenv("TORCHELASTIC_RUN_ID");
    const char *text = ours != NULL ? ours : torchrun;
    /* torchrun's default, which all jobs share. */
    if (text == NULL || (ours == NULL && strcmp(text, "none") == 0))
        text = "";
    snprintf(name, NAME_BYTES - 1, "%s", text); /* leaves room for a line feed */
}

static long count_of(const char *variable)
{
    const char *text = getenv(variable);
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

lks_status lks__job_mark(const char *out_dir)
{
    char name[NAME_BYTES], path[PATH_BYTES];
    job_name(name);
    if (name[0] == '\0' || count_of("TORCHELASTIC_MAX_RESTARTS") <= 0)
        return LKS_OK;
    size_t n = strlen(name);
    name[n++] = '\n';
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    int fd;
    LKS__TRY(lks__sys_append(path, &fd));
    lks_status st =
        lks__sys_write_all(fd, name, n) == 0 ? LKS_OK : lks__sys_fail("can't write", path);
    lks__sys_close(fd);
    return st;
}

bool lks__job_restarted(const char *out_dir)
{
    char name[NAME_BYTES], path[PATH_BYTES], *marked = NULL;
    size_t bytes = 0;
    job_name(name);
    if (name[0] == '\0' || count_of("TORCHELASTIC_RESTART_COUNT") <= 0)
        return false;
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    if (lks__sys_read_file(path, 64 << 10, &marked, &bytes) != LKS_OK)
        return false;
    /* The name must be the complete last line. */
    size_t n = strlen(name);
    bool same = bytes > n + 1 && marked[bytes - 1] == '\n' && marked[bytes - n - 2] == '\n' &&
                memcmp(marked + bytes - n - 1, name, n) == 0;
    free(marked);
    return same;
}
