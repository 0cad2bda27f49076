#include "ckpt/scratch.h"
#include "support.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/text/utf8.h"

static const char *scratch;

int scratch_open(void **state)
{
    scratch = lks_test_folder();
    return 0;
}

int scratch_open_in_memory(void **state)
{
    scratch = lks_test_folder_in_memory();
    return 0;
}

const char *in_scratch(const char *name)
{
    return lks_test_text("%s/%s", scratch, name);
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
