/* files/checkpoint/name.h - names of checkpoints in OUT: `latest` and `best`.
 *
 * A name is a symbolic link to "ckpt-%08d" or, on a file system without symbolic links, a small
 * file that holds that text and a line break. Both are read as hostile input, and only here. */
#ifndef LKS_FILES_CHECKPOINT_NAME_H
#define LKS_FILES_CHECKPOINT_NAME_H

#include "files/checkpoint/folder.h"

#define LKS__NAME_LATEST "latest"
#define LKS__NAME_BEST   "best"

/* Read which checkpoint OUT/`name` names (kind CKPT; its folder may be gone). Kind OTHER: there is
 * no such name. ERR_FORMAT if it is neither a link nor a small file, or if it holds anything but
 * the name of a checkpoint. */
lks_status lks__name_read(const char *out_dir, const char *name, lks__entry *entry);

/* Make OUT/`name` name `target`. It is made beside it and renamed, so at every moment it names the
 * old or the new one. The caller syncs OUT. On failure it is as before. */
lks_status lks__name_set(const char *out_dir, const char *name, const char *target);

lks_status lks__name_remove(const char *out_dir, const char *name); /* OK if there is none */

/* Before a run: can OUT hold names? *links_p: true if as symbolic links; false if as small files,
 * and *err_p is the errno of a link. ERR_IO if neither works. */
lks_status lks__name_probe(const char *out_dir, bool *links_p, int *err_p);

#endif
