#include "ckpt/scratch.h"
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/text/utf8.h"

char scratch[SCRATCH_PATH];

static int open_in(const char *folder)
{
    snprintf(scratch, sizeof scratch, "%s/lockstep-test-ckpt-XXXXXX", folder);
    return mkdtemp(scratch) ? 0 : -1;
}

int scratch_open(void **state)
{
    const char *tmp = getenv("TMPDIR");
    return open_in(tmp && *tmp ? tmp : "/tmp");
}

int scratch_open_with_room(size_t bytes)
{
    struct statvfs shm;
    const bool fits =
        statvfs("/dev/shm", &shm) == 0 && (size_t)shm.f_bavail * shm.f_frsize >= bytes;
    return fits && open_in("/dev/shm") == 0 ? 0 : scratch_open(NULL);
}

int scratch_open_in_memory(void **state)
{
    return scratch_open_with_room(0);
}

int scratch_close(void **state)
{
    remove_tree(scratch);
    return 0;
}

const char *in_scratch(const char *name)
{
    static char paths[8][SCRATCH_PATH + 256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static bool is_dir(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    return remove(path);
}

void remove_tree(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0)
        assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void copy_tree(const char *from, const char *to)
{
    char a[1024], b[1024], target[256];
    struct dirent *d;
    assert_int_equal(mkdir(to, 0777), 0);
    DIR *dir = opendir(from);
    assert_non_null(dir);
    while ((d = readdir(dir)) != NULL) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        snprintf(a, sizeof a, "%s/%s", from, d->d_name);
        snprintf(b, sizeof b, "%s/%s", to, d->d_name);
        ssize_t link = readlink(a, target, sizeof target - 1);
        if (link >= 0) {
            target[link] = '\0';
            assert_int_equal(symlink(target, b), 0);
        } else if (is_dir(a)) {
            copy_tree(a, b);
        } else {
            const int in = open(a, O_RDONLY), out = open(b, O_WRONLY | O_CREAT, 0666);
            ssize_t n;
            do
                n = sendfile(out, in, NULL, 1 << 20);
            while (n > 0);
            assert_int_equal(n, 0);
            close(in);
            close(out);
        }
    }
    closedir(dir);
}

bool any_name_ends(const char *folder, const char *tail)
{
    bool found = false;
    struct dirent *d;
    DIR *dir = opendir(folder);
    while (dir && (d = readdir(dir)) != NULL)
        found = found || lks__ends_with(d->d_name, tail);
    if (dir)
        closedir(dir);
    return found;
}

uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Dull;
}
