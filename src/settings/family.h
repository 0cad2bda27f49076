/* settings/family.h - what a family of models is to the rest of the program: one struct, in a file
 * of its own in src/train/procedure/families. Nobody compares names of families; what differs is a
 * field here, in the model's operations (model/model.h) or in the procedure
 * (train/procedure/procedure.h). */
#ifndef LKS_SETTINGS_FAMILY_H
#define LKS_SETTINGS_FAMILY_H

#include "settings/settings.h"

/* A name that the family's script has for a setting. */
typedef struct lks__setting_alias {
    const char *theirs, *ours; /* "num_layers", "n_layer" */
} lks__setting_alias;

typedef struct lks__setting_preset {
    const char *name, *value;
} lks__setting_preset;

struct lks__model_config;
struct lks__model_ops;
struct lks__procedure;

typedef struct lks__family {
    const char *name;  /* the word of --family */
    const char *about; /* for --help: whose model it is */

    const struct lks__model_ops *model;
    const struct lks__procedure *procedure;
    /* Set what only this family has in its config; the common part is there. NULL: nothing. */
    void (*config)(const lks__settings *s, struct lks__model_config *config);

    unsigned settings; /* the flag of settings that only this family has (LKS__SETTING_GOLF); 0 */
    /* Names that the script has for settings, up to one of NULL. If there are any, they and the
     * names of the family's own settings, in upper case, are read from the environment. */
    const lks__setting_alias *names;
    /* Settings of all families that have no effect here, each with the one to use or "", up to one
     * of NULL; or NULL. */
    const lks__setting_alias *unused;
    /* Of these names, those that tell where files are: every command reads their variables,
     * whatever its family; up to NULL. */
    const char *const *files;
    /* The script's defaults that differ from the settings table's, up to one of NULL; or NULL. */
    const lks__setting_preset *presets;
    /* Before a run: set settings that follow from others, and check them together; or NULL. */
    lks_status (*check)(lks__settings *s);
    /* Settings of a run of one micro-batch on each rank on random tokens (`bench`); or NULL. */
    void (*prepare_bench)(lks__settings *s);
    const char *prep; /* `lockstep prep THIS` makes its data */
} lks__family;

/* For messages to a user of parameter-golf's variables. */
#define LKS__GOLF_WAYS "`lockstep train config/golf_baseline.conf`, or --family=golf"

/* All of them, up to NULL; the first one is the default. A program with other families links its
 * own list. */
extern const lks__family *const lks__families[];

const lks__family *lks__family_of(const lks__settings *s);

/* Family i's name and whose it is; NULL behind the last. */
const char *lks__family_word(int i);
const char *lks__family_about(int i);

/* The setting behind a script's name ("num_layers": "n_layer"); NULL: it is no script's name. */
const char *lks__family_setting(const char *name);

/* A setting's name as the user wrote it, for messages: the variable if its value is from the
 * environment, and the script's name of a model's size. Returns `out`. */
const char *lks__family_name_of(const lks__settings *s, int setting, char out[LKS__SETTING_KEY]);

/* Take the script's environment variables (NUM_LAYERS, ITERATIONS, …): they win over files and lose
 * against the command line. Those of another family's script are noted in `args`, unless it is
 * NULL. */
lks_status lks__family_environment(lks__settings *s, unsigned command, lks__args *args);

/* Set what nobody has given to the family's defaults. */
lks_status lks__family_presets(lks__settings *s, unsigned command);

/* The command line gives nothing that has no effect in the family. */
lks_status lks__family_check_given(const lks__settings *s);

/* n_head divides n_embd: a check that families with attention share. */
lks_status lks__family_check_heads(const lks__settings *s);

#endif
