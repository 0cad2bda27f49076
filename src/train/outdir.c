#include "train/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/sys.h"

static bool of_a_run(const char *name)
{
    return strncmp(name, "ckpt-", 5) == 0 || strcmp(name, "latest") == 0 ||
           strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "train.log") == 0;
}

/* The first earlier-N that isn't there yet. */
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
