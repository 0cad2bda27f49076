/* settings/args.c - the command line of a command, and the environment variables of scripts. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/place.h"
#include "base/text/shell.h"
#include "base/text/utf8.h"
#include "settings/config/config_file.h"
#include "settings/config/recipe.h"
#include "settings/family.h"
#include "settings/settings.h"
#include "settings/settings_table.h"

void lks__args_note(lks__args *args, const char *where, const char *what)
{
    if (args->n_notes < LKS__ARGS_NOTES) {
        char *note = args->notes[args->n_notes];
        char place[LKS__ARGS_PLACE];
        char *shown = lks__shown(what, LKS__ARGS_NOTE - LKS__ARGS_PLACE - 4);
        for (char *q = shown; (q = strstr(q, "\\\"")) != NULL; q++) /* no quotes around it */
            memmove(q, q + 1, strlen(q));
        snprintf(place, sizeof place, "%s", where); /* escaped by its source */
        snprintf(note, LKS__ARGS_NOTE, "%s: %s", place, shown);
    }
    args->n_notes++;
}

/* --- the scripts' variables ------------------------------------------------------------------- */

struct taking {
    lks__settings *s;
    unsigned command;
    lks__args *args; /* notes ignored variables; may be NULL */
    const lks__family *family;
    bool ours; /* the run is of this family */
};

/* True if the setting's value stays: variables of another family's script lose to files, too. */
static bool gives_way(const struct taking *t, int setting)
{
    return !t->ours && t->s->from[setting] > LKS__FROM_DEFAULT;
}

static lks_status take(const struct taking *t, const char *name)
{
    char variable[LKS__SETTING_KEY];
    size_t n = strlen(name);
    const int setting = lks__setting_find(name);
    if (n >= sizeof variable || setting < 0)
        return LKS_OK;
    for (size_t i = 0; i <= n; i++)
        variable[i] = (char)toupper((unsigned char)name[i]);
    const char *value = getenv(variable);
    if (value == NULL || !(lks__setting_table[setting].commands & t->command))
        return LKS_OK;
    /* A setting that files of the script don't show; the command doesn't know its model yet. */
    const unsigned flags = lks__setting_table[setting].flags;
    const bool of_model = (t->command & (LKS__CMD_TRAIN | LKS__CMD_BENCH)) == 0 &&
                          flags & LKS__SETTING_SHAPE &&
                          (flags & t->family->settings || setting == LKS__SETTING_block_size);
    const bool in_files = t->family->files != NULL && lks__is_one_of(name, t->family->files);
    if (t->ours || ((in_files || of_model) && !gives_way(t, setting)))
        return lks__settings_set(t->s, t->command, name, value, LKS__FROM_ENV, variable);
    if (t->args != NULL && t->command & (LKS__CMD_TRAIN | LKS__CMD_BENCH)) {
        char where[80];
        snprintf(where, sizeof where, "environment, for --family=%s", t->family->name);
        lks__args_note(t->args, where, variable);
    }
    return LKS_OK;
}

lks_status lks__family_environment(lks__settings *s, unsigned command, lks__args *args)
{
    const lks__family *ours = lks__family_of(s);
    for (int f = 0; lks__families[f] != NULL; f++) {
        const lks__family *family = lks__families[f];
        const struct taking t = {s, command, args, family, family == ours};
        if (family->names == NULL)
            continue;
        for (const lks__setting_alias *a = family->names; a->theirs != NULL; a++)
            LKS__TRY(take(&t, a->theirs));
        for (int i = 0; i < LKS__N_SETTINGS; i++)
            if (lks__setting_table[i].flags & family->settings)
                LKS__TRY(take(&t, lks__setting_table[i].name));
    }
    return LKS_OK;
}

/* --- the command line ------------------------------------------------------------------------- */

/* The words of a command line. */
struct words {
    char *const *argv;
    int argc, at;
};

/* The next word; NULL: none, or it is another setting. */
static const char *next_word(const struct words *w)
{
    const char *next = w->at + 1 < w->argc ? w->argv[w->at + 1] : NULL;
    return next == NULL || strncmp(next, "--", 2) == 0 ? NULL : next;
}

