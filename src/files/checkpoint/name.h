/* files/checkpoint/name.h - names of checkpoints in OUT: `latest` and `best`.
 *
 * A name is a symbolic link to "ckpt-%08d". On a file system without symbolic links it is a small
 * file that contains this text and a line break. Both are read as hostile input, and only here. */
#pragma once

#include "files/checkpoint/folder.h"

#define LKS__NAME_LATEST "latest"
#define LKS__NAME_BEST   "best"

/* Read the target of OUT/`name` (kind CKPT; its folder may be gone). Kind OTHER: the name doesn't
 * exist. ERR_FORMAT if it is neither a link nor a small file, or if it contains anything but the
 * name of a checkpoint. */
lks_status lks__name_read(const char *out_dir, const char *name, lks__entry *entry);

/* Set OUT/`name` to `target`. The new link replaces the old one by a rename, so `name` always has
 * the old or the new target. The caller syncs OUT. On failure `name` is unchanged. */
lks_status lks__name_set(const char *out_dir, const char *name, const char *target);

lks_status lks__name_remove(const char *out_dir, const char *name); /* OK if it doesn't exist */

/* Before a run: check that OUT can contain names. *links_p: true for symbolic links; false for
 * small files, and *err_p is the errno of a link. ERR_IO if neither works. */
lks_status lks__name_probe(const char *out_dir, bool *links_p, int *err_p);
