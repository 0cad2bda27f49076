#include "train/remember.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "rundir/metrics.h"

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Are both the same existing folder? */
static bool same_folder(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) == 0 && stat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

/* The path as it was used, if it leads to the same folder from here; else the absolute one. Without
 * either (the whole tree may have been moved) the path as it was used. */
static lks_status choose(const char *run_dir, char out[LKS__SETTING_STR])
{
    char used[LKS__METRICS_PATH], absolute[LKS__METRICS_PATH], shown[512], run[512];
    bool found;
    out[0] = '\0';
    LKS__TRY(lks__metrics_dataset(run_dir, used, absolute, &found));
    if (!found)
        return LKS_OK;
    const char *path = is_folder(absolute) && !same_folder(used, absolute) ? absolute : used;
    if (!is_folder(path)) {
        const char *was = absolute[0] != '\0' ? absolute : used;
        return lks__fail(LKS_ERR_CONFIG,
                         "the data of the run in %s was in %s, where there is no folder now: give "
                         "--dataset=DIR",
                         lks__escape(run, sizeof run, run_dir, strlen(run_dir)),
                         lks__escape(shown, sizeof shown, was, strlen(was)));
    }
    if (strlen(path) < LKS__SETTING_STR)
        strcpy(out, path);
    return LKS_OK;
}

lks_status lks__remember_data(lks__session *ses, const char *run_dir, lks__settings *s)
{
    char path[LKS__SETTING_STR] = "";
    lks_status st = LKS_OK;
    if (s->from[LKS__SETTING_dataset] != LKS__FROM_DEFAULT)
        return LKS_OK; /* on all ranks: they have the same arguments */
    if (ses->world.rank == 0)
        st = choose(run_dir, path);
    LKS__TRY(lks__session_agree(ses, st));
    LKS__TRY(lks_comm_broadcast(ses->comm, path, sizeof path, LKS_UINT8, 0));
    if (path[0] == '\0')
        return LKS_OK;
    strcpy(s->dataset, path);
    s->from[LKS__SETTING_dataset] = LKS__FROM_CHECKPOINT;
    return LKS_OK;
}
