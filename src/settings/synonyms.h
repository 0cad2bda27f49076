/* settings/synonyms.h - other programs' words for settings and values, for "did you mean". */
#pragma once

#include "settings/settings_table.h"

enum { LKS__SUGGESTION = 100 };

/* Suggest a setting of `command` for the unknown name `key`: "learning_rate" for "lr". If only
 * another command has the setting, the suggestion names that command. Returns `out`, or NULL if
 * nothing is similar. */
const char *lks__suggest_setting(const char *key, unsigned command, char out[LKS__SUGGESTION]);

/* Suggest one of the words of `d` for the invalid `text`: "cuda" for "gpu". NULL if nothing is
 * similar, or if `d` has no list of words. */
const char *lks__suggest_value(const lks__setting *d, const char *text, char out[LKS__SUGGESTION]);
