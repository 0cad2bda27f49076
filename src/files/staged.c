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

static lks_status add(lks__staged *s, const char *name, bool is_new, const char **from_p)
{
    lks__staged_file f = {0};
    const long process = getpid();
    if (lks__list_grow(&s->files, s->n, &s->room, sizeof *s->files) &&
        asprintf(&f.to, "%s/%s", s->dir, name) >= 0 &&
        asprintf(&f.old, "%s.old-%ld", f.to, process) >= 0 &&
        (!is_new || asprintf(&f.from, "%s.new-%ld", f.to, process) >= 0)) {
        s->files[s->n++] = f;
        *from_p = f.from;
        return LKS_OK;
    }
    free(f.to);
    free(f.old);
    return lks__no_memory("for the name of %s", name);
}

lks_status lks__staged_name(lks__staged *s, const char *name, const char **from_p)
{
    return add(s, name, true, from_p);
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

/* --- other files ----------------------------------------------------------------------------- */

static bool has(const lks__staged *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(lks__sys_name(s->files[i].to), name) == 0)
            return true;
    return false;
}

/* Cut off the end that a killed process N gave to a temporary file: .new-N, .old-N or .tmp-N. This
 * process may have its number, in a container: *own_p. */
static bool cut_end(char *name, bool *own_p)
{
    char *mark = strrchr(name, '.'), *end;
    if (mark == NULL || (strncmp(mark, ".new-", 5) != 0 && strncmp(mark, ".old-", 5) != 0 &&
                         strncmp(mark, ".tmp-", 5) != 0))
        return false;
    const long process = strtol(mark + 5, &end, 10);
    const bool own = process == getpid();
    if (*end != '\0' || process <= 0 || process > INT_MAX ||
        (!own && lks__sys_process_state((pid_t)process) != 0))
        return false;
    *own_p = own;
    *mark = '\0';
    return true;
}

struct others {
    lks__staged *staged;
    bool (*is_other)(const char *name, const void *ctx);
    const void *ctx;
};

static lks_status add_other(const char *dir, const char *name, void *ctx)
{
    const struct others *o = ctx;
    const char *none;
    char of[256];
    bool own = true;
    snprintf(of, sizeof of, "%s", name);
    while (cut_end(of, &own))
        ;
    const bool stays = has(o->staged, of) ? own : !o->is_other(of, o->ctx);
    return stays ? LKS_OK : add(o->staged, name, false, &none);
}

lks_status lks__staged_others(lks__staged *s, bool (*is_other)(const char *name, const void *ctx),
                              const void *ctx)
{
    struct others o = {s, is_other, ctx};
    const size_t last = s->n - 1;
    LKS__TRY(lks__sys_each_name("cannot list", s->dir, add_other, &o));
    const lks__staged_file f = s->files[last];
    s->files[last] = s->files[s->n - 1];
    s->files[s->n - 1] = f;
    return LKS_OK;
}

/* --- replacing ------------------------------------------------------------------------------- */

static lks_status move_away(const lks__staged_file *f)
{
    unlink(f->old); /* left by a killed process with the same number */
    if (lks__sys_is_folder(f->to))
        errno = EISDIR;
    else if (lks__sys_rename(f->to, f->old) == 0 || errno == ENOENT)
        return LKS_OK;
    return lks__sys_fail(f->from != NULL ? "cannot replace" : "cannot remove", f->to);
}

/* Give the new ones of files[first..end) their names, the last one first. */
static lks_status place(const lks__staged *s, size_t first, size_t end)
{
    for (size_t i = end; i-- > first;)
        if (s->files[i].from != NULL && lks__sys_rename(s->files[i].from, s->files[i].to) < 0)
            return lks__sys_fail("cannot write", s->files[i].to);
    return lks__sys_sync_dir(s->dir);
}

/* Restore a file that was moved away, after the failure `st`; if there was none, remove the new
 * file. If that fails, the message names the backup, and f->old becomes "" so that it is kept. */
static lks_status restore(lks_status st, const lks__staged_file *f)
{
    char shown[2][512];
    if (lks__sys_rename(f->old, f->to) == 0)
        return st;
    if (errno == ENOENT) {
        unlink(f->to);
        return st;
    }
    st = lks__fail(st, "%s; rename %s to %s, which could not be restored", lks_last_error(),
                   lks__escape(shown[0], sizeof shown[0], f->old, strlen(f->old)),
                   lks__escape(shown[1], sizeof shown[1], f->to, strlen(f->to)));
    *f->old = '\0';
    return st;
}

lks_status lks__staged_commit(lks__staged *s)
{
    lks_status st = LKS_OK;
    size_t n = 0;
    while (n < s->n && (st = move_away(&s->files[n])) == LKS_OK)
        n++;
    /* Synced in between, because a power failure may otherwise keep only the later renames. */
    LKS__THEN(st, lks__sys_sync_dir(s->dir));
    LKS__THEN(st, place(s, 1, n));
    LKS__THEN(st, place(s, 0, 1));
    while (st != LKS_OK && n-- > 0)
        st = restore(st, &s->files[n]);
    return st;
}

void lks__staged_close(lks__staged *s)
{
    for (lks__staged_file *f = s->files; f < s->files + s->n; f++) {
        /* Remove a new file that has no name yet, and an old file. Bypasses the planted faults:
         * clean up even if a test made a step fail. */
        if (f->from != NULL)
            unlink(f->from);
        unlink(f->old);
        free(f->from);
        free(f->old);
        free(f->to);
    }
    free(s->files);
    *s = (lks__staged){0};
}
