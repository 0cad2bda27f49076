#include "data/staged.h"

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

lks_status lks__staged_commit(lks__staged *s)
{
    for (int i = 0; i < s->n; i++) {
        if (lks__sys_rename(s->from[i], s->to[i]) < 0)
            return lks__sys_fail("cannot write", s->to[i]);
        free(s->from[i]);
        s->from[i] = NULL;
    }
    return lks__sys_sync_dir(s->dir);
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
        if (s->from[i])
            unlink(s->from[i]); /* not through the faults: what a test made fail is cleaned up */
        free(s->from[i]);
        free(s->to[i]);
    }
    free(s->from);
    free(s->to);
    *s = (lks__staged){0};
}
