/* base/system/memory.h - the available memory. */
#pragma once

#include <stdint.h>

/* Bytes that can be allocated before the kernel starts to kill: the machine's available memory,
 * including swap, limited by this process's control groups and the groups above them. UINT64_MAX if
 * none of these can be read. */
uint64_t lks__memory_available(void);
/* With /proc and control groups below `root`, for tests. */
uint64_t lks__memory_available_in(const char *root);
