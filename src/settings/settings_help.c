/* settings/settings_help.c - `--help`, generated from the settings table. */
#include <string.h>

#include "settings/settings.h"
#include "settings/settings_table.h"

enum { HELP_INDENT = 30, HELP_WIDTH = 80 };

void lks__help_row(FILE *out, const char *left, const char *text)
{
    const size_t room = HELP_WIDTH - HELP_INDENT;
    if (strlen(left) + 3 < HELP_INDENT)
        fprintf(out, "  %-*s", HELP_INDENT - 2, left);
    else
        fprintf(out, "  %s\n%*s", left, HELP_INDENT, "");
    while (strlen(text) > room) {
        size_t n = room;
        while (n > 1 && text[n] != ' ')
            n--;
        fprintf(out, "%.*s\n%*s", (int)n, text, HELP_INDENT, "");
        text += n + 1;
    }
    fprintf(out, "%s\n", text);
}

/* True if the line begins with the name of one of the commands and a colon. */
static bool is_for(const char *line, unsigned commands)
{
    const size_t n = strcspn(line, ":\n");
    for (int i = 0; i < LKS__N_COMMANDS; i++) {
        const char *name = lks__command_name(1u << i);
        if (commands >> i & 1 && strlen(name) == n && memcmp(name, line, n) == 0)
            return true;
    }
    return false;
}

const char *lks__setting_meaning(const lks__setting *d, unsigned command,
                                 char out[LKS__SETTING_HELP])
{
    const char *line = d->help;
    for (const char *at = d->help; command != ~0u && (at = strchr(at, '\n')) != NULL;)
        if (is_for(++at, command))
            line = at + strcspn(at, ":") + 2;
    if (command != ~0u) {
        snprintf(out, LKS__SETTING_HELP, "%.*s", (int)strcspn(line, "\n"), line);
        return out;
    }
    const size_t first = strcspn(line, "\n");
    for (out[0] = '\0'; *line != '\0'; line += strcspn(line, "\n")) {
        line += *line == '\n';
        const size_t command_bytes = out[0] != '\0' ? strcspn(line, ":") + 2 : 0;
        const char *text = line + command_bytes;
        if (out[0] != '\0' && strncmp(text, d->help, first) == 0 && text[first] == ';')
            text += first + 2; /* the first line says it */
        lks__append(out, LKS__SETTING_HELP, "; ", "%.*s%.*s", (int)command_bytes, line,
                    (int)strcspn(text, "\n"), text);
        line = text;
    }
    return out;
}

/* "HELP; word: its meaning; …". */
static void describe_words(const lks__setting *d, unsigned command, char *out, size_t bytes)
{
    char help[LKS__SETTING_HELP];
    snprintf(out, bytes, "%s", lks__setting_meaning(d, command, help));
    for (int i = 0; d->about != NULL && d->about(i) != NULL; i++)
        lks__append(out, bytes, "", "; %s: %s", d->word(i), d->about(i));
}

/* How much of a setting to print. */
enum detail {
    SUMMARY, /* its help up to the first semicolon */
    MEANING, /* all of its help */
    RANGE,   /* its range, too */
};

static void print_setting(FILE *out, const lks__setting *d, unsigned command, enum detail detail)
{
    char left[80], text[1100], help[900], range[LKS__SETTING_RANGE], shown[80];
    switch (d->type) {
    case LKS__SETTING_IS_INT:
    case LKS__SETTING_IS_FLOAT:
        snprintf(left, sizeof left, "--%s=%s", d->name, lks__setting_preset_text(d, shown));
        break;
    case LKS__SETTING_IS_BOOL:
        snprintf(left, sizeof left, "--%s=%s", d->name, d->preset.b ? "true" : "false");
        break;
    case LKS__SETTING_IS_STR:
        if (!d->preset.s[0] || /* train's dataset: other commands have the run's, or none */
            (d == &lks__setting_table[LKS__SETTING_dataset] && !(command & LKS__CMD_TRAIN)))
            snprintf(shown, sizeof shown, "%s", "...");
        else if (strcmp(d->preset.s, "\n") == 0)
            snprintf(shown, sizeof shown, "%s", "(line feed)");
        else
            lks__escape(shown, sizeof shown, d->preset.s, strlen(d->preset.s));
        snprintf(left, sizeof left, "--%s=%.40s", d->name, shown);
        break;
    case LKS__SETTING_IS_CHOICE:
        snprintf(left, sizeof left, "--%s=%s", d->name, d->word((int)d->preset.i));
        break;
    }
    lks__setting_describe(d, range);
    const bool is_number = d->type == LKS__SETTING_IS_INT || d->type == LKS__SETTING_IS_FLOAT;
    const bool has_range =
        d->type == LKS__SETTING_IS_CHOICE || d->choices || (is_number && detail == RANGE);
    describe_words(d, command, help, sizeof help);
    if (detail == SUMMARY)
        help[strcspn(help, ";")] = '\0';
    if (d->alias != NULL)
        snprintf(help + strlen(help), sizeof help - strlen(help), "; also --%s", d->alias);
    snprintf(text, sizeof text, has_range ? "%s (%s)" : "%s", help, range);
    lks__help_row(out, left, text);
}

