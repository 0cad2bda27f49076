/* settings/config/recipe.h - recipes by name: config/NAME.conf in the current folder, or the
 * installed recipe. */
#pragma once

#include <limits.h>
#include <stdbool.h>

enum lks__recipe_found {
    LKS__RECIPE_NONE,
    LKS__RECIPE_HERE,
    LKS__RECIPE_INSTALLED,
};

/* True if `arg` ends like a config file, in .conf or .py. */
bool lks__recipe_is_file(const char *arg);

/* Find the config file that a command line names: a file (a name ending in .conf or .py), or a
 * recipe, written quickstart, quickstart.conf or config/quickstart.conf; the end may also be .py,
 * as in nanoGPT. `path` is the file to read. NONE: neither exists, and `path` is empty. */
enum lks__recipe_found lks__recipe_find(const char *arg, char path[PATH_MAX]);
