#include "report/record/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "files/checkpoint/folder.h"

enum { PATH_BYTES = 4200 };

void lks__job_line(char line[LKS__JOB_LINE])
{
    const char *ours = getenv("LOCKSTEP_JOB"), *torchrun = getenv("TORCHELASTIC_RUN_ID");
    const char *text = ours != NULL ? ours : torchrun;
    /* torchrun's default, which all jobs share. */
    if (text == NULL || (ours == NULL && strcmp(text, "none") == 0))
        text = "";
    snprintf(line, LKS__JOB_LINE, "%.*s%s", LKS__JOB_LINE - 2, text, *text != '\0' ? "\n" : "");
}

static long count_of(const char *variable)
{
    const char *text = getenv(variable);
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

lks_status lks__job_mark(const char *out_dir)
{
    char line[LKS__JOB_LINE], path[PATH_BYTES];
    lks__job_line(line);
    if (line[0] == '\0' || count_of("TORCHELASTIC_MAX_RESTARTS") <= 0 ||
        lks__job_restarted(out_dir))
        return LKS_OK;
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    int fd;
    LKS__TRY(lks__sys_append(path, &fd));
    lks_status st = lks__sys_write_all(fd, line, strlen(line)) == 0
                        ? LKS_OK
                        : lks__sys_fail("can't write", path);
    lks__sys_close(fd);
    return st;
}

bool lks__job_restarted(const char *out_dir)
{
    char line[LKS__JOB_LINE], path[PATH_BYTES], *marked = NULL;
    size_t bytes = 0;
    lks__job_line(line);
    if (line[0] == '\0' || count_of("TORCHELASTIC_RESTART_COUNT") <= 0)
        return false;
    snprintf(path, sizeof path, "%s/" LKS__LOCK_FILE, out_dir);
    if (lks__sys_read_file(path, 64 << 10, &marked, &bytes) != LKS_OK)
        return false;
    const char *end = strchr(marked, '\n');
    const bool same = end != NULL && strncmp(end + 1, line, strlen(line)) == 0;
    free(marked);
    return same;
}
