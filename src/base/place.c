#include "base/place.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const char self[] = "/proc/self/exe";

static const char *folder_of(char path[PATH_MAX])
{
    char *slash = strrchr(path, '/');
    path[slash == NULL ? 0 : slash - path + 1] = '\0';
    return path;
}

const char *lks__program_file(void)
{
    return access(self, X_OK) == 0 ? self : (const char *)getauxval(AT_EXECFN);
}

const char *lks__program_folder(char out[PATH_MAX])
{
    ssize_t n = readlink(self, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    if (n <= 0 && realpath(lks__program_file(), out) == NULL)
        out[0] = '\0';
    return folder_of(out);
}

const char *lks__library_folder(char out[PATH_MAX])
{
    /* The loader returns the path as in the program's call, so it may be relative for the program
     * itself, but not for a library found by the loader's rules. */
    Dl_info info;
    char path[PATH_MAX];
    if (dladdr((const void *)lks__share_path, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, path) == NULL)
        path[0] = '\0';
    memcpy(out, path, strlen(path) + 1);
    return folder_of(out);
}

const char *lks__share_path(const char *below, char out[PATH_MAX])
{
    char folder[PATH_MAX];
    lks__program_folder(folder);
    folder[strlen(folder) - (folder[0] != '\0')] = '\0'; /* /usr/bin/: /usr/bin, then /usr/ */
    folder_of(folder);
    int n = snprintf(out, PATH_MAX, "%sshare/lockstep/%s", folder, below);
    if (folder[0] == '\0' || n >= PATH_MAX)
        out[0] = '\0';
    return out;
}
