#include "train/audit/trail_file.h"

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
    if (text == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a trail");
    const bool written = fprintf(t->file, "%s\n", text) > 0;
    free(text);
    t->complete = lks__trail_entry_is(entry, LKS__TRAIL_END);
    return written ? LKS_OK : lks__sys_fail("can't write", t->path);
}

lks_status lks__trail_file_open(const char *path, lks__trail_file *t)
{
    char shown[512];
    struct stat old;
    *t = (lks__trail_file){.path = path, .trail = {write_entry, t}};
    if (stat(path, &old) == 0 &&
        (!S_ISREG(old.st_mode) || (old.st_size > 0 && !lks__trail_is(path))))
        return lks__fail(LKS_ERR_CONFIG,
                         "trail=%s exists and isn't a trail: give the name of a new file",
                         lks__escape(shown, sizeof shown, path, strlen(path)));
    if (asprintf(&t->unfinished, "%s.tmp", path) < 0) {
        t->unfinished = NULL;
        return lks__fail(LKS_ERR_NOMEM, "no memory for a trail");
    }
    t->file = fopen(t->unfinished, "we");
    if (t->file != NULL)
        return LKS_OK;
    const lks_status st = lks__sys_fail("can't write", t->unfinished);
    free(t->unfinished);
    return st;
}

lks_status lks__trail_file_close(lks__trail_file *t)
{
    lks_status st = LKS_OK;
    if (t->file != NULL &&
        (fclose(t->file) != 0 || (t->complete && lks__sys_rename(t->unfinished, t->path) != 0))) {
        st = lks__sys_fail("can't write", t->path);
        t->complete = false;
    }
    if (t->file != NULL && !t->complete)
        unlink(t->unfinished);
    free(t->unfinished);
    t->file = NULL;
    t->unfinished = NULL;
    return st;
}
