/* train/setup/dryrun.h - what a run of this host would need, before it starts. */
#ifndef LKS_TRAIN_SETUP_DRYRUN_H
#define LKS_TRAIN_SETUP_DRYRUN_H

#include "base/status.h"
#include "settings/settings.h"

/* --dry_run: print what the run would need to standard output; starts no rank and no step. `s` has
 * been checked for `world_size`. */
lks_status lks__plan_dry_run(const lks__settings *s, int world_size);
/* Before anything is reserved: ERR_NOMEM, with what would fit, if `world_size` ranks of this host
 * surely need more memory than it has, and --skip_fit_check isn't given. OK if the data aren't
 * there. */
lks_status lks__plan_fits(const lks__settings *s, int world_size);
/* The same, checked settings: the bytes of all ranks together. */
lks_status lks__plan_bytes(const lks__settings *s, int world_size, double *bytes_p);
/* Replace batch_size=auto as a run of `world_size` ranks would on a host of `host_bytes`, and print
 * the choice (but with --json). A device with its own memory has the bytes of --memory. */
lks_status lks__plan_choose_batch(lks__settings *s, uint32_t vocab, int world_size,
                                  double host_bytes);

#endif
