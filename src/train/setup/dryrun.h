/* train/setup/dryrun.h - the memory that a run on this host would need, before it starts. */
#pragma once

#include "base/status.h"
#include "settings/settings.h"

/* --dry_run: print the needs of a run, without starting a rank or a step. `s` has been checked for
 * `world_size`. */
lks_status lks__plan_dry_run(const lks__settings *s, int world_size);
/* Before anything is reserved: ERR_NOMEM, with the settings that would fit, if `world_size` ranks
 * on this host surely need more memory than it has. OK with --skip_fit_check, or if the data don't
 * exist. */
lks_status lks__plan_fits(const lks__settings *s, int world_size);
/* Bytes of all ranks together. `s` has been checked. */
lks_status lks__plan_bytes(const lks__settings *s, int world_size, double *bytes_p);
/* Choose the value of batch_size=auto as a run of `world_size` ranks would on a host of
 * `host_bytes`, and print it unless --json is given. A device with its own memory has the bytes of
 * --memory. */
lks_status lks__plan_choose_batch(lks__settings *s, uint32_t vocab, int world_size,
                                  double host_bytes);
