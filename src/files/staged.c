#include "files/staged.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/list.h"
#include "base/system/sys.h"

static lks_status no_memory(const char *name)
{
    return lks__no_memory("for the name of %s", name);
}

lks_status lks__staged_name(lks__staged *s, const char *name, const char **from_p)
{
    char *from = NULL, *to = NULL;
    if (!lks__list_grow(&s->files, s->n, &s->room, sizeof *s->files) ||
        asprintf(&from, "%s/%s.new-%ld", s->dir, name, (long)getpid()) < 0)
        return no_memory(name);
    if (asprintf(&to, "%s/%s", s->dir, name) < 0) {
        free(from);
        return no_memory(name);
    }
    s->files[s->n++] = (lks__staged_file){from, to};
    *from_p = from;
    return LKS_OK;
}

lks_status lks__staged_add(lks__staged *s, const char *name, const void *data, size_t bytes)
{
    const char *from = NULL;
    LKS__TRY(lks__staged_name(s, name, &from));
    return lks__sys_write_file(from, data, bytes);
}

lks_status lks__staged_open(lks__staged *s, const char *name, int *fd_p)
{
    const char *from = NULL;
    LKS__TRY(lks__staged_name(s, name, &from));
    unlink(from); /* left by a killed process with the same number */
    *fd_p = lks__sys_open(from, O_WRONLY | O_CREAT | O_EXCL, 0666);
    return *fd_p >= 0 ? LKS_OK : lks__sys_fail("cannot write", from);
}

/* Turn a new file's temporary name into the backup name of the old file. */
static void rename_to_old(char *from)
{
    memcpy(strrchr(from, '.'), ".old", 4);
}

/* Give an existing file a second name as a backup. On a file system without hard links, move it
 * there. */
static lks_status keep_old(const char *to, const char *old)
{
    unlink(old); /* left by a killed process with the same number */
    if (lks__sys_link(to, old) == 0 || errno == ENOENT || lks__sys_rename(to, old) == 0)
        return LKS_OK;
    return lks__sys_fail("cannot replace", to);
}

/* Restore the file `to`, after the failure `st`, from its backup; without a backup, remove the new
 * file. If that fails, the message names the backup, and *old becomes "" so that it is kept. */
static lks_status restore(lks_status st, char *old, const char *to)
{
    char shown[2][512];
    if (lks__sys_rename(old, to) == 0) {
        unlink(old); /* rename() does nothing if both names are links to one file */
        return st;
    }
    if (errno == ENOENT) {
        unlink(to);
        return st;
    }
    st = lks__fail(st, "%s; rename %s to %s, which could not be restored", lks_last_error(),
                   lks__escape(shown[0], sizeof shown[0], old, strlen(old)),
                   lks__escape(shown[1], sizeof shown[1], to, strlen(to)));
    *old = '\0';
    return st;
}

static lks_status publish(char *from, const char *to)
{
    char path[PATH_MAX];
    if (strlen(from) >= sizeof path) {
        errno = ENAMETOOLONG;
        return lks__sys_fail("cannot write", to);
    }
    memcpy(path, from, strlen(from) + 1);
    rename_to_old(path);
    LKS__TRY(keep_old(to, path));
    if (lks__sys_rename(from, to) < 0)
        return restore(lks__sys_fail("cannot write", to), path, to);
    memcpy(from, path, strlen(from));
    return LKS_OK;
}

lks_status lks__staged_commit(lks__staged *s)
{
    lks_status st = LKS_OK;
    size_t n = 0;
    while (n < s->n && (st = publish(s->files[n].from, s->files[n].to)) == LKS_OK)
        n++;
    LKS__THEN(st, lks__sys_sync_dir(s->dir));
    for (size_t i = 0; st != LKS_OK && i < n; i++)
        st = restore(st, s->files[i].from, s->files[i].to);
    return st;
}

bool lks__staged_has(const lks__staged *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(lks__sys_name(s->files[i].to), name) == 0)
            return true;
    return false;
}

void lks__staged_close(lks__staged *s)
{
    for (size_t i = 0; i < s->n; i++) {
        /* Remove a new file that wasn't renamed, or an old file. Bypasses the planted faults: clean
         * up even if a test made a step fail. */
        unlink(s->files[i].from);
        free(s->files[i].from);
        free(s->files[i].to);
    }
    free(s->files);
    *s = (lks__staged){0};
}
