/* train/audit/settings.h - the settings with which a part of a run was made. */
#pragma once

#include "files/checkpoint/ckpt.h"
#include "train/audit/replay.h"

/* For lks__trainer_open(): start from checkpoint `start`, or with 0 from the seed. */
lks_status lks__audit_settings(const lks__replay *r, uint64_t start, lks__settings *s);

/* Compare a checkpoint's state.json with the record: its settings, and the digest of its data. */
void lks__audit_state(lks__replay *r, const lks__ckpt *c);

/* The setting, changed by a resume at this iteration, for which steps from there on must start from
 * its checkpoint; NULL: none. */
const char *lks__audit_reopens(const lks__claims *claims, uint64_t iter);

/* Set the settings that a resume changed. */
lks_status lks__audit_change(lks__settings *s, const json_t *changed);
