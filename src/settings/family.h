/* settings/family.h - a family of models: one struct per family, in a separate file in
 * src/train/procedure/families. Code never compares names of families; differences are fields of
 * this struct, of the model's operations (model/model.h) or of the procedure
 * (train/procedure/procedure.h). */
#pragma once

#include "base/status.h"
#include "settings/map.h"

/* The script's name of a setting. */
typedef struct lks__setting_alias {
    const char *theirs, *ours; /* "num_layers", "n_layer" */
} lks__setting_alias;

typedef struct lks__setting_preset {
    const char *name, *value;
} lks__setting_preset;

struct lks__args;
struct lks__model_config;
struct lks__model_ops;
struct lks__optimizer;
struct lks__procedure;

typedef struct lks__family {
    const char *name;  /* the word of --family */
    const char *about; /* for --help: the model's origin */

    const struct lks__model_ops *model;
    const struct lks__procedure *procedure;
    const struct lks__optimizer *optimizer; /* the script's, for optimizer=auto */
    /* Set the fields of the config that only this family uses; the common part is already set. May
     * be NULL. */
    void (*config)(const lks__settings *s, struct lks__model_config *config);

    unsigned settings; /* flag of this family's own settings (LKS__SETTING_GOLF), or 0 */
    /* The script's names of settings, terminated by a row of NULL. If there are any, they and the
     * names of the family's own settings, in upper case, are read from the environment. */
    const lks__setting_alias *names;
    /* Settings of all families that have no effect here, each with its replacement or "",
     * terminated by a row of NULL; or NULL. */
    const lks__setting_alias *unused;
    /* Those of these names that are paths of files: every command reads their variables, for any
     * family; terminated by NULL. */
    const char *const *files;
    /* The script's defaults that differ from the settings table, terminated by a row of NULL; or
     * NULL. */
    const lks__setting_preset *presets;
    /* Before a run: set settings that follow from others, and check their combination; or NULL. */
    lks_status (*complete)(lks__settings *s);
    /* Set up a run of one micro-batch per rank on random tokens (`bench`); or NULL. */
    void (*prepare_bench)(lks__settings *s);
    const char *prep; /* `lockstep prep THIS` creates its data */
} lks__family;

/* For messages to users of parameter-golf's variables. */
#define LKS__GOLF_WAYS "`lockstep train config/golf_baseline.conf`, or --family=golf"

/* All families, terminated by NULL; the first one is the default. A program with other families
 * links its own list. */
extern const lks__family *const lks__families[];

const lks__family *lks__family_of(const lks__settings *s);

/* Name and origin of family i; NULL after the last. */
const char *lks__family_word(int i);
const char *lks__family_about(int i);

/* Word i of --optimizer, its meaning, and the flags of settings that only this optimizer uses. */
const char *lks__optimizer_word(int i);
const char *lks__optimizer_about(int i);
unsigned lks__optimizer_settings(int i);

/* Replace optimizer=auto by that of the family's script. */
void lks__choose_optimizer(lks__settings *s);
/* The optimizer, also if it hasn't been chosen yet. */
const struct lks__optimizer *lks__optimizer_of(const lks__settings *s);

/* The setting for a script's name ("num_layers": "n_layer"), or NULL. */
const char *lks__family_setting(const char *name);

/* A setting's name as the user wrote it, for messages: the variable if its value is from the
 * environment, or the script's name of a model's size. Returns `out`. */
const char *lks__family_name_of(const lks__settings *s, int setting, char out[LKS__SETTING_KEY]);

/* Read the script's environment variables (NUM_LAYERS, ITERATIONS, …). They override files, and the
 * command line overrides them. Variables of another family's script are noted in `args`, unless it
 * is NULL. */
lks_status lks__family_environment(lks__settings *s, unsigned command, struct lks__args *args);

/* Set the family's defaults for all settings that were not given. */
lks_status lks__family_presets(lks__settings *s, unsigned command);

/* Check that n_head divides n_embd, for families with attention. */
lks_status lks__family_check_heads(const lks__settings *s);
