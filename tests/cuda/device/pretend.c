/* pretend.c - loaded before a program's libraries: the machine seems to have an NVIDIA GPU. */
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int access(const char *path, int mode)
{
    if (strcmp(path, "/dev/nvidia0") == 0)
        return 0;
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}
