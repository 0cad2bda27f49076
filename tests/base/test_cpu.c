/* Kernel levels: what LOCKSTEP_CPU names, and tiles that Linux refuses. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "support.h"

static lks__cpu_level best(void)
{
    lks__cpu_level level;
    unsetenv("LOCKSTEP_CPU");
    assert_ok(lks__cpu_level_get(&level));
    return level;
}

/* Linux refuses tiles to a process whose signal stack is too small for their frames. */
static int without_tiles(void)
{
    static char small[2048];
    stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    lks__cpu_level level;
    if (sigaltstack(&stack, NULL) != 0)
        return 1;
    unsetenv("LOCKSTEP_CPU");
    if (lks__cpu_level_get(&level) != LKS_OK || level != LKS__CPU_AVX512_BF16)
        return 2;
    setenv("LOCKSTEP_CPU", "amx", 1);
    if (lks__cpu_level_get(&level) != LKS_ERR_SUPPORT ||
        strstr(lks_last_error(), "avx512_bf16") == NULL)
        return 3;
    return 0;
}

/* First, in a process that has not asked yet, because a permission is never taken back. */
TEST(test_tiles_refused)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(best() == LKS__CPU_AMX);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
        lks_test_lacks("amx", "no tiles to refuse");
    child = fork();
    if (child == 0)
        _exit(without_tiles());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(test_names)
{
    const lks__cpu_level top = best();
    const bool arm = top == LKS__CPU_NEON;
    for (lks__cpu_level level = LKS__CPU_PLAIN; level <= LKS__CPU_AMX; level++) {
        lks__cpu_level got = LKS__CPU_PLAIN;
        if (level != LKS__CPU_PLAIN && (level == LKS__CPU_NEON) != arm)
            continue;
        setenv("LOCKSTEP_CPU", lks__cpu_level_name(level), 1);
        if (level <= top) {
            assert_ok(lks__cpu_level_get(&got));
            assert_int_equal(got, level);
        } else {
            assert_int_equal(lks__cpu_level_get(&got), LKS_ERR_SUPPORT);
            assert_non_null(strstr(lks_last_error(), lks__cpu_level_name(level)));
            assert_non_null(strstr(lks_last_error(), lks__cpu_level_name(top)));
        }
    }
    lks__cpu_level got = LKS__CPU_AVX2;
    setenv("LOCKSTEP_CPU", "ref", 1); /* an earlier name */
    assert_ok(lks__cpu_level_get(&got));
    assert_int_equal(got, LKS__CPU_PLAIN);
    /* an unknown name, and a level of another architecture */
    const char *const refused[] = {"avx", arm ? "avx2" : "neon"};
    for (int i = 0; i < 2; i++) {
        setenv("LOCKSTEP_CPU", refused[i], 1);
        assert_int_equal(lks__cpu_level_get(&(lks__cpu_level){LKS__CPU_PLAIN}), LKS_ERR_CONFIG);
        assert_non_null(strstr(lks_last_error(), refused[i]));
        assert_non_null(strstr(lks_last_error(), lks__cpu_level_name(arm ? top : LKS__CPU_AMX)));
    }
}

/* x86's file has a name, ARM64's has numbers. */
TEST(test_model)
{
    static const char *const files[][2] = {
        {"processor\t: 0\nvendor_id\t: X\nmodel name\t: A \033 B\nmodel name\t: C\n", "A \\x1b B"},
        {"processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
         "CPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n",
         "ARM Neoverse-N1"},
        {"CPU implementer\t: 0x41\nCPU part\t: 0xd03\n\nCPU implementer\t: 0x41\nCPU part\t: "
         "0xd08\n",
         "ARM Cortex-A72"},
        {"CPU implementer\t: 0x48\nCPU part\t: 0xd01\n", "ARM64, implementer 0x48, part 0xd01"},
        {"CPU part\t: none\nmodel name\n", "unknown"},
        {"", "unknown"},
    };
    const char *path = lks_test_text("%s/cpuinfo", lks_test_folder());
    char model[LKS__CPU_MODEL];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        lks_test_write_text(path, files[i][0]);
        lks__cpu_read_model(path, model);
        assert_string_equal(model, files[i][1]);
    }
    lks__cpu_read_model("/nowhere", model);
    assert_string_equal(model, "unknown");
}
