/* settings/settings_help.c - `--help`, generated from the settings table. */
#include <inttypes.h>
#include <string.h>

#include "settings/settings.h"
#include "settings/settings_table.h"

enum { HELP_INDENT = 34, HELP_WIDTH = 96 };

/* Print `text` in lines that end before HELP_WIDTH; the cursor is at HELP_INDENT. */
static void print_wrapped(FILE *out, const char *text)
{
    size_t room = HELP_WIDTH - HELP_INDENT;
    while (strlen(text) > room) {
        size_t n = room;
        while (n > 1 && text[n] != ' ')
            n--;
        fprintf(out, "%.*s\n%*s", (int)n, text, HELP_INDENT, "");
        text += n + 1;
    }
    fprintf(out, "%s\n", text);
}

/* "HELP; word: its meaning; …". */
static void describe_words(const lks__setting *d, char *out, size_t bytes)
{
    size_t o = (size_t)snprintf(out, bytes, "%s", d->help);
    for (int i = 0; d->about != NULL && d->about(i) != NULL && o < bytes; i++)
        o += (size_t)snprintf(out + o, bytes - o, "; %s: %s", d->word(i), d->about(i));
}

static void print_setting(FILE *out, const lks__setting *d)
{
    char left[80], text[600], help[400], range[LKS__SETTING_RANGE], shown[80];
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        snprintf(left, sizeof left, "--%s=%" PRId64, d->name, d->preset.i);
        break;
    case LKS__SETTING_IS_FLOAT:
        snprintf(left, sizeof left, "--%s=%s", d->name,
                 lks__number_text(d->preset.f, false, shown));
        break;
    case LKS__SETTING_IS_BOOL:
        snprintf(left, sizeof left, "--%s=%s", d->name, d->preset.b ? "true" : "false");
        break;
    case LKS__SETTING_IS_STR:
        if (!d->preset.s[0])
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
    bool has_range = d->type == LKS__SETTING_IS_INT || d->type == LKS__SETTING_IS_FLOAT ||
                     d->type == LKS__SETTING_IS_CHOICE || d->choices;
    describe_words(d, help, sizeof help);
    snprintf(text, sizeof text, has_range ? "%s (%s)" : "%s", help, range);
    if (strlen(left) + 3 < HELP_INDENT)
        fprintf(out, "  %-*s", HELP_INDENT - 2, left);
    else
        fprintf(out, "  %s\n%*s", left, HELP_INDENT, "");
    print_wrapped(out, text);
}

void lks__setting_help(FILE *out, int setting)
{
    const lks__setting *d = &lks__setting_table[setting];
    int n = 0;
    fprintf(out, "%s, a setting of", d->name);
    for (unsigned command = 1; command != 0 && command <= d->commands; command *= 2)
        if (d->commands & command)
            fprintf(out, "%s `lockstep %s`", n++ > 0 ? "," : "", lks__command_name(command));
    fprintf(out, "\n\n");
    print_setting(out, d);
}

void lks__settings_help(FILE *out, unsigned command)
{
    const char *group = "";
    for (const lks__setting *d = lks__setting_table; d < lks__setting_table + LKS__N_SETTINGS;
         d++) {
        if (!(d->commands & command))
            continue;
        if (strcmp(group, d->group) != 0)
            fprintf(out, "\n%s\n", d->group);
        group = d->group;
        print_setting(out, d);
    }
}
