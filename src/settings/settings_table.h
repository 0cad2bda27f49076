/* settings/settings_table.h - LKS__SETTING_MAP as descriptors: what the files that read, print and
 * write settings share. Everyone else takes settings/settings.h. */
#ifndef LKS_SETTINGS_SETTINGS_TABLE_H
#define LKS_SETTINGS_SETTINGS_TABLE_H

#include "settings/settings.h"

typedef enum lks__setting_type {
    LKS__SETTING_IS_INT,
    LKS__SETTING_IS_FLOAT,
    LKS__SETTING_IS_BOOL,
    LKS__SETTING_IS_STR,
    LKS__SETTING_IS_CHOICE,
} lks__setting_type;

typedef union lks__setting_value {
    int64_t i; /* of a CHOICE too: the place of its word */
    double f;
    bool b;
    const char *s; /* of a preset, a struct lks__settings, or the text that was parsed */
} lks__setting_value;

typedef struct lks__setting {
    const char *name;
    const char *help;
    const char *group;        /* the title in help; those of one group stand together */
    const char *choices;      /* STR: "a|b", or NULL */
    const char *const *words; /* CHOICE: NULL behind the last */
    lks__setting_value preset;
    int64_t low_i, high_i; /* INT: inclusive */
    double low, high;      /* FLOAT */
    size_t offset;         /* in lks__settings */
    lks__setting_type type;
    unsigned commands, flags;  /* LKS__CMD_*, LKS__SETTING_* */
    bool over_low, below_high; /* FLOAT: the border itself is outside */
    bool built;                /* the choices are those of this build */
    bool text;                 /* STR: free text, but not empty */
} lks__setting;

extern const lks__setting lks__setting_table[LKS__N_SETTINGS];

/* The first command among `commands` by its name; "": none. */
const char *lks__command_name(unsigned commands);

/* A value as it stands in `s`, and put there; a string must fit, as all in range do. */
lks__setting_value lks__setting_load(const lks__settings *s, const lks__setting *d);
void lks__setting_store(lks__settings *s, const lks__setting *d, lks__setting_value v,
                        lks__setting_from from);

bool lks__setting_same(const lks__setting *d, lks__setting_value a, lks__setting_value b);
bool lks__setting_in_range(const lks__setting *d, lks__setting_value v);

enum { LKS__SETTING_RANGE = 160 };

/* The place of `text` among the words of a CHOICE; -1: it is none of them. */
int64_t lks__setting_choice(const lks__setting *d, const char *text);

/* What a value of `d` must be, in words; returns `out`. */
const char *lks__setting_describe(const lks__setting *d, char out[LKS__SETTING_RANGE]);

#endif
