#include "model/table/freeze.h"

#include <regex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"

/* --- the expression -------------------------------------------------------------------------- */

/* An expression may come from a checkpoint, and the C library expands "(a{200}){200}" in memory:
 * the product of all repetition counts is limited. */
enum { MOST_REPEATS = 1000 };

/* The largest number in "{m,n}" at `at`. */
static unsigned long repeats_at(const char *at)
{
    unsigned long most = 1;
    for (const char *c = at; *c != '\0' && *c != '}'; c++)
        if (*c >= '0' && *c <= '9' && (c == at || c[-1] < '0' || c[-1] > '9')) {
            unsigned long n = strtoul(c, NULL, 10);
            n = n < MOST_REPEATS ? n : MOST_REPEATS;
            most = n > most ? n : most;
        }
    return most;
}

/* In a POSIX expression, Python's \d and the like have another meaning or none. A back reference
 * (\1) may take the C library very long. */
static lks_status check_escapes(const char *pattern, const char *shown)
{
    for (const char *c = pattern; *c != '\0'; c++) {
        if (*c != '\\')
            continue;
        c++;
        if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9'))
            return lks__fail(LKS_ERR_CONFIG,
                             "freeze=\"%s\": \\%c at byte %td has no meaning in a POSIX extended "
                             "regular expression; for a digit write [0-9]",
                             shown, *c, c - pattern);
        if (*c == '\0')
            break;
    }
    return LKS_OK;
}

static lks_status check_text(const char *pattern, const char *shown)
{
    const size_t n = strlen(pattern);
    unsigned long repeats = 1;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp;
        len = lks__utf8_decode(pattern + at, n - at, &cp);
        if (len == 0)
            return lks__fail(LKS_ERR_CONFIG, "freeze=\"%s\": byte %zu is not UTF-8", shown, at);
        if (pattern[at] == '{' && repeats <= MOST_REPEATS)
            repeats *= 1 + repeats_at(pattern + at);
    }
    if (repeats > MOST_REPEATS)
        return lks__fail(LKS_ERR_CONFIG,
                         "freeze=\"%s\": its repetitions {m,n} together are more than %d", shown,
                         MOST_REPEATS);
    return check_escapes(pattern, shown);
}

/* --- names near an expression that matches none ---------------------------------------------- */

enum { MAX_WORD = 256, NEAR = 3 };

/* Copy the expression without the characters that never occur in names. */
static size_t letters_of(const char *pattern, char word[MAX_WORD])
{
    size_t n = 0;
    for (; *pattern != '\0' && n < MAX_WORD; pattern++)
        if (strchr("\\^$*+?()[]{}|", *pattern) == NULL)
            word[n++] = *pattern;
    return n;
}

/* Edits (insert, delete or replace a byte) from `word` to the nearest part of `name`. */
static size_t edits(const char *word, size_t n, const char *name)
{
    size_t rows[2][sizeof((lks__table_tensor *)0)->name + 1], best = SIZE_MAX;
    const size_t n_name = strlen(name);
    memset(rows[0], 0, sizeof rows[0]); /* a part may begin anywhere */
    for (size_t i = 0; i < n; i++) {
        const size_t *above = rows[i % 2];
        size_t *row = rows[(i + 1) % 2];
        row[0] = i + 1;
        for (size_t j = 0; j < n_name; j++) {
            row[j + 1] = above[j] + (word[i] != name[j]);
            if (above[j + 1] + 1 < row[j + 1])
                row[j + 1] = above[j + 1] + 1;
            if (row[j] + 1 < row[j + 1])
                row[j + 1] = row[j] + 1;
        }
    }
    for (size_t j = 0; j <= n_name; j++)
        best = rows[n % 2][j] < best ? rows[n % 2][j] : best;
    return best;
}

/* True if both are the same tensor, in the same layer or different ones. */
static bool same_row(const lks__table_tensor *a, const lks__table_tensor *b)
{
    return a->field == b->field && (a->layer >= 0) == (b->layer >= 0);
}

static bool is_chosen(const lks__table_tensor *t, const lks__table_tensor *const *chosen, int n)
{
    for (int i = 0; i < n; i++)
        if (same_row(t, chosen[i]))
            return true;
    return false;
}