/* The value of `--key`: a setting that may be `bare` uses the next word only if it is true or
 * false, any other setting always uses it. NULL: the value is missing. */
static const char *value_after(struct words *w, bool bare)
{
    const char *next = next_word(w);
    bool truth;
    if (bare && (next == NULL || !lks__parse_bool(next, &truth)))
        return "true";
    w->at += next != NULL;
    return next;
}

/* Read an argument that begins with '-', and the next word if it is the value. */
static lks_status read_option(lks__settings *s, unsigned command, struct words *w, lks__args *args)
{
    char key[LKS__SETTING_KEY];
    const char *arg = w->argv[w->at];
    const char *where = lks__shown(arg, 120);
    size_t n_key = strcspn(arg, "=");
    if (strcmp(arg, "-") == 0)
        return lks__fail(LKS_ERR_CONFIG, "-: `lockstep prep char --input=- --out=DIR` reads a text "
                                         "from standard input, and `lockstep train --dataset=DIR` "
                                         "trains on it");
    if (strncmp(arg, "--", 2) != 0 && access(arg, F_OK) == 0)
        return lks__fail(LKS_ERR_CONFIG, "%s begins as settings do: write ./%s", where, where);
    if (strncmp(arg, "--", 2) != 0 || n_key == 2)
        return lks__fail(LKS_ERR_CONFIG, "%s: write settings as --key=value", where);
    n_key -= 2;
    if (n_key >= sizeof key)
        return lks__fail(LKS_ERR_CONFIG, "%s: no setting has a name of %zu bytes", where, n_key);
    memcpy(key, arg + 2, n_key);
    key[n_key] = '\0';
    const char *value = arg[2 + n_key] == '=' ? arg + 3 + n_key : NULL;
    int i = lks__setting_find_for(command, key);
    if (lks__setting_is_foreign(key)) {
        lks__args_note(args, "command line", key);
        if (value == NULL && next_word(w) != NULL && !lks__recipe_is_file(next_word(w)))
            w->at++;
        return LKS_OK;
    }
    if (value == NULL)
        value = value_after(w, i < 0 || lks__setting_is_bool(i) ||
                                   lks__setting_table[i].flags & LKS__SETTING_BARE);
    if (value == NULL)
        return lks__fail(LKS_ERR_CONFIG, "%s: %s needs a value: write --%s=VALUE", where,
                         lks__setting_name(i), key);
    return lks__settings_set(s, command, key, value, LKS__FROM_ARG, where);
}

/* Read a config file or the name of a recipe. */
static lks_status read_recipe(lks__settings *s, unsigned command, const char *arg, lks__args *args)
{
    char path[PATH_MAX], share[PATH_MAX];
    const enum lks__recipe_found found = lks__recipe_find(arg, path);
    args->n_files++;
    if (found == LKS__RECIPE_INSTALLED)
        lks__escape(args->recipe, sizeof args->recipe, path, strlen(path));
    if (found != LKS__RECIPE_NONE)
        return lks__config_file_read(s, command, path, args);
    const char *shown = lks__shown(arg, 512);
    if (lks__recipe_is_file(arg) && access(arg, F_OK) != 0 && errno == ENOENT)
        return lks__fail(LKS_ERR_CONFIG, "there is no config file %s", shown);
    if (lks__recipe_is_file(arg)) /* its message contains the file and the system's reason */
        return lks__config_file_read(s, command, arg, args);
    const int input = lks__setting_find_for(command, "input");
    if (lks__setting_table[input].commands & command && access(arg, F_OK) == 0)
        return lks__fail(LKS_ERR_CONFIG, "%s: to read this text, write --input=%s", shown,
                         lks__quoted(arg, 600));
    return lks__fail(LKS_ERR_CONFIG,
                     "\"%s\" is neither a setting (--key=value) nor a config file (a name "
                     "ending in .conf or .py) nor a recipe in config or in %s",
                     shown, lks__share_path("config", share));
}

