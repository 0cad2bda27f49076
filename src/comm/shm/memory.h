/* comm/shm/memory.h - how much memory can still be had. */
#ifndef LKS_COMM_SHM_MEMORY_H
#define LKS_COMM_SHM_MEMORY_H

#include <stdint.h>

/* Bytes that can be taken before the kernel starts killing: what the machine has available, swap
 * included, and what each control group leaves that this process is in, its own and those above.
 * UINT64_MAX if none of that can be read. */
uint64_t lks__memory_available(void);
/* The same of the /proc and the control groups below `root`, for tests. */
uint64_t lks__memory_available_in(const char *root);

#endif
