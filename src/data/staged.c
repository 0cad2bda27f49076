#include "data/staged.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

static lks_status no_memory(const char *name)
{
    return lks__fail(LKS_ERR_NOMEM, "no memory for the name of %s", name);
}

lks_status lks__staged_add(lks__staged *s, const char *name, const void *data, size_t bytes)
{
    char *from = NULL, *to = NULL;
    if (s->n == s->room) {
        int room = s->room ? 2 * s->room : 8;
        char **grown_from = realloc(s->from, (size_t)room * sizeof *grown_from);
        if (!grown_from)
            return no_memory(name);
        s->from = grown_from;
        char **grown_to = realloc(s->to, (size_t)room * sizeof *grown_to);
        if (!grown_to)
            return no_memory(name);
        s->to = grown_to;
        s->room = room;
    }
    if (asprintf(&from, "%s/%s.new-%ld", s->dir, name, (long)getpid()) < 0)
        return no_memory(name);
    if (asprintf(&to, "%s/%s", s->dir, name) < 0) {
        free(from);
        return no_memory(name);
    }
    s->from[s->n] = from;
    s->to[s->n++] = to;
    return lks__sys_write_file(from, data, bytes);
}

/* From the name of what is new to the one under which what was there before is kept meanwhile. */
static void rename_to_old(char *from)
{
    memcpy(strrchr(from, '.'), ".old", 4);
}

/* Keep what has the name, where there is something, by a second name; where the file system has no
 * such links, by moving it away. */
static lks_status keep_old(const char *to, const char *old)
{
    unlink(old); /* of a killed process of the same number */
    if (lks__sys_link(to, old) == 0 || errno == ENOENT || lks__sys_rename(to, old) == 0)
        return LKS_OK;
    return lks__sys_fail("cannot replace", to);
}

/* The first `n` names get back what they had. */
static void roll_back(const lks__staged *s, int n)
{
    for (int i = 0; i < n; i++)
        if (rename(s->from[i], s->to[i]) < 0)
            unlink(s->to[i]);
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
    if (lks__sys_rename(from, to) < 0) {
        lks_status st = lks__sys_fail("cannot write", to);
        rename(path, to); /* does nothing where both are names of one file */
        unlink(path);
        return st;
    }
    memcpy(from, path, strlen(from));
    return LKS_OK;
}

lks_status lks__staged_commit(lks__staged *s)
{
    lks_status st = LKS_OK;
    int n = 0;
    while (n < s->n && (st = publish(s->from[n], s->to[n])) == LKS_OK)
        n++;
    if (st == LKS_OK)
        st = lks__sys_sync_dir(s->dir);
    if (st != LKS_OK)
        roll_back(s, n);
    return st;
}

bool lks__staged_has(const lks__staged *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(strrchr(s->to[i], '/') + 1, name) == 0)
            return true;
    return false;
}

void lks__staged_close(lks__staged *s)
{
    for (int i = 0; i < s->n; i++) {
        /* What is new and has not got its name, or what was there before. Not through the faults:
         * what a test made fail is cleaned up. */
        unlink(s->from[i]);
        free(s->from[i]);
        free(s->to[i]);
    }
    free(s->from);
    free(s->to);
    *s = (lks__staged){0};
}