/* True if `path` is the folder of a run. */
static bool is_run(const char *path)
{
    static const char *const files[] = {"metrics.jsonl", "latest"};
    char file[PATH_MAX];
    struct stat info;
    for (int i = 0; i < 2; i++) {
        const int n = snprintf(file, sizeof file, "%s/%s", path, files[i]);
        if (n < PATH_MAX && lstat(file, &info) == 0)
            return true;
    }
    return false;
}

/* Read the folder of the run that the command uses. */
static lks_status take_run(lks__settings *s, unsigned command, const char *arg, lks__args *args)
{
    const char *where = lks__shown(arg, 512);
    if (args->run != NULL && command == LKS__CMD_SAMPLE && strchr(arg, '=') == NULL && !is_run(arg))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: the command uses one run, and its folder was given already; "
                         "--start=%s gives a text to continue",
                         where, lks__quoted(arg, 600));
    if (args->run != NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: the command uses one run, and its folder was given already; "
                         "settings are written --key=value",
                         where);
    args->run = arg;
    return lks__settings_set(s, command, "out_dir", arg, LKS__FROM_ARG, where);
}

/* Check a run's folder together with settings that name other weights. */
static lks_status check_run(const lks__settings *s, const lks__args *args)
{
    const char *other = NULL;
    if (args->run == NULL)
        return LKS_OK;
    if (strcmp(s->out_dir, args->run) != 0)
        other = "out_dir";
    else if (lks__settings_uses_weights(s))
        other = "init_from";
    else if (s->artifact[0] != '\0')
        other = "artifact";
    if (other == NULL)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the folder %s and --%s each name a model: leave one of them out",
                     lks__shown(args->run, 512), other);
}

/* Read a word that is not an option. */
static lks_status read_word(lks__settings *s, unsigned command, const char *arg, int max_positional,
                            lks__args *args)
{
    char path[PATH_MAX];
    const bool is_file = lks__recipe_is_file(arg);
    const unsigned uses_run = LKS__CMD_SAMPLE | LKS__CMD_EVAL | LKS__CMD_EXPORT;
    if (command & uses_run && !is_file &&
        (is_run(arg) || lks__recipe_find(arg, path) == LKS__RECIPE_NONE))
        return take_run(s, command, arg, args);
    /* A text for `train`. The word may also be a recipe's name. */
    if (command == LKS__CMD_TRAIN && !is_file && lks__recipe_find(arg, path) != LKS__RECIPE_NONE)
        return read_recipe(s, command, arg, args);
    if (args->n_positional >= max_positional || args->n_positional >= LKS__ARGS_POSITIONAL ||
        is_file)
        return read_recipe(s, command, arg, args);
    args->positional[args->n_positional++] = arg;
    return LKS_OK;
}

lks_status lks__settings_parse(lks__settings *s, unsigned command, int argc, char *const *argv,
                               int max_positional, lks__args *args)
{
    memset(args, 0, sizeof *args);
    for (int i = 0; i < argc; i++) {
        if (lks__is_help(argv[i])) {
            const char *equals = strchr(argv[i], '=');
            args->help = true;
            args->help_group = equals == NULL ? NULL : equals + 1;
            return equals == NULL ? LKS_OK : lks__settings_check_group(command, equals + 1);
        }
    }
    for (struct words w = {argv, argc, 0}; w.at < argc; w.at++) {
        const char *arg = w.argv[w.at];
        if (arg[0] == '-')
            LKS__TRY(read_option(s, command, &w, args));
        else
            LKS__TRY(read_word(s, command, arg, max_positional, args));
    }
    LKS__TRY(check_run(s, args));
    /* A resumed run and weights bring their family, and its variables are read then. */
    const bool known = s->from[LKS__SETTING_family] != LKS__FROM_DEFAULT ||
                       lks__settings_init(s) == LKS__INIT_SCRATCH;
    LKS__TRY(lks__family_environment(s, command, known ? args : NULL));
    return lks__family_presets(s, command);
}