void lks__setting_help(FILE *out, int setting)
{
    const lks__setting *d = &lks__setting_table[setting];
    const unsigned commands = d->commands | (d->commands & LKS__CMD_TRAIN ? LKS__CMD_PLAN : 0);
    int n = 0;
    fprintf(out, "%s, a setting of", d->name);
    for (unsigned command = 1; command != 0 && command <= commands; command *= 2)
        if (commands & command)
            fprintf(out, "%s `lockstep %s`", n++ > 0 ? "," : "", lks__command_name(command));
    fprintf(out, "\n\n");
    print_setting(out, d, ~0u, RANGE);
    if (d->flags & LKS__SETTING_SEGMENT)
        fprintf(out,
                "\nA resume keeps the run's value. Another one on the command line begins a new "
                "segment.\n");
    else if (d->flags & (LKS__SETTING_SHAPE | LKS__SETTING_RUN))
        fprintf(out, "\nA resume keeps the run's value and refuses another.\n");
    if (d->flags & (LKS__SETTING_FREE | LKS__SETTING_KEPT))
        fprintf(out, "\nA resume keeps the run's value unless you give another.\n");
}

bool lks__is_help(const char *arg)
{
    return strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0 || strncmp(arg, "--help=", 7) == 0;
}

bool lks__settings_has_group(unsigned command, const lks__setting_group *group)
{
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        if (lks__setting_table[i].commands & command && lks__setting_table[i].group == group)
            return true;
    return false;
}

lks_status lks__settings_check_group(unsigned command, const char *group)
{
    char list[160] = "all";
    if (strcmp(group, "all") == 0)
        return LKS_OK;
    for (int i = 0; i < LKS__N_GROUPS; i++) {
        const lks__setting_group *known = &lks__setting_groups[i];
        if (!lks__settings_has_group(command, known))
            continue;
        if (strcmp(group, known->word) == 0)
            return LKS_OK;
        lks__append(list, sizeof list, ", ", "%s", known->word);
    }
    return lks__fail(LKS_ERR_CONFIG,
                     "--help=%s: there is no such group of settings; the groups are %s",
                     lks__shown(group, 80), list);
}

/* The settings of train that people use most, all other settings of `command`, and the groups. */
static void print_short(FILE *out, unsigned command)
{
    fputs("\nCommon settings\n", out);
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const lks__setting *d = &lks__setting_table[i];
        if (d->commands & command &&
            (d->flags & LKS__SETTING_SHORT || !(d->commands & LKS__CMD_TRAIN)))
            print_setting(out, d, command, SUMMARY);
    }
    fputs("\nMore settings\n", out);
    for (int i = 0; i < LKS__N_GROUPS; i++) {
        char left[40];
        snprintf(left, sizeof left, "--help=%s", lks__setting_groups[i].word);
        if (lks__settings_has_group(command, &lks__setting_groups[i]))
            lks__help_row(out, left, lks__setting_groups[i].title);
    }
    lks__help_row(out, "--help=all", "every setting");
    fputs("`lockstep help SETTING` explains a setting and prints its range.\n", out);
}

void lks__settings_help(FILE *out, unsigned command, const char *group)
{
    const lks__setting_group *title = NULL;
    if (group == NULL && command & LKS__CMD_TRAIN) {
        print_short(out, command);
        return;
    }
    const bool all = group == NULL || strcmp(group, "all") == 0;
    for (const lks__setting *d = lks__setting_table; d < lks__setting_table + LKS__N_SETTINGS;
         d++) {
        if (!(d->commands & command) || (!all && strcmp(d->group->word, group) != 0))
            continue;
        if (title != d->group)
            fprintf(out, "\n%s\n", d->group->title);
        title = d->group;
        print_setting(out, d, command, MEANING);
    }
}
