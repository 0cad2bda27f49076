/* base/system/place.h - folders of the program and of what is installed with it. */
#ifndef LKS_BASE_SYSTEM_PLACE_H
#define LKS_BASE_SYSTEM_PLACE_H

#include <limits.h>
#include <stddef.h>

/* Folder of this program, with the '/' at its end; "" if it isn't known. */
const char *lks__program_folder(char out[PATH_MAX]);

/* Folder of the object that holds this function, in the same form: of liblockstep for a program
 * that is linked with it, of the program itself for lockstep. "" if it isn't known. */
const char *lks__library_folder(char out[PATH_MAX]);

/* Write the path of `below` in share/lockstep, which lies beside the program's folder, wherever
 * both were moved; returns `out`, "" if it is too long or the program's folder isn't known. */
const char *lks__share_path(const char *below, char out[PATH_MAX]);

#endif
