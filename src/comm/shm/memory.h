/* comm/shm/memory.h - how much memory can still be had. */
#ifndef LKS_COMM_SHM_MEMORY_H
#define LKS_COMM_SHM_MEMORY_H

#include <stdint.h>

/* Bytes that can be taken before the kernel starts killing: what the machine has available, swap
 * included, and what the container (cgroup) allows. UINT64_MAX where neither can be read. */
uint64_t lks__memory_available(void);

#endif
