/* settings/settings.h - values of the settings in settings/map.h: from the command line, files,
 * checkpoints and the environment, with the relations between them. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"
#include "base/text/jsonw.h"
#include "settings/map.h"

/* --- command line and files ------------------------------------------------------------------- */

/* LKS__ARGS_PLACE: bytes of a place in a message, such as FILE:LINE. */
enum {
    LKS__ARGS_POSITIONAL = 64,
    LKS__ARGS_NOTES = 32,
    LKS__ARGS_PLACE = 540,
    LKS__ARGS_NOTE = LKS__ARGS_PLACE + 100,
};

typedef struct lks__args {
    bool help;              /* --help or -h was given; the other arguments weren't read */
    const char *help_group; /* GROUP of --help=GROUP; NULL without it */
    /* Arguments that are neither settings nor files. */
    const char *positional[LKS__ARGS_POSITIONAL];
    int n_positional;
    int n_files;     /* number of config files read */
    const char *run; /* the word that set out_dir: a run's folder; or NULL */
    /* Settings without a meaning here ("config/x.py:3: wandb_log"), for the tool to print; escaped.
     * n_notes counts all; those that don't fit are dropped. */
    char notes[LKS__ARGS_NOTES][LKS__ARGS_NOTE];
    int n_notes;
    /* Path of an installed recipe that was found by name (config/recipe.h), to print; or "".
     * Escaped. */
    char recipe[LKS__ARGS_NOTE];
} lks__args;

/* Read the arguments after the command's name: `--key=value`, `--key value`, `--flag` for a BOOL;
 * '-' equals '_'. Arguments ending in .conf or .py are config files
 * (settings/config/config_file.h). For a command that uses a run, another word is the run's folder,
 * unless it only names a recipe (settings/config/recipe.h). For others, the first `max_positional`
 * words are positional, and the rest names of recipes. The command line overrides files; otherwise
 * the later value wins. `s` contains defaults on entry. ERR_CONFIG names the argument or file:line,
 * and the range or the nearest setting. */
lks_status lks__settings_parse(lks__settings *s, unsigned command, int argc, char *const *argv,
                               int max_positional, lks__args *args);

/* Set one setting from text. `where` ("config/x.conf:12", "--n_layer=x") starts messages. A value
 * from a lower source than the current one is checked but not used. The same holds for a setting of
 * train in a file, if `command` doesn't have it: so a recipe can also be given to eval and
 * bench. */
lks_status lks__settings_set(lks__settings *s, unsigned command, const char *key, const char *value,
                             lks__setting_from from, const char *where);

/* Record something that was read but isn't used; any bytes. */
void lks__args_note(lks__args *args, const char *where, const char *what);

/* True for names in nanoGPT's scripts without a meaning here: wandb_*, compile. */
bool lks__setting_is_foreign(const char *key);

/* True for -h, --help and --help=GROUP. */
bool lks__is_help(const char *arg);
/* ERR_CONFIG with a list of groups if `command` has no settings in the group, whose word may also
 * be "all". */
lks_status lks__settings_check_group(unsigned command, const char *group);
/* Print the settings of `command` in the group, with defaults and meanings; NULL: those that people
 * use most, and the names of the groups, if `command` accepts train's settings, otherwise all. */
void lks__settings_help(FILE *out, unsigned command, const char *group);
/* Print "  LEFT   TEXT" in lines of at most 80 bytes. No word of the text is longer than a line. */
void lks__help_row(FILE *out, const char *left, const char *text);
/* Print one setting, with its range and the commands that accept it. */
void lks__setting_help(FILE *out, int setting);

/* Kinds of --init_from. */
typedef enum lks__init_kind {
    LKS__INIT_SCRATCH,
    LKS__INIT_RESUME,
    LKS__INIT_WEIGHTS, /* from a path, or a name: weights/choice/known.h */
} lks__init_kind;
lks__init_kind lks__settings_init(const lks__settings *s);
/* For a command that uses a model: true if the command line names weights. A recipe's init_from
 * applies only to train. */
