#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

static char folder[PATH_MAX - 256];
static pid_t owner;

static void remove_below(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char inner[PATH_MAX];
        struct stat info;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, e->d_name) >= (int)sizeof inner)
            continue;
        if (lstat(inner, &info) == 0 && S_ISDIR(info.st_mode))
            remove_below(inner);
        else
            unlink(inner);
    }
    if (dir != NULL)
        closedir(dir);
    rmdir(path);
}

static void clean_up(void)
{
    if (owner == getpid())
        remove_below(folder);
}

const char *fuzz_folder(void)
{
    if (folder[0] == '\0') {
        const char *tmp = getenv("TMPDIR");
        if (access("/dev/shm", W_OK) == 0)
            tmp = "/dev/shm";
        snprintf(folder, sizeof folder, "%s/lockstep-test-fuzz-XXXXXX",
                 tmp != NULL && *tmp != '\0' ? tmp : "/tmp");
        FUZZ_HOLDS(mkdtemp(folder) != NULL);
        owner = getpid();
        atexit(clean_up);
    }
    return folder;
}

const char *fuzz_path(const char *name)
{
    static char paths[8][PATH_MAX];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    return path;
}

const char *fuzz_file(const char *name, const void *data, size_t bytes)
{
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_HOLDS(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
    return path;
}

void fuzz_seed_text(const char *text)
{
    fuzz_seed(text, strlen(text));
}

void fuzz_seed_file(const char *path)
{
    static char data[FUZZ_MAX_INPUT];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    FUZZ_HOLDS(fd >= 0);
    ssize_t n = read(fd, data, sizeof data);
    FUZZ_HOLDS(n >= 0);
    close(fd);
    fuzz_seed(data, (size_t)n);
}

void fuzz_broken(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}
