/* base/place.h - folders of the program and of its installed files. */
#pragma once

#include <limits.h>
#include <stddef.h>

/* A path that executes this program again: also if its file has been replaced meanwhile, and, with
 * the path by which it was started, if /proc isn't mounted. */
const char *lks__program_file(void);

/* Folder of this program, with a trailing '/'; "" if it isn't known. */
const char *lks__program_folder(char out[PATH_MAX]);

/* Folder of the object that contains this function, in the same form: liblockstep's folder in a
 * program linked with it, the program's own folder in lockstep. "" if it isn't known. */
const char *lks__library_folder(char out[PATH_MAX]);

/* Write the path of `below` in share/lockstep, which is found relative to the program's folder, so
 * both can be moved together. Returns `out`, "" if it is too long or the program's folder isn't
 * known. */
const char *lks__share_path(const char *below, char out[PATH_MAX]);
