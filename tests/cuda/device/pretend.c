/* pretend.c - loaded before a program's libraries: the machine seems to have an NVIDIA GPU, whose
 * sign is the file PRETEND, or /dev/nvidia0. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int access(const char *path, int mode)
{
    const char *sign = getenv("PRETEND");
    if (strcmp(path, sign != NULL ? sign : "/dev/nvidia0") == 0)
        return 0;
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}
