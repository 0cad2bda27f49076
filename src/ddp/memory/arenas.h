/* ddp/memory/arenas.h - the parameters and moments of a run, on the host and on the device.
 *
 * On the host they are in memory of the group: one replica for all ranks of a host, or one for each
 * rank (--replicas). Checkpoints, hashes and other hosts use that one. If the device uses host
 * memory, this is all, and the calls below do nothing.
 *
 * Otherwise each rank's device has a replica of the parameters, and the moments of this rank's
 * pieces alone. A rank updates its pieces there, and copies their parameters to the host. When all
 * ranks have done so, each copies all parameters to its device. Moments stay on the device of the
 * rank that updates them, until a checkpoint needs them. If devices have joined, parameters go from
 * device to device, and the host gets them for a checkpoint only. */
#ifndef LKS_DDP_MEMORY_ARENAS_H
#define LKS_DDP_MEMORY_ARENAS_H

#include "train/setup/trainer.h"

/* Collective. Opens the parameters, on both sides, and the moments' arenas on the host. */
lks_status lks__arenas_open(lks__trainer *t);
/* When t->optim is open: the moments on the device. */
lks_status lks__arenas_open_moments(lks__trainer *t);
void lks__arenas_close(lks__trainer *t);

/* The host's replica is complete (after a barrier). On return all parameters, and with `moments`
 * this rank's pieces of the moments, are on the device. */
lks_status lks__arenas_upload(lks__trainer *t, bool moments);
/* The same after an update, which has left frozen tensors as they were. */
lks_status lks__arenas_upload_updated(lks__trainer *t);

/* Before an update: copies `grads` from host memory to the device, if they aren't there. */
const float *lks__arenas_begin_update(lks__trainer *t, const float *grads);
/* The update is on the compute queue. On return its parameters are on the host, or, if devices have
 * joined, on their way to all devices. */
lks_status lks__arenas_end_update(lks__trainer *t);
/* Copy the moments to the host, and parameters that aren't there, for a checkpoint. Collective. */
lks_status lks__arenas_fetch(lks__trainer *t);

/* A hash of `count` floats of the device's parameters, from `first` on: XXH3, computed in pieces of
 * so many bytes, for which the device has memory from the first hash on. */
enum { LKS__ARENAS_PIECE = 1 << 20 };
lks_status lks__arenas_hash(lks__trainer *t, size_t first, size_t count, uint64_t *hash_p);

#endif