static lks_status fail_nothing(const lks__table *table, const char *pattern, const char *shown)
{
    char word[MAX_WORD];
    const size_t n = letters_of(pattern, word);
    const lks__table_tensor *chosen[NEAR];
    int n_chosen = 0;
    for (; n_chosen < NEAR; n_chosen++) {
        size_t least = SIZE_MAX;
        for (size_t i = 0; i < table->n_tensors; i++) {
            const lks__table_tensor *t = &table->tensors[i];
            const size_t d = edits(word, n, t->name);
            if (d < least && !is_chosen(t, chosen, n_chosen)) {
                least = d;
                chosen[n_chosen] = t;
            }
        }
        if (least == SIZE_MAX)
            break;
    }
    return lks__fail(LKS_ERR_CONFIG,
                     "freeze=\"%s\" matches no tensor; the nearest names are %s%s%s%s%s", shown,
                     chosen[0]->name, n_chosen > 1 ? ", " : "", n_chosen > 1 ? chosen[1]->name : "",
                     n_chosen > 2 ? ", " : "", n_chosen > 2 ? chosen[2]->name : "");
}

/* --- freezing -------------------------------------------------------------------------------- */

static lks_status mark(lks__table *table, const regex_t *regex, const char *pattern,
                       const char *shown)
{
    size_t n = 0, trained = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        lks__table_tensor *t = &table->tensors[i];
        t->frozen = regexec(regex, t->name, 0, NULL, 0) == 0;
        n += t->frozen;
        trained += t->frozen ? 0 : t->count;
    }
    if (n == 0)
        return fail_nothing(table, pattern, shown);
    if (trained == 0) /* golf's skip_weights are empty in a model of one layer */
        return lks__fail(LKS_ERR_CONFIG,
                         "freeze=\"%s\" matches all %zu tensors: nothing would be trained", shown,
                         n);
    return LKS_OK;
}

lks_status lks__table_freeze(lks__table *table, const char *pattern)
{
    regex_t regex;
    char why[120];
    if (pattern[0] == '\0')
        return LKS_OK;
    const char *shown = lks__shown(pattern, 160);
    LKS__TRY(check_text(pattern, shown));
    const int error = regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (error != 0) {
        regerror(error, &regex, why, sizeof why);
        return lks__fail(LKS_ERR_CONFIG,
                         "freeze=\"%s\" is not a POSIX extended regular expression: %s", shown,
                         why);
    }
    lks_status st = mark(table, &regex, pattern, shown);
    regfree(&regex);
    return st == LKS_OK ? lks__table_lay_out(table) : st;
}

lks_status lks__table_freeze_all(lks__table *table)
{
    for (size_t i = 0; i < table->n_tensors; i++)
        table->tensors[i].frozen = true;
    return lks__table_lay_out(table);
}

/* --- listing -------------------------------------------------------------------------------- */

/* True if the tensor of a lower layer was already shown together with this one. */
static bool is_shown(const lks__table *table, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (table->tensors[j].frozen && same_row(&table->tensors[j], &table->tensors[i]))
            return true;
    return false;
}

struct layers_text {
    char text[40];
    size_t at;
};

static void add_range(struct layers_text *list, int first, int last)
{
    const size_t room = sizeof list->text - list->at;
    char range[32];
    snprintf(range, sizeof range, last > first ? "%s%d-%d" : "%s%d", list->at > 0 ? "," : "", first,
             last);
    if (strlen(range) + strlen(",...") < room)
        list->at += (size_t)snprintf(list->text + list->at, room, "%s", range);
    else if (list->at > 0 && list->text[list->at - 1] != '.')
        list->at += (size_t)snprintf(list->text + list->at, room, ",...");
}

/* The layers whose tensor of that row is frozen: "0-3,6". */
static void list_layers(const lks__table *table, const lks__table_tensor *row,
                        struct layers_text *list)
{
    int first = -1, last = -1;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (!t->frozen || !same_row(t, row))
            continue;
        if (first >= 0 && t->layer != last + 1) {
            add_range(list, first, last);
            first = -1;
        }
        first = first < 0 ? t->layer : first;
        last = t->layer;
    }
    add_range(list, first, last);
}

bool lks__frozen_next(const lks__table *table, size_t *next, char text[LKS__FROZEN_TEXT])
{
    while (*next < table->n_tensors && (!table->tensors[*next].frozen || is_shown(table, *next)))
        ++*next;
    if (*next == table->n_tensors)
        return false;
    const lks__table_tensor *t = &table->tensors[(*next)++];
    struct layers_text layers = {.at = 0};
    char number[16];
    if (t->layer < 0) {
        snprintf(text, LKS__FROZEN_TEXT, "%s", t->name);
        return true;
    }
    snprintf(number, sizeof number, ".%d.", t->layer);
    const char *rest = strstr(t->name, number);
    list_layers(table, t, &layers);
    snprintf(text, LKS__FROZEN_TEXT, "%.*s.%s.%s", (int)(rest - t->name), t->name, layers.text,
             rest + strlen(number));
    return true;
}
