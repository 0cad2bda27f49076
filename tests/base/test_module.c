/* Files that are no modules, each with its reason; and what a message advises about a missing one:
 * this file is built with base/system/module.c as it is built for Debian packages. */
#include "support.h"

#include <libgen.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/module.h"

static void expect_none(const char *file, int version, const char *reason)
{
    char why[512];
    assert_null(lks__module_load(file, version, why, sizeof why));
    assert_contains(why, reason);
}

TEST(test_files)
{
    static const char file[] = "lockstep_test.so";
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/%s", folder, file);
    setenv("LOCKSTEP_MODULES", folder, 1);
    expect_none(file, 1, "lockstep_test.so is neither next to the program nor");
    alarm((unsigned)(10 * lks_test_patience())); /* the loader would wait for a writer */
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_none(file, 1, "lockstep_test.so: it is not a file");
    alarm(0);
    assert_int_equal(unlink(path), 0);
    static const char zeros[100];
    lks_test_write(path, zeros, sizeof zeros);
    expect_none(file, 1, "invalid ELF header");
    size_t bytes;
    const char *whole = lks_test_read("/proc/self/exe", &bytes);
    lks_test_write(path, whole, bytes / 2);
    expect_none(file, 1, "the file is cut off");
    unsetenv("LOCKSTEP_MODULES");
}

/* A module of another version isn't used. */
TEST(test_versions)
{
    char tool[] = LKS_TEST_TOOL;
    static const char *const files[] = {"lockstep_hwloc.so", "lockstep_tty.so", "lockstep_zip.so"};
    int found = 0;
    setenv("LOCKSTEP_MODULES", dirname(tool), 1);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (!lks_test_exists(lks_test_text("%s/%s", getenv("LOCKSTEP_MODULES"), files[i])))
            continue;
        found++;
        expect_none(files[i], 12345,
                    lks_test_text("%s belongs to another version of lockstep", files[i]));
    }
    unsetenv("LOCKSTEP_MODULES");
    if (found == 0)
        lks_test_lacks("modules", "none of those that need no engine was built");
}

TEST(test_advice)
{
    static const char file[] = "lockstep_sentencepiece.so", zeros[100];
    char advice[LKS__MODULE_ADVICE];
    assert_string_equal(lks__module_advice(file, "x", advice),
                        "install the package lockstep-sentencepiece");
    setenv("LOCKSTEP_MODULES", lks_test_folder(), 1); /* a damaged file is no missing module */
    lks_test_write(lks_test_text("%s/%s", getenv("LOCKSTEP_MODULES"), file), zeros, sizeof zeros);
    assert_string_equal(lks__module_advice(file, "x", advice),
                        "correct this, or reinstall the package lockstep-sentencepiece");
    unsetenv("LOCKSTEP_MODULES");
}
