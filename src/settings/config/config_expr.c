#include "settings/config/config_expr.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/number/math.h"

enum { MOST_DEPTH = 64, MAX_TOKEN = 64 };

typedef struct parser {
    const lks__config_scope *scope;
    const char *start, *at;
    int depth;
    bool foreign;          /* the rest isn't read */
    const char *construct; /* the Python construct that made it foreign; NULL: not named */
} parser;

static lks_status fail_at(const parser *p, const char *at, const char *what)
{
    return lks__fail(LKS_ERR_CONFIG, "%s:%zu: %s", p->scope->where,
                     p->scope->column + (size_t)(at - p->start), what);
}

static void skip_space(parser *p)
{
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')
        p->at++;
}

static bool is_letter(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static bool takes(parser *p, const char *sign)
{
    skip_space(p);
    if (strncmp(p->at, sign, strlen(sign)) != 0)
        return false;
    p->at += strlen(sign);
    return true;
}

/* True at an operator that only Python evaluates: the expression is foreign. */
static bool at_python(parser *p)
{
    static const struct {
        const char *sign, *construct;
    } all[] = {{"if", "if ... else"}, {"and", "and"}, {"or", "or"}, {"not", "not"}, {"in", "in"},
               {"is", "is"},          {"==", "=="},   {"!=", "!="}, {"<", "<"},     {">", ">"}};
    skip_space(p);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t n = strlen(all[i].sign);
        if (strncmp(p->at, all[i].sign, n) != 0 ||
            (is_letter(*all[i].sign) && (is_letter(p->at[n]) || isdigit((unsigned char)p->at[n]))))
            continue;
        p->foreign = true;
        p->construct = all[i].construct;
        return true;
    }
    return false;
}

/* --- numbers --------------------------------------------------------------------------------- */

static bool is_number(const lks__config_value *v)
{
    return v->kind == LKS__CONFIG_INT || v->kind == LKS__CONFIG_FLOAT;
}

static double as_float(const lks__config_value *v)
{
    return v->kind == LKS__CONFIG_INT ? (double)v->i : v->f;
}

static lks_status set_int(const parser *p, const char *at, int64_t i, bool overflows,
                          lks__config_value *v)
{
    if (overflows)
        return fail_at(p, at, "this integer doesn't fit into 64 bits");
    v->kind = LKS__CONFIG_INT;
    v->i = i;
    return LKS_OK;
}

static lks_status set_float(const parser *p, const char *at, double f, lks__config_value *v)
{
    if (!isfinite(f))
        return fail_at(p, at, "this is not a finite number");
    v->kind = LKS__CONFIG_FLOAT;
    v->f = f;
    return LKS_OK;
}

/* Divide and round down, or compute the matching remainder. */
static lks_status divide_down(const parser *p, const char *at, bool remainder,
                              const lks__config_value *b, lks__config_value *a)
{
    if (a->kind == LKS__CONFIG_INT && b->kind == LKS__CONFIG_INT) {
        if (a->i == INT64_MIN && b->i == -1)
            return set_int(p, at, 0, !remainder, a);
        int64_t q = a->i / b->i, r = a->i % b->i;
        if (r != 0 && (r < 0) != (b->i < 0)) {
            q--;
            r += b->i;
        }
        return set_int(p, at, remainder ? r : q, false, a);
    }
    /* As in Python, from the remainder, which is exact: 1.0 // 0.1 is 9. */
    const double x = as_float(a), y = as_float(b);
    double r = fmod(x, y), q = (x - r) / y;
    if (r != 0.0 && (r < 0.0) != (y < 0.0)) {
        r += y;
        q -= 1.0;
    }
    return set_float(p, at, remainder ? r : round(q), a);
}

