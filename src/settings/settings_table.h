/* settings/settings_table.h - LKS__SETTING_MAP as descriptors, for the files that read, print and
 * write settings. All other code uses settings/settings.h. */
#pragma once

#include "settings/map.h"

typedef enum lks__setting_type {
    LKS__SETTING_IS_INT,
    LKS__SETTING_IS_FLOAT,
    LKS__SETTING_IS_BOOL,
    LKS__SETTING_IS_STR,
    LKS__SETTING_IS_CHOICE, /* and LISTED */
} lks__setting_type;

/* The kind of name in a STR, for command-line completion. */
enum {
    LKS__NAMES_NOTHING,
    LKS__NAMES_PATH,
    LKS__NAMES_DATASET,    /* a path, or NAME for data/NAME */
    LKS__NAMES_RUN,        /* a folder with metrics.jsonl */
    LKS__NAMES_CHECKPOINT, /* a checkpoint of out_dir: best, latest or an iteration */
    LKS__NAMES_WEIGHTS,    /* scratch, resume, a path, or a name: weights/choice/known.h */
};

typedef union lks__setting_value {
    int64_t i; /* also the index of a CHOICE's word */
    double f;
    bool b;
    const char *s; /* points into a preset, a struct lks__settings, or the parsed text */
} lks__setting_value;

typedef struct lks__setting_group {
    const char *word, *title; /* of --help=WORD, and in the help */
} lks__setting_group;

typedef struct lks__setting {
    const char *name;
    const char *alias; /* another name, or NULL */
    const char *help;
    const lks__setting_group *group; /* settings of one group are adjacent */
    const char *choices;             /* STR: "a|b", or NULL; "a:N": a, a colon and a number */
    const char *(*word)(int i);      /* CHOICE: its words; NULL after the last */
    const char *(*about)(int i);     /* the meaning of each word, or NULL */
    lks__setting_value preset;
    const char *zero;      /* INT, FLOAT: the word for 0, or NULL */
    int64_t low_i, high_i; /* INT: inclusive */
    double low, high;      /* FLOAT */
    size_t offset;         /* in lks__settings */
    lks__setting_type type;
    unsigned commands, flags;  /* LKS__CMD_*, LKS__SETTING_* */
    bool over_low, below_high; /* FLOAT: the limit is excluded */
    bool built;                /* this build may lack some of the choices */
    bool text;                 /* STR: free text, but not empty */
    bool begins;               /* STR: one line that begins with one of the choices */
    int names;                 /* STR: LKS__NAMES_* */
} lks__setting;

extern const lks__setting_group lks__setting_groups[LKS__N_GROUPS];
extern const lks__setting lks__setting_table[LKS__N_SETTINGS];

/* True if one of the commands in `commands` has settings of the group. */
bool lks__settings_has_group(unsigned commands, const lks__setting_group *group);

/* Name of the first command in `commands`; "" if none. */
const char *lks__command_name(unsigned commands);

/* Read a value from `s`, or write it; a string must fit, as all values in range do. */
lks__setting_value lks__setting_load(const lks__settings *s, const lks__setting *d);
void lks__setting_store(lks__settings *s, const lks__setting *d, lks__setting_value v,
                        lks__setting_from from);

bool lks__setting_same(const lks__setting *d, lks__setting_value a, lks__setting_value b);
/* True if the setting has an effect with the family and the optimizer in `s`. */
bool lks__setting_is_used(const lks__settings *s, const lks__setting *d);
bool lks__setting_in_range(const lks__setting *d, lks__setting_value v);

enum { LKS__SETTING_RANGE = 180, LKS__SETTING_HELP = 700, LKS__NUMBER_TEXT = 32 };

/* A number in readable form: 0.1, 6e-5, and with `commas` 1,000,000; returns `out`. */
const char *lks__number_text(double x, bool commas, char out[LKS__NUMBER_TEXT]);

/* True if `text` is a word for 0. */
bool lks__setting_means_zero(const lks__setting *d, const char *text);
/* The default of an INT or FLOAT, as a number or as the word for 0. */
const char *lks__setting_preset_text(const lks__setting *d, char out[LKS__NUMBER_TEXT]);

/* Copy the meaning of `d` for `command`; ~0u: for all commands. Returns `out`. */
const char *lks__setting_meaning(const lks__setting *d, unsigned command,
                                 char out[LKS__SETTING_HELP]);

/* The index of `text` among the words of a CHOICE, or -1. */
int64_t lks__setting_choice(const lks__setting *d, const char *text);

/* Describe the values that `d` accepts; returns `out`. */
const char *lks__setting_describe(const lks__setting *d, char out[LKS__SETTING_RANGE]);