bool lks__settings_uses_weights(const lks__settings *s);
/* True if the setting was given for a run of this family: variables of another family's script
 * don't count. */
bool lks__settings_given_for(const lks__settings *s, int setting, const char *family);

/* --- relations between settings --------------------------------------------------------------- */

/* Complete the settings of a run of train on `world_size` ranks: set those that follow from others
 * (virtual_ranks if it is 0, and the family's), and check conditions between settings: V divides N,
 * W divides V (or allow_uneven), W <= V, and exchange=nccl supports all settings. ERR_CONFIG names
 * both settings and the remedy. */
lks_status lks__settings_complete(lks__settings *s, int world_size);

/* True if another setting's value leaves the setting `name` without effect: on the command line it
 * is refused then. */
bool lks__settings_unused(const lks__settings *s, const char *name);

/* The setting that NCCL doesn't support, with the reason, or NULL. */
const char *lks__settings_not_nccl(const lks__settings *s);

/* Read `memory` in bytes; 0: it wasn't given. ERR_CONFIG. */
lks_status lks__settings_memory(const lks__settings *s, uint64_t *bytes_p);

/* Find the folder of `dataset`: the value if it is a folder, else data/NAME. ERR_CONFIG. */
lks_status lks__settings_data_dir(const lks__settings *s, char out[LKS__SETTING_STR + 8]);

/* --- checkpoints, metrics --------------------------------------------------------------------- */

/* A new object with train's settings of the role LKS__SETTING_CONFIG; NULL if out of memory. */
json_t *lks__settings_to_json(const lks__settings *s);

/* Write train's settings whose role is in `flags` as members of the open object in `w`; with
 * `other`, only those that differ from it. */
void lks__settings_write(const lks__settings *s, unsigned flags, const lks__settings *other,
                         lks__jsonw *w);

/* Write the settings of `command` that must be equal on all ranks, one per line: "seed=1337", in
 * the order of the table; text is escaped. For commands other than train, the value of a SHAPE that
 * isn't given is empty, because the model's value applies. ERR_NOMEM if the lines don't fit. */
lks_status lks__settings_lines(const lks__settings *s, unsigned command, char *out, size_t bytes);

/* Read the output of to_json into defaults, with all checks of the command line. Members of other
 * roles are ignored. ERR_FORMAT, with `where`, if a member of SHAPE or RUN is missing, or for an
 * unknown or mistyped member. */
lks_status lks__settings_from_json(const json_t *json, const char *where, lks__settings *s_p);

/* Continue `run` (read from a checkpoint at `where`). SHAPE and RUN are copied from it, and an
 * explicit different value is ERR_CONFIG, except for SEGMENT on the command line. FREE is copied if
 * no value was given. */
lks_status lks__settings_resume(lks__settings *s, const lks__settings *run, const char *where);

/* True if both have the same batch: no SEGMENT differs. */
bool lks__settings_same_batch(const lks__settings *a, const lks__settings *b);

/* Copy the settings of role LKS__SETTING_KEPT that were not given from `kept`, as
 * lks__settings_write() wrote them. NULL and missing members change nothing. ERR_FORMAT, with
 * `where`, for an invalid value. */
lks_status lks__settings_keep(lks__settings *s, const json_t *kept, const char *where);

/* Begin a run with the weights at `where`, whose model `source` describes: copy the SHAPE settings
 * that it read from its file (LKS__FROM_CHECKPOINT). An explicit different value is ERR_CONFIG, but
 * a smaller block_size, a larger vocab_size and any gelu stay. */
lks_status lks__settings_begin(lks__settings *s, const lks__settings *source, const char *where);

/* Number of settings of these roles that differ; names_p (may be NULL) [LKS__N_SETTINGS] gets their
 * names. */
int lks__settings_diff(const lks__settings *a, const lks__settings *b, unsigned command,
                       unsigned flags, const char **names_p);

/* One value as text, doubles as %.17g; returns `out`. */
const char *lks__settings_text(const lks__settings *s, int setting, char out[LKS__SETTING_STR]);