static lks_status power_int(const parser *p, const char *at, int64_t base, int64_t exponent,
                            lks__config_value *v)
{
    int64_t result = 1;
    bool overflows = false;
    if (base == 0 || base == 1 || base == -1) /* for any exponent */
        return set_int(p, at, exponent == 0 || (base == -1 && exponent % 2 == 0) ? 1 : base, false,
                       v);
    while (exponent > 0 && !overflows) {
        if (exponent % 2 != 0)
            overflows = __builtin_mul_overflow(result, base, &result);
        exponent /= 2;
        if (exponent > 0)
            overflows = overflows || __builtin_mul_overflow(base, base, &base);
    }
    return set_int(p, at, result, overflows, v);
}

static lks_status power(const parser *p, const char *at, const lks__config_value *b,
                        lks__config_value *a)
{
    if (a->kind == LKS__CONFIG_INT && b->kind == LKS__CONFIG_INT && b->i >= 0)
        return power_int(p, at, a->i, b->i, a);
    if (as_float(a) == 0.0 && as_float(b) < 0.0)
        return fail_at(p, at, "this divides by zero");
    return set_float(p, at, lks__math_pow(as_float(a), as_float(b)), a);
}

static lks_status add_texts(const parser *p, const char *at, const lks__config_value *b,
                            lks__config_value *a)
{
    if (strlen(a->text) + strlen(b->text) >= sizeof a->text)
        return fail_at(p, at, "this text is too long");
    strcat(a->text, b->text);
    return LKS_OK;
}

enum { POWER = 'p', DOWN = 'd' }; /* operators of two characters */

/* a = a SIGN b. */
static lks_status apply(const parser *p, const char *at, char sign, const lks__config_value *b,
                        lks__config_value *a)
{
    const bool whole = a->kind == LKS__CONFIG_INT && b->kind == LKS__CONFIG_INT;
    int64_t i = 0;
    if (sign == '+' && a->kind == LKS__CONFIG_TEXT && b->kind == LKS__CONFIG_TEXT)
        return add_texts(p, at, b, a);
    if (!is_number(a) || !is_number(b))
        return fail_at(p, at, "this needs two numbers");
    if ((sign == '/' || sign == DOWN || sign == '%') && as_float(b) == 0.0)
        return fail_at(p, at, "this divides by zero");
    bool overflows;
    switch (sign) {
    case '+':
        overflows = whole && __builtin_add_overflow(a->i, b->i, &i);
        return whole ? set_int(p, at, i, overflows, a)
                     : set_float(p, at, as_float(a) + as_float(b), a);
    case '-':
        overflows = whole && __builtin_sub_overflow(a->i, b->i, &i);
        return whole ? set_int(p, at, i, overflows, a)
                     : set_float(p, at, as_float(a) - as_float(b), a);
    case '*':
        overflows = whole && __builtin_mul_overflow(a->i, b->i, &i);
        return whole ? set_int(p, at, i, overflows, a)
                     : set_float(p, at, as_float(a) * as_float(b), a);
    case '/':
        return set_float(p, at, as_float(a) / as_float(b), a);
    case POWER:
        return power(p, at, b, a);
    default:
        return divide_down(p, at, sign == '%', b, a);
    }
}

/* --- the grammar ----------------------------------------------------------------------------- */

static lks_status sum(parser *p, lks__config_value *v);
static lks_status factor(parser *p, lks__config_value *v);

/* An underscore between two digits: 600_000. */
static bool is_separator(const char *from, const char *at)
{
    return *at == '_' && at > from && isdigit((unsigned char)at[-1]) &&
           isdigit((unsigned char)at[1]);
}

