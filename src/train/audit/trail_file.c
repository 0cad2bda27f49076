#include "train/audit/trail_file.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "report/diff/trails.h"

static lks_status write_entry(void *ctx, const json_t *entry, const lks__st_tensor *tensor)
{
    lks__trail_file *t = ctx;
    char *text = lks__json_dump(entry, JSON_COMPACT);
    LKS__MEMORY(text, "for a trail");
    const bool written = fprintf(t->file, "%s\n", text) > 0;
    free(text);
    t->complete = lks__trail_entry_is(entry, LKS__TRAIL_END);
    return written ? LKS_OK : lks__no_memory("for a trail");
}

lks_status lks__trail_file_open(const char *path, lks__trail_file *t)
{
    char target[PATH_MAX];
    struct stat old;
    *t = (lks__trail_file){.path = path, .trail = {write_entry, t}};
    if (stat(path, &old) == 0 &&
        (!S_ISREG(old.st_mode) || (old.st_size > 0 && !lks__trail_is(path))))
        return lks__fail(LKS_ERR_CONFIG,
                         "trail=%s exists and isn't a trail: give the name of a new file",
                         lks__shown(path, 512));
    LKS__TRY(lks__sys_target(path, target));
    if (access(dirname(target), W_OK) != 0) /* now, and not after the steps have been computed */
        return lks__sys_fail("can't write", path);
    t->file = open_memstream(&t->text, &t->bytes);
    return t->file != NULL ? LKS_OK : lks__no_memory("for a trail");
}

lks_status lks__trail_file_close(lks__trail_file *t)
{
    lks_status st = LKS_OK;
    if (t->file != NULL && fclose(t->file) != 0)
        st = lks__no_memory("for a trail");
    else if (t->complete)
        st = lks__sys_write_file(t->path, t->text, t->bytes);
    free(t->text);
    t->file = NULL;
    t->text = NULL;
    return st;
}
