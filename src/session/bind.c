#include "session/bind.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/module.h"

const char *lks__bind_find(int rank, int ranks, lks__bind_share *share, char *why, size_t why_bytes)
{
    const lks__bind_module *module =
        lks__module_load(LKS__BIND_MODULE_FILE, LKS__BIND_MODULE_VERSION, why, why_bytes);
    if (module == NULL) {
        char advice[LKS__MODULE_ADVICE];
        lks__append(why, why_bytes, "; ", "%s",
                    lks__module_advice(LKS__BIND_MODULE_FILE, "libhwloc-dev", advice));
        return NULL;
    }
    return module->share(rank, ranks, share, why, why_bytes) == 0 ? module->library() : NULL;
}

/* True if the kernel's list of memory nodes contains one number. hwloc would tell the same, but it
 * takes time at every start, and crashes if it runs out of memory. False if hwloc describes another
 * machine. */
static bool has_one_node(void)
{
    char text[64];
    if (getenv("HWLOC_SYNTHETIC") != NULL || getenv("HWLOC_XMLFILE") != NULL)
        return false;
    const int fd = open("/sys/devices/system/node/online", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof text);
    close(fd);
    return n > 0 && memchr(text, ',', (size_t)n) == NULL && memchr(text, '-', (size_t)n) == NULL;
}

void lks__bind(enum lks__bind mode, int rank, int ranks)
{
    lks__bind_share share;
    char why[300];
    /* With fewer cores than ranks, ranks would share some and leave others idle. */
    if (mode == LKS__BIND_NONE || ranks < 2 || lks__cpu_count() < ranks)
        return;
    if (mode == LKS__BIND_AUTO && has_one_node())
        return;
    if (lks__bind_find(rank, ranks, &share, why, sizeof why) == NULL)
        return;
    if (mode == LKS__BIND_AUTO && share.nodes < 2)
        return;
    (void)sched_setaffinity(0, sizeof share.set, &share.set);
}