static lks_status number(parser *p, lks__config_value *v)
{
    const char *from = p->at, *at = from;
    char token[MAX_TOKEN];
    size_t n = 0;
    for (; isdigit((unsigned char)*at) || *at == '.' || *at == 'e' || *at == 'E' ||
           ((*at == '+' || *at == '-') && at > from && (at[-1] == 'e' || at[-1] == 'E')) ||
           is_separator(from, at);
         at++)
        if (*at != '_' && n < sizeof token)
            token[n++] = *at;
    if (n >= sizeof token || is_letter(*at))
        return fail_at(p, from, "this is not a number");
    token[n] = '\0';
    p->at = at;
    if (lks__parse_int(token, &v->i)) {
        v->kind = LKS__CONFIG_INT;
        return LKS_OK;
    }
    if (token[strspn(token, "0123456789")] == '\0')
        return set_int(p, from, 0, true, v);
    if (!lks__parse_float(token, &v->f))
        return fail_at(p, from, "this is not a number, or it is too large");
    v->kind = LKS__CONFIG_FLOAT;
    return LKS_OK;
}

const char *lks__config_string(const char *text, char *out, size_t bytes, const char **why_p)
{
    static const char escapes[] = "n\nt\t\\\\''\"\"";
    const char quote = *text++;
    size_t n = 0;
    for (; *text != quote; text++) {
        char c = *text;
        if (c == '\\') {
            const char *e = escapes;
            c = *++text;
            while (*e != '\0' && *e != c)
                e += 2;
            *why_p = "this string has an unknown escape";
            if (*e == '\0')
                return NULL;
            c = e[1];
        }
        *why_p = c == '\0' ? "this string has no end" : "this text is too long";
        if (c == '\0' || n + 1 >= bytes)
            return NULL;
        out[n++] = c;
    }
    out[n] = '\0';
    return text + 1;
}

static lks_status string(parser *p, lks__config_value *v)
{
    const char *why, *from = p->at;
    p->at = lks__config_string(from, v->text, sizeof v->text, &why);
    if (p->at == NULL)
        return fail_at(p, from, why);
    v->kind = LKS__CONFIG_TEXT;
    return LKS_OK;
}

static lks_status name(parser *p, lks__config_value *v)
{
    const char *from = p->at;
    char token[LKS__SETTING_KEY];
    size_t n = 0;
    while (is_letter(from[n]) || isdigit((unsigned char)from[n]))
        n++;
    p->at += n;
    skip_space(p);
    if (*p->at == '(' || *p->at == '.' || *p->at == '[') { /* a call, an attribute, an element */
        p->foreign = true;
        return LKS_OK;
    }
    if (n >= sizeof token)
        return fail_at(p, from, "this name is too long");
    memcpy(token, from, n);
    token[n] = '\0';
    v->kind = LKS__CONFIG_BOOL;
    v->i = strcmp(token, "True") == 0 || strcmp(token, "true") == 0;
    if (v->i != 0 || strcmp(token, "False") == 0 || strcmp(token, "false") == 0)
        return LKS_OK;
    v->kind = LKS__CONFIG_NONE;
    if (strcmp(token, "None") == 0)
        return LKS_OK;
    if (!p->scope->find(p->scope->ctx, token, v)) {
        char what[120];
        snprintf(what, sizeof what, "%s has no value at this point", token);
        return fail_at(p, from, what);
    }
    p->foreign = v->kind == LKS__CONFIG_FOREIGN;
    return LKS_OK;
}

static lks_status atom(parser *p, lks__config_value *v)
{
    skip_space(p);
    const char *at = p->at;
    if (isdigit((unsigned char)*at) || *at == '.')
        return number(p, v);
    if (*at == '\'' || *at == '"')
        return string(p, v);
    if (at_python(p)) /* not */
        return LKS_OK;
    if (is_letter(*at))
        return name(p, v);
    if (*at == '[' || *at == '{') {
        p->foreign = true;
        return LKS_OK;
    }
    if (!takes(p, "("))
        return fail_at(p, at, "a number or a name is missing");
    LKS__TRY(sum(p, v));
    skip_space(p);
    if (!p->foreign && *p->at == ',') /* a tuple */
        p->foreign = true;
    if (!p->foreign && !at_python(p) && !takes(p, ")"))
        return fail_at(p, p->at, "a closing parenthesis is missing");
    return LKS_OK;
}

