#include "base/system/module.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/place.h"
#include "base/status.h"

/* The beginnings of a message and of its advice, by which lks__module_is_missing() finds them. */
#define MISSING "this build of lockstep has no module for it"
#define INSTALL "install the "

/* Why the loader must not open this file; NULL: it may. The loader maps as much as the file's
 * headers claim, so a truncated copy would end the process by SIGBUS. A pipe would block the loader
 * forever. */
static const char *why_not(const char *path)
{
    const char *why = NULL;
    struct stat st;
    Elf64_Ehdr head;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL; /* the loader reports it */
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
        why = "it is not a file";
    else if (pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
             memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
             (uint64_t)st.st_size < head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize)
        why = "the file is cut off"; /* this table is the file's end */
    close(fd);
    return why;
}

/* True if the file exists. Then it is loaded, or *lib stays NULL and `why` is the reason. */
static bool try_place(const char *folder, const char *below, const char *file, void **lib,
                      char *why, size_t why_bytes)
{
    char path[PATH_MAX + 128];
    snprintf(path, sizeof path, "%s%s%s", folder, below, file);
    if (access(path, F_OK) < 0)
        return false;
    const char *refused = why_not(path);
    if (refused != NULL) {
        snprintf(why, why_bytes, "%s: %s", path, refused);
        return true;
    }
    *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*lib == NULL)
        snprintf(why, why_bytes, "%s", dlerror());
    return true;
}

/* Load the first file that exists: a damaged file isn't silently replaced by another one. */
static void *find(const char *file, char *why, size_t why_bytes)
{
    static const char *const by_program[] = {"", "../lib/lockstep/"};
    /* In a program that isn't ours: liblockstep is in lib, or in lib/x86_64-linux-gnu. */
    static const char *const by_library[] = {"lockstep/", "../lockstep/"};
    char folder[PATH_MAX];
    const char *given = getenv("LOCKSTEP_MODULES");
    void *lib = NULL;
    bool there =
        given != NULL && given[0] != '\0' && try_place(given, "/", file, &lib, why, why_bytes);
    for (int i = 0; i < 2 && !there && *lks__program_folder(folder) != '\0'; i++)
        there = try_place(folder, by_program[i], file, &lib, why, why_bytes);
    for (int i = 0; i < 2 && !there && *lks__library_folder(folder) != '\0'; i++)
        there = try_place(folder, by_library[i], file, &lib, why, why_bytes);
    return lib;
}

const void *lks__module_load(const char *file, int version, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes,
             MISSING " (%s is neither next to the program nor in ../lib/lockstep, nor in a folder "
                     "that LOCKSTEP_MODULES names: set that if it is elsewhere)",
             file);
    void *lib = find(file, why, why_bytes);
    if (lib == NULL)
        return NULL;
    const int *table = dlsym(lib, "lks__module_table");
    if (table == NULL || *table != version) {
        dlclose(lib);
        snprintf(why, why_bytes, "%s belongs to another version of lockstep", file);
        return NULL;
    }
    return table;
}

const char *lks__module_advice(const char *file, const char *package, char out[LKS__MODULE_ADVICE])
{
    char why[512] = ""; /* stays empty if there is no such file */
    const bool missing = find(file, why, sizeof why) == NULL && why[0] == '\0';
#ifdef LKS_PACKAGES
    char name[80]; /* for lockstep_gloo.so: lockstep-gloo */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
    for (char *c = name; *c != '\0'; c++)
        *c = *c == '_' ? '-' : *c;
    snprintf(out, LKS__MODULE_ADVICE,
             missing ? INSTALL "package %s" : "correct this, or reinstall the package %s", name);
#else
    snprintf(out, LKS__MODULE_ADVICE,
             missing ? INSTALL "Debian package %s, then configure and build lockstep again"
                     : "correct this, or build lockstep again",
             package);
#endif
    return out;
}

const void *lks__module_get(lks__module *m)
{
    char why[512], advice[LKS__MODULE_ADVICE];
    pthread_mutex_lock(&m->mutex);
    if (m->table == NULL)
        m->table = lks__module_load(m->file, m->version, why, sizeof why);
    const void *table = m->table;
    pthread_mutex_unlock(&m->mutex);
    if (table == NULL)
        lks__fail(LKS_ERR_SUPPORT, "%s: %s; %s", m->failure, lks__shown(why, 400),
                  lks__module_advice(m->file, m->package, advice));
    return table;
}

bool lks__module_is_missing(const char *sentence, const char **advice_p, char package[80])
{
    const char *advice = strstr(sentence, INSTALL);
    const char *name = advice != NULL ? strstr(advice, "package ") : NULL;
    package[0] = '\0';
    if (name != NULL) {
        name += strlen("package ");
        snprintf(package, 80, "%.*s", (int)strcspn(name, ",; "), name);
    }
    *advice_p = advice != NULL ? advice : "";
    return strstr(sentence, MISSING) != NULL;
}
