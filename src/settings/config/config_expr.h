/* settings/config/config_expr.h - arithmetic in config files, with Python's results: numbers,
 * strings, True and False, names, + - * / // % **, parentheses. Nothing else is evaluated. */
#pragma once

#include "settings/settings.h"

typedef enum lks__config_kind {
    LKS__CONFIG_INT,
    LKS__CONFIG_FLOAT,
    LKS__CONFIG_BOOL,
    LKS__CONFIG_TEXT,
    LKS__CONFIG_NONE,
    LKS__CONFIG_FOREIGN, /* needs Python: a call, an attribute, a list, an if */
} lks__config_kind;

typedef struct lks__config_value {
    lks__config_kind kind;
    int64_t i; /* also for BOOL */
    double f;
    char text[LKS__SETTING_STR]; /* FOREIGN: the construct, for a message; or "" */
} lks__config_value;

/* The context of an expression. */
typedef struct lks__config_scope {
    const char *where; /* FILE:LINE, for messages */
    size_t column;     /* of the expression's first byte, from 1 */
    /* Find the value of a name; false if the name is unknown. */
    bool (*find)(void *ctx, const char *name, lks__config_value *v);
    void *ctx;
} lks__config_scope;

/* ERR_CONFIG, as FILE:LINE:COLUMN and the error. Integers outside 64 bits, numbers that aren't
 * finite and divisions by zero are errors. */
lks_status lks__config_eval(const char *text, const lks__config_scope *scope, lks__config_value *v);

/* Write the value of the string literal at `text` to `out`. Returns the end of the literal, or NULL
 * with the reason. */
const char *lks__config_string(const char *text, char *out, size_t bytes, const char **why_p);

/* The value as text for lks__settings_set(); not for NONE and FOREIGN. A float always has a point
 * or an exponent. Returns `out`, or the value's own text. */
const char *lks__config_text(const lks__config_value *v, char out[40]);
