#include "report/record/files.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "files/checkpoint/folder.h"
#include "report/record/leaves.h"

const lks__run_file lks__run_files[] = {
    {"ckpt-*", true, LKS__LATER_MOVED},
    {"latest", true, LKS__LATER_STAYS}, /* both are set to checkpoints that exist */
    {"best", true, LKS__LATER_STAYS},
    {"metrics.jsonl", true, LKS__LATER_COPIED},
    {LKS__LEAVES_FILE, true, LKS__LATER_COPIED},
    {"train.log", true, LKS__LATER_COPIED},
    {"ranks.jsonl", true, LKS__LATER_COPIED},
    {"evals.jsonl", true, LKS__LATER_STAYS},
    {"commands.log", true, LKS__LATER_STAYS},
    {"events.out.tfevents.*", true, LKS__LATER_STAYS},
    {"tokenizer.json", true, LKS__LATER_COPIED},
    {LKS__ARTIFACT_FILE, true, LKS__LATER_MOVED},
    {LKS__DATA_FOLDER, true, LKS__LATER_STAYS},
    {LKS__DATA_TEMP, false, LKS__LATER_STAYS},
    {LKS__LOCK_FILE, false, LKS__LATER_STAYS},
    {"earlier-*", false, LKS__LATER_STAYS},
    {"earlier.tmp", false, LKS__LATER_STAYS},
    {"earlier.new", false, LKS__LATER_STAYS},
};
const size_t lks__n_run_files = sizeof lks__run_files / sizeof lks__run_files[0];

const lks__run_file *lks__run_file_of(const char *name)
{
    for (size_t i = 0; i < lks__n_run_files; i++) {
        const char *own = lks__run_files[i].name;
        const size_t n = strcspn(own, "*");
        if (own[n] == '*' ? strncmp(name, own, n) == 0 : strcmp(name, own) == 0)
            return &lks__run_files[i];
    }
    return NULL;
}

bool lks__run_has_data(const char *out_dir)
{
    char path[LKS__SYS_PATH];
    const int n = snprintf(path, sizeof path, "%s/" LKS__DATA_FOLDER "/" LKS__DATA_MARK, out_dir);
    return n < (int)sizeof path && access(path, F_OK) == 0;
}

bool lks__run_own_data(const char *out_dir, const char *path, char *out, size_t bytes)
{
    char parent[LKS__SYS_PATH];
    const char *slash = strrchr(path, '/');
    if (!lks__run_has_data(out_dir) || slash == NULL || strcmp(slash + 1, LKS__DATA_FOLDER) != 0)
        return false;
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    if (lks__sys_is_folder(path) && !lks__run_has_data(parent))
        return false;
    return snprintf(out, bytes, "%s/" LKS__DATA_FOLDER, out_dir) < (int)bytes;
}
