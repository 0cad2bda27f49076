#include "settings/config/recipe.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/place.h"

static bool is_there(const char *path)
{
    return path[0] != '\0' && access(path, F_OK) == 0;
}

/* Number of bytes of `arg` before its .conf or .py; all of them without such an end. */
static size_t without_end(const char *arg)
{
    static const char *const ends[] = {".conf", ".py"};
    const size_t n = strlen(arg);
    for (int i = 0; i < 2; i++) {
        const size_t n_end = strlen(ends[i]);
        if (n > n_end && strcmp(arg + n - n_end, ends[i]) == 0)
            return n - n_end;
    }
    return n;
}

bool lks__recipe_is_file(const char *arg)
{
    return arg[0] != '-' && arg[without_end(arg)] != '\0';
}

/* The NAME of NAME, NAME.conf, NAME.py, or one of these in config/. False for other forms. */
static bool read_name(const char *arg, char name[NAME_MAX + 1])
{
    if (strncmp(arg, "config/", 7) == 0)
        arg += 7;
    const size_t n = without_end(arg);
    if (n == 0 || n > NAME_MAX || strcspn(arg, "./") < n)
        return false;
    memcpy(name, arg, n);
    name[n] = '\0';
    return true;
}

enum lks__recipe_found lks__recipe_find(const char *arg, char path[PATH_MAX])
{
    char name[NAME_MAX + 1], below[NAME_MAX + 16];
    int n = snprintf(path, PATH_MAX, "%s", arg);
    if (lks__recipe_is_file(arg) && n < PATH_MAX && is_there(path))
        return LKS__RECIPE_HERE;
    if (read_name(arg, name)) {
        for (int i = 0; i < 2; i++) {
            snprintf(path, PATH_MAX, "config/%s%s", name, i == 0 ? ".conf" : ".py");
            if (is_there(path))
                return LKS__RECIPE_HERE;
        }
        snprintf(below, sizeof below, "config/%s.conf", name);
        if (is_there(lks__share_path(below, path)))
            return LKS__RECIPE_INSTALLED;
    }
    path[0] = '\0';
    return LKS__RECIPE_NONE;
}