/* A power binds more tightly than a sign on its left, and less tightly than a sign on its right. */
static lks_status signless(parser *p, lks__config_value *v)
{
    lks__config_value b = {.kind = LKS__CONFIG_NONE};
    LKS__TRY(atom(p, v));
    skip_space(p);
    const char *at = p->at;
    if (p->foreign || !takes(p, "**"))
        return LKS_OK;
    LKS__TRY(factor(p, &b));
    return p->foreign ? LKS_OK : apply(p, at, POWER, &b, v);
}

static lks_status factor(parser *p, lks__config_value *v)
{
    skip_space(p);
    const char *at = p->at;
    lks_status st;
    if (++p->depth > MOST_DEPTH)
        return fail_at(p, at, "this is nested too deeply");
    if (*at == '-' || *at == '+') {
        const lks__config_value zero = {.kind = LKS__CONFIG_INT};
        p->at++;
        st = factor(p, v);
        if (st == LKS_OK && !p->foreign) {
            lks__config_value signed_v = zero;
            st = *at == '-' && v->kind == LKS__CONFIG_FLOAT ? set_float(p, at, -v->f, &signed_v)
                                                            : apply(p, at, *at, v, &signed_v);
            *v = signed_v;
        }
    } else {
        st = signless(p, v);
    }
    p->depth--;
    return st;
}

static lks_status product(parser *p, lks__config_value *v)
{
    LKS__TRY(factor(p, v));
    for (;;) {
        lks__config_value b = {.kind = LKS__CONFIG_NONE};
        skip_space(p);
        const char *at = p->at;
        char sign = *at;
        if (p->foreign || (sign != '*' && sign != '/' && sign != '%'))
            return LKS_OK;
        if (takes(p, "//"))
            sign = DOWN;
        else
            p->at++;
        LKS__TRY(factor(p, &b));
        if (!p->foreign)
            LKS__TRY(apply(p, at, sign, &b, v));
    }
}

static lks_status sum(parser *p, lks__config_value *v)
{
    LKS__TRY(product(p, v));
    for (;;) {
        lks__config_value b = {.kind = LKS__CONFIG_NONE};
        skip_space(p);
        const char *at = p->at;
        if (p->foreign || (*at != '+' && *at != '-'))
            return LKS_OK;
        p->at++;
        LKS__TRY(product(p, &b));
        if (!p->foreign)
            LKS__TRY(apply(p, at, *at, &b, v));
    }
}

lks_status lks__config_eval(const char *text, const lks__config_scope *scope, lks__config_value *v)
{
    parser p = {.scope = scope, .start = text, .at = text};
    *v = (lks__config_value){.kind = LKS__CONFIG_NONE};
    LKS__TRY(sum(&p, v));
    skip_space(&p);
    if (!p.foreign && !at_python(&p) && *p.at == ',')
        p.foreign = true;
    if (p.foreign) {
        v->kind = LKS__CONFIG_FOREIGN;
        snprintf(v->text, sizeof v->text, "%s", p.construct != NULL ? p.construct : "");
    } else if (*p.at != '\0') {
        return fail_at(&p, p.at,
                       *p.at == ';' ? "`;` isn't read: give each setting its own line"
                                    : "this follows the end of an expression");
    }
    return LKS_OK;
}

const char *lks__config_text(const lks__config_value *v, char out[40])
{
    if (v->kind == LKS__CONFIG_TEXT)
        return v->text;
    if (v->kind == LKS__CONFIG_BOOL)
        return v->i != 0 ? "True" : "False";
    if (v->kind == LKS__CONFIG_INT) {
        snprintf(out, 40, "%" PRId64, v->i);
        return out;
    }
    snprintf(out, 40, "%.17g", v->f);
    if (!strpbrk(out, ".e"))
        strcat(out, ".0"); /* 2 * 1.5 is not an integer, as in Python */
    return out;
}
