#include "table.h"

#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "data/fetch/sets.h"
#include "data/prep/prep.h"
#include "settings/settings_table.h"
#include "weights/choice/known.h"

bool table_asked;

/* Print a column. White space within becomes one blank. */
static void column(const char *text)
{
    putchar('\t');
    for (const char *c = text; *c != '\0'; c++) {
        const bool blank = *c == ' ' || *c == '\n' || *c == '\t';
        if (!blank)
            putchar(*c);
        else if (c > text && c[1] != '\0' && c[1] != ' ')
            putchar(' ');
    }
}

static void print_words(const char *command, const char *(*word)(int i))
{
    for (int i = 0; word(i) != NULL; i++)
        printf("word\t%s\t%s\n", command, word(i));
}

void table_usage(const char *command, const char *usage)
{
    while (*usage != '\0') {
        const size_t n = strcspn(usage, "\n");
        printf("usage\t%s\t%.*s\n", command, (int)n, usage);
        usage += n + (usage[n] != '\0');
    }
    if (strcmp(command, "fetch") == 0)
        print_words(command, lks__fetch_set_name);
    if (strcmp(command, "prep") == 0)
        print_words(command, lks__prep_kind_name);
    if (strcmp(command, "bench") == 0)
        print_words(command, bench_name);
}

static const char *kind_of(const lks__setting *d)
{
    static const char *const names[] = {
        [LKS__NAMES_NOTHING] = "value",         [LKS__NAMES_PATH] = "path",
        [LKS__NAMES_DATASET] = "dataset",       [LKS__NAMES_RUN] = "run",
        [LKS__NAMES_CHECKPOINT] = "checkpoint", [LKS__NAMES_WEIGHTS] = "weights",
    };
    if (d->type == LKS__SETTING_IS_BOOL)
        return "truth";
    if (d->type == LKS__SETTING_IS_CHOICE || d->choices != NULL || d->zero != NULL)
        return "words";
    return names[d->names];
}

static void print_choices(const lks__setting *d)
{
    putchar('\t');
    if (d->type == LKS__SETTING_IS_CHOICE)
        for (int i = 0; d->word(i) != NULL; i++)
            printf("%s%s", i > 0 ? " " : "", d->word(i));
    for (const char *c = d->choices; c != NULL && *c != '\0';) {
        const size_t n = strcspn(c, "|");
        if (c[n - 1] != 'N') /* leave "cuda:N" out */
            printf("%s%.*s", c > d->choices ? " " : "", (int)n, c);
        c += n + (c[n] == '|');
    }
    if (d->zero != NULL)
        fputs(d->zero, stdout);
    if (d->type == LKS__SETTING_IS_BOOL)
        fputs("true false", stdout);
    if (d->names == LKS__NAMES_WEIGHTS)
        fputs("scratch resume", stdout);
    for (int i = 0; d->names == LKS__NAMES_WEIGHTS && lks__known_name(i) != NULL; i++)
        printf(" %s", lks__known_name(i));
}

static void print_option(const char *command, const lks__setting *d, const lks__settings *s,
                         const char *name, const char *help)
{
    char value[LKS__SETTING_STR], range[LKS__SETTING_RANGE], number[LKS__NUMBER_TEXT];
    const char *preset = d->type == LKS__SETTING_IS_INT || d->type == LKS__SETTING_IS_FLOAT
                             ? lks__setting_preset_text(d, number)
                             : lks__settings_text(s, (int)(d - lks__setting_table), value);
    printf("option\t%s\t--%s\t%s", command, name, kind_of(d));
    column(strcmp(preset, "\n") == 0 ? "(line feed)" : preset);
    print_choices(d);
    const bool is_free = d->type == LKS__SETTING_IS_STR && d->choices == NULL;
    column(is_free || d->type == LKS__SETTING_IS_BOOL ? "" : lks__setting_describe(d, range));
    column(d->group->title);
    column(help);
    putchar('\n');
}

/* --help, and the groups of --help=GROUP. */
static void print_help(const char *command, unsigned bit)
{
    printf("option\t%s\t--help\thelp\t\tall", command);
    for (int i = 0; i < LKS__N_GROUPS; i++)
        if (lks__settings_has_group(bit, &lks__setting_groups[i]))
            printf(" %s", lks__setting_groups[i].word);
    puts("\t\tHelp\texplain the command, and a group of its settings or all of them");
}

void table_settings(const char *command, unsigned bit)
{
    lks__settings s;
    char meaning[LKS__SETTING_HELP];
    if (strcmp(command, "settings") != 0)
        print_help(command, bit);
    lks__settings_defaults(&s);
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const lks__setting *d = &lks__setting_table[i];
        if (!(d->commands & bit))
            continue;
        print_option(command, d, &s, d->name, lks__setting_meaning(d, bit, meaning));
        char help[80];
        snprintf(help, sizeof help, "another name of --%s", d->name);
        if (d->alias != NULL)
            print_option(command, d, &s, d->alias, help);
    }
}

void table_option(const char *command, const char *name, const char *kind, const char *preset,
                  const char *help)
{
    printf("option\t%s\t%s\t%s", command, name, kind);
    column(preset);
    fputs("\t\t\tOptions", stdout);
    column(help);
    putchar('\n');
}
