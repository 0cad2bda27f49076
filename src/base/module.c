#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of this program, with the '/' at its end; "" if it isn't known. */
static void program_folder(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        slash[1] = '\0';
}

static void *try_place(const char *folder, const char *below, const char *file, char *why,
                       size_t why_bytes)
{
    char path[PATH_MAX + 128];
    snprintf(path, sizeof path, "%s%s%s", folder, below, file);
    if (access(path, F_OK) < 0)
        return NULL;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        snprintf(why, why_bytes, "%s", dlerror()); /* the file exists but doesn't load */
    return lib;
}

lks__module_fn *lks__module_entry(const char *file, const char *entry, char *why, size_t why_bytes)
{
    char folder[PATH_MAX];
    const char *given = getenv("LOCKSTEP_MODULES");
    void *lib = NULL;
    snprintf(why, why_bytes,
             "this build of lockstep has no module for it (%s lies neither beside the program nor "
             "in ../lib/lockstep)",
             file);
    if (given != NULL && given[0] != '\0')
        lib = try_place(given, "/", file, why, why_bytes);
    program_folder(folder);
    if (lib == NULL && folder[0] != '\0')
        lib = try_place(folder, "", file, why, why_bytes);
    if (lib == NULL && folder[0] != '\0')
        lib = try_place(folder, "../lib/lockstep/", file, why, why_bytes);
    if (lib == NULL)
        return NULL;
    lks__module_fn *fn = (lks__module_fn *)dlsym(lib, entry);
    if (fn == NULL) {
        dlclose(lib);
        snprintf(why, why_bytes, "%s belongs to another version of lockstep", file);
    }
    return fn;
}
