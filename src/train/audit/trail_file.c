#include "train/audit/trail_file.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"

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
    *t = (lks__trail_file){.path = path, .file = fopen(path, "we"), .trail = {write_entry, t}};
    return t->file != NULL ? LKS_OK : lks__sys_fail("can't write", path);
}

lks_status lks__trail_file_close(lks__trail_file *t)
{
    lks_status st = LKS_OK;
    if (t->file == NULL)
        return LKS_OK;
    if (fclose(t->file) != 0) {
        st = lks__sys_fail("can't write", t->path);
        t->complete = false;
    }
    if (!t->complete)
        unlink(t->path);
    t->file = NULL;
    return st;
}
