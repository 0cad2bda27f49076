/* base/system/memory.h - how much memory is still available. */
#ifndef LKS_BASE_SYSTEM_MEMORY_H
#define LKS_BASE_SYSTEM_MEMORY_H

#include <stdint.h>

/* Bytes that can be allocated before the kernel starts to kill: what the machine has available,
 * including swap, limited by each control group of this process and those above it. UINT64_MAX if
 * nothing of that can be read. */
uint64_t lks__memory_available(void);
/* The same with /proc and control groups below `root`, for tests. */
uint64_t lks__memory_available_in(const char *root);

#endif
